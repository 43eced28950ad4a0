"""One self-contained HTML page about runs, comparisons and attacks.

Everything is drawn here, as SVG beside the tables that have the same figures: the page needs no
network, prints as it is, and can be read without a script, which only switches and sorts.
"""

from __future__ import annotations

from vertizo.lab.report.page import render, write
from vertizo.lab.report.reading import Material, read

__all__ = ["Material", "read", "render", "write"]
