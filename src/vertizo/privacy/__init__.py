"""Privacy of what leaves the server: clipping, noise, accounting, ledgers and private labels.

`plan.py` is what every released number passes through; it is made of `clipping.py`, `noise/`,
`accounting/` and `ledger/`. `labels/` makes labels private once, in place of noise on replies.
Mechanisms, accountants and words may change, with their tests in `tests/privacy`. Never:

* the order: a query is admitted before anything is computed; its charge and reply are recorded
  before the reply leaves;
* the sensitivity of clipped sums: `clipping.py` alone says how far one record moves them;
* a charge depends on record IDs and public constants, never on labels;
* without an accountant there is no ε: the `Statement` then says that nothing is guaranteed.
"""
