"""Put built pages into a site of versions: python docs/publish.py SITE BUILT NAME URL."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

LATEST = "latest"
"""The folder of the main branch."""


def publish(site: Path, built: Path, name: str, url: str) -> None:
    """Replace one version's folder; readers of the site itself get the newest release.

    ``versions.json`` is what each page's menu of versions reads.
    """
    if name != LATEST and not re.fullmatch(r"\d+(\.\d+)+", name):
        raise SystemExit(f"{name!r} is neither {LATEST} nor a version such as 1.2.0")
    site.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(site / name, ignore_errors=True)
    shutil.copytree(built, site / name, ignore=shutil.ignore_patterns(".*"))
    releases = [path.parent.name for path in site.glob("[0-9]*/index.html")]
    releases.sort(key=lambda each: [int(part) for part in each.split(".")], reverse=True)
    names = [LATEST] * (site / LATEST / "index.html").is_file() + releases
    shown = (releases or names)[0]
    files = {
        "versions.json": json.dumps(names),
        ".nojekyll": "",
        "index.html": f'<!doctype html><meta charset="utf-8"><title>Vertizo</title>'
        f'<meta http-equiv="refresh" content="0; url={shown}/"><a href="{shown}/">Vertizo</a>',
        "sitemap.xml": '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<sitemapindex xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
        f"<sitemap><loc>{url.rstrip('/')}/{shown}/sitemap.xml</loc></sitemap></sitemapindex>\n",
    }
    for file, text in files.items():
        (site / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
