"""The report: one self-contained HTML page about runs, comparisons, studies of worth and attacks.

`reading.py` reads folders, `variants.py` groups runs; `curves.py`, `ranking.py`, `plot.py`,
`clients.py` and `worth.py` draw, `tables.py` and `statements.py` write tables and guarantees, and
`page.py` puts all of it into `templates/`.

Sections may be added. What never changes: the page needs no network, prints as it is, and can be
read without its script, which only switches and sorts; each drawing stands beside a table of the
same figures; values are escaped; and figures come from the folders alone, nothing is trained.
"""

from __future__ import annotations

from vertizo.lab.report.page import render, write
from vertizo.lab.report.reading import Material, read

__all__ = ["Material", "read", "render", "write"]
