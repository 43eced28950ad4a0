"""Pages as trees of elements."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from vertizo.lab.report import read, render

VOID = {"meta", "input", "br", "link", "hr", "img"}


@dataclass
class Element:
    """An element of a page."""

    tag: str
    attributes: dict[str, str | None]
    parent: Element | None
    pieces: list[str | Element] = field(default_factory=list)

    @property
    def children(self) -> list[Element]:
        return [piece for piece in self.pieces if isinstance(piece, Element)]

    @property
    def own(self) -> str:
        """The text that is in it and in no element in it, as it is."""
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    @property
    def text(self) -> str:
        """All text in it, white space made single."""
        return " ".join(self._text().split())

    def _text(self) -> str:
        return "".join(p if isinstance(p, str) else p._text() for p in self.pieces)

    def all(self, tag: str, **wanted: str) -> list[Element]:
        """Elements in it, with these attributes; ``class_`` stands for one class of several."""
        found = []
        for child in self.children:
            if child.tag == tag and all(child.has(key, value) for key, value in wanted.items()):
                found.append(child)
            found += child.all(tag, **wanted)
        return found

    def has(self, key: str, value: str) -> bool:
        """Whether an attribute has this value."""
        if key == "class_":
            return value in (self.attributes.get("class") or "").split()
        return self.attributes.get(key.replace("_", "-")) == value

    def one(self, tag: str, **wanted: str) -> Element:
        """The only such element."""
        (found,) = self.all(tag, **wanted)
        return found

    def rows(self) -> list[dict[str, Element]]:
        """Of the one table in it: the cells of each line of its body, by their headings."""
        heads = [head.text for head in self.one("thead").all("th")]
        lines = self.one("tbody").all("tr")
        return [dict(zip(heads, line.children, strict=True)) for line in lines]


class Parser(HTMLParser):
    """Makes a tree; every element must be closed where it was opened."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self.here = Element("", {}, None)
        self.declared = ""

    def handle_decl(self, decl: str) -> None:
        self.declared = decl

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs), self.here)
        self.here.pieces.append(element)
        if tag not in VOID:
            self.here = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.here.tag == tag, f"</{tag}> where <{self.here.tag}> is open"
        assert self.here.parent is not None
        self.here = self.here.parent

    def handle_data(self, data: str) -> None:
        self.here.pieces.append(data)


def parsed(html: str) -> Element:
    """A page as a tree."""
    parser = Parser()
    parser.feed(html)
    parser.close()
    assert parser.declared == "doctype html"
    assert parser.here is parser.root, f"<{parser.here.tag}> was never closed"
    return parser.root


def page_of(*folders: Path) -> Element:
    """The page about these folders."""
    return parsed(render(read(folders)))
