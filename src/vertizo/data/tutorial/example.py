"""The example of ``vertizo init``: a bank's customers, made up, and configurations for them.

The bank knows who defaulted, and its customers' own statements; a credit bureau and a telephone
company have columns that predict better. The table needs no package and is the same everywhere: of
`random.Random` only methods are used whose numbers Python promises to keep.
"""

from __future__ import annotations

import math
import random

RECORDS = 600
"""Customers: few enough to train in seconds, enough to show what the columns are worth."""
PARTNERS = ("bureau", "telecom")
COLUMNS = (
    *("customer", "age", "income", "employment", "open_loans", "utilisation", "late_payments"),
    *("months", "contract", "arrears", "defaulted"),
)
JOBS = ("employed", "employed", "employed", "self-employed", "student", "retired")
DATA = """\
# Every key, with its default: vertizo schema, or docs/configuration.md.
data:
  name: table
  path: customers.csv            # CSV or Parquet, beside this file; put your own here
  id: customer                   # what tells customers apart; no model sees it
  label: defaulted               # what is to be predicted
  classes: ["no", "yes"]         # public: an ε may not depend on what the labels happen to be
  columns:                       # who has which columns
    bank: [age, income, employment]
    bureau: [open_loans, utilisation, late_payments]
    telecom: [months, contract, arrears]
  label_holder: bank             # the party that also has the labels
  test: 0.2                      # share of customers that no model sees before the final figures

"""
CONFIG = f"""\
# Who will default? A bank has the labels and some columns of its own; a credit bureau and a
# telephone company have other columns about the same customers. All run in one process here, to
# see what their columns are worth.
{DATA}method: {{name: auto}}             # the best of three on folds; others: vertizo list methods

seed: 0                          # the same seed repeats a run, bit for bit
"""
PRIVATE = f"""\
# The same with a guarantee for labels, against both partners together. Each sends one number of a
# customer; the bank answers one noised question of each, once (`vertizo privacy plan` compares
# the ways to spend an ε, `vertizo privacy explain` says what a run protects).
{DATA}method: {{name: label-statistic}}
client: {{model: {{name: mlp, outputs: 1}}}}
server: {{final_head: boosting}}   # a second model over both numbers and the bank's own columns;
                                 # it learns from raw labels, costs no ε and stays at the bank
privacy: {{epsilon: 1.0, delta: 1.0e-5}}
"""


def trained(records: int) -> int:
    """Number of training records: a fifth is for the test, a tenth of the rest for validation.

    >>> trained(600)
    432
    """
    tested = round(records * 0.2)
    return records - tested - round((records - tested) * 0.1)


def table(records: int = RECORDS) -> str:
    """The customers as CSV; the same text at every call."""
    chance = random.Random(20)
    return "\n".join([",".join(COLUMNS), *(_customer(chance, n) for n in range(records)), ""])


def _customer(chance: random.Random, number: int) -> str:
    age = 18 + int(60 * chance.random())
    job = "retired" if age > 66 else JOBS[int(5 * chance.random())]
    income = 100 * round(math.exp(5.4 + 0.5 * _spread(chance)) * (0.5 if job == "student" else 1))
    loans = int(5 * chance.random() ** 2)
    use = round(chance.random(), 2)
    late = int(6 * chance.random() ** 3)
    months = 1 + int(120 * chance.random())
    contract = "prepaid" if chance.random() < 0.35 else "contract"
    arrears = int(4 * chance.random() ** 3)
    risk = 0.9 * late + 1.1 * arrears + 2.2 * use + 0.5 * loans - 0.012 * months
    risk += (0.5 if contract == "prepaid" else 0.0) - 0.02 * (age - 40) - income / 40_000 - 4.2
    defaulted = "yes" if chance.random() < 1 / (1 + math.exp(-1.6 * risk)) else "no"
    values = (f"C{number:04}", age, income, job, loans, use, late, months, contract, arrears)
    return ",".join(map(str, (*values, defaulted)))


def _spread(chance: random.Random) -> float:
    """A nearly standard normal number: the sum of twelve uniform ones, less 6 (Irwin-Hall)."""
    return sum(chance.random() for _ in range(12)) - 6.0
