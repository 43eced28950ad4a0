"""HTML for notebooks: paragraphs and tables in which every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def paragraphs(said: Iterable[tuple[str, str]]) -> str:
    """Texts, each behind its name in bold; without a name, a text stands alone."""
    named = ((f"<b>{escape(name)}.</b> " if name else "", escape(text)) for name, text in said)
    return "".join(f'<p style="max-width:45em">{name}{text}</p>' for name, text in named)


def table(rows: Iterable[Sequence[str]], headings: Sequence[str] = (), caption: str = "") -> str:
    """A table whose first column holds names; where it is too wide, it scrolls by itself."""
    left = 'style="text-align:left;padding:2px 8px"'
    right = 'style="text-align:right;padding:2px 8px;white-space:nowrap"'

    def line(cells: Sequence[str], kind: str) -> str:
        first, *others = map(escape, cells)
        rest = "".join(f"<{kind} {right}>{cell}</{kind}>" for cell in others)
        return f"<tr><th {left}>{first}</th>{rest}</tr>"

    head = f"<thead>{line(headings, 'th')}</thead>" if headings else ""
    title = f"<caption {left}>{escape(caption)}</caption>" if caption else ""
    body = "".join(line(cells, "td") for cells in rows)
    return f'<div style="overflow-x:auto"><table>{title}{head}<tbody>{body}</tbody></table></div>'


def folded(name: str, html: str) -> str:
    """HTML that is folded away and shown once its name is clicked."""
    return f"<details><summary>{escape(name)}</summary>{html}</details>"
