"""An HTML page, read: its elements with their attributes, texts and parents."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Dict, List, Optional, Tuple

# Elements that have no end.
_VOID = {"meta", "link", "img", "br", "hr", "input", "base"}


class Element:
    def __init__(self, name: str, attributes: Dict[str, str], parent: Optional[Element]) -> None:
        self.name, self.attributes, self.parent, self.text = name, attributes, parent, ""

    def inside(self, name: str) -> bool:
        return self.parent is not None and (self.parent.name == name or self.parent.inside(name))


class Page(HTMLParser):
    """``elements`` in the order of the page; a text belongs to all elements around it; one left open is an error."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: List[Element] = []
        self.comments: List[str] = []
        self._open: List[Element] = []
        self.feed(source)
        self.close()
        assert not self._open, [element.name for element in self._open]

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, self._open[-1] if self._open else None)
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1].name == tag, (
            f"</{tag}> in {self._open[-1].name if self._open else 'nothing'}"
        )
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def named(self, name: str) -> List[Element]:
        return [element for element in self.elements if element.name == name]
