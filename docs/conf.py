"""How the pages become a site: `make docs`. Nothing is fetched, neither here nor by a reader."""

from __future__ import annotations

import re
from pathlib import Path

VERSION_FILE = Path(__file__).parents[1] / "src" / "vertizo" / "core" / "version.py"
found = re.search(r'VERSION = "(.+?)"', VERSION_FILE.read_text(encoding="utf-8"))
assert found is not None, VERSION_FILE

project = "Vertizo"
author = "the Vertizo project"
version = release = found[1]
language = "en"

extensions = ["myst_parser"]
exclude_patterns = ["_build", "generate"]
root_doc = "index"
highlight_language = "text"
smartquotes_action = "D"  # dashes alone: what stands here is often code

myst_heading_anchors = 4  # the anchors that GitHub has

html_theme = "furo"
html_title = f"Vertizo {release}"
html_static_path = ["_static"]
html_css_files = ["vertizo.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2b5d8f", "color-brand-content": "#1f5487"},
    "dark_css_variables": {"color-brand-primary": "#8fbde8", "color-brand-content": "#8fbde8"},
}
pygments_style = "default"
pygments_dark_style = "monokai"
