"""How the pages become a site: `make docs`. Nothing is fetched, neither here nor by a reader.

The environment variable DOCS_URL says where the site will be, for its sitemap and its canonical
links.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

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

templates_path = ["_templates"]

html_theme = "furo"
html_baseurl = os.environ.get("DOCS_URL", f"https://vertizo.github.io/vertizo/{release}/")
html_baseurl = html_baseurl.rstrip("/") + "/"
html_title = f"Vertizo {release}"
html_static_path = ["_static"]
html_css_files = ["vertizo.css"]
html_js_files = ["versions.js"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_use_index = False
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2b5d8f", "color-brand-content": "#1f5487"},
    "dark_css_variables": {"color-brand-primary": "#8fbde8", "color-brand-content": "#8fbde8"},
}
pygments_style = "default"
pygments_dark_style = "monokai"


def setup(app: Any) -> None:
    """Sphinx calls this with itself."""
    app.connect("build-finished", write_sitemap)


def write_sitemap(app: Any, error: Exception | None) -> None:
    """Name every page to search engines, in ``sitemap.xml``."""
    if error is not None or app.builder.format != "html":
        return
    pages = ElementTree.Element("urlset", xmlns="http://www.sitemaps.org/schemas/sitemap/0.9")
    for name in sorted(app.env.found_docs):
        address = app.config.html_baseurl + app.builder.get_target_uri(name)
        ElementTree.SubElement(ElementTree.SubElement(pages, "url"), "loc").text = address
    file = Path(app.outdir) / "sitemap.xml"
    ElementTree.ElementTree(pages).write(file, encoding="utf-8", xml_declaration=True)
