"""HTML from values. Everything but `Html` is text and gets escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

__all__ = ["Child", "Html", "data_block", "table", "tag"]

VOID = ("br", "img", "meta")


class Html(str):
    """Text that is already markup."""


Child = Html | str | int | float | None | Iterable["Child"]


def tag(name: str, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """An element. In attribute names a last underscore is dropped, others become hyphens; None and False are left out.

    Example:
        >>> tag("p", "a < b", tag("b", 1), class_="note", hidden=True)
        '<p class="note" hidden>a &lt; b<b>1</b></p>'
    """
    own = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{own}>" if name in VOID else f"<{name}{own}>{_inner(children)}</{name}>")


def table(
    head: Sequence[Child], rows: Iterable[Sequence[Child]], caption: str, class_: str | None = None
) -> Html:
    """A table that scrolls on narrow pages; the first cell of a row is its header.

    Cells that are `td` or `th` elements already stay what they are.
    """
    body = [tag("tr", [_cell(cell, first=not i) for i, cell in enumerate(row)]) for row in rows]
    inner = (
        tag("caption", caption),
        tag("thead", tag("tr", [tag("th", cell, scope="col") for cell in head])),
        tag("tbody", body),
    )
    return tag(
        "div",
        tag("table", *inner, class_=class_),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def data_block(identifier: str, value: Any) -> Html:
    """A value for a script to read; nothing in it can end the element."""
    plain = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        plain = plain.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Html(plain), type="application/json", id=identifier)


def _attribute(name: str) -> str:
    return name.removesuffix("_").replace("_", "-")


def _cell(cell: Child, first: bool) -> Html:
    if isinstance(cell, Html) and cell.startswith(("<td", "<th")):
        return cell
    return tag("th", cell, scope="row") if first else tag("td", cell)


def _inner(child: Child) -> Html:
    if child is None:
        return Html()
    if isinstance(child, Html):
        return child
    if isinstance(child, (str, int, float)):
        return Html(escape(str(child)))
    return Html("".join(_inner(one) for one in child))
