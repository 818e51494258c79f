"""An HTML page, taken apart; elements that are not closed in order are an error."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """Tables by caption, as lists of rows of text; scripts by id; all elements with their attributes; all text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.tables: dict[str, list[list[str]]] = {}
        self.scripts: dict[str | None, str] = {}
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._rows: list[list[str]] = []
        self._inside: list[str] = []
        self._script: str | None = None
        self.feed(self.source)

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name in ("img", "meta", "br"):
            return
        self._inside.append(name)
        if name == "table":
            self._rows, self._caption = [], ""
        elif name == "tr":
            self._rows.append([])
        elif name in ("td", "th"):
            self._rows[-1].append("")
        elif name == "script":
            self._script = dict(attributes).get("id")

    def handle_endtag(self, name):
        assert self._inside.pop() == name, f"{name} closes another element"
        if name == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data):
        inside = set(self._inside)
        if "script" in inside:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
            return
        if "style" in inside:
            return
        self.text += data
        if "caption" in inside:
            self._caption += data
        elif inside & {"td", "th"}:
            self._rows[-1][-1] += data
