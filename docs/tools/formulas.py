"""Formulas become MathML while the site is built: no script and no network is needed to read them."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

# A function's name and its argument stand apart, unless there is a bracket between.
NAME = re.compile(r"<mi>(log|min|max)</mi>(?!<mo[^>]*>(?:\(|&#x00028;)|</munder>|</mrow></munder>)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)


def on_page_content(page_html: str, /, **_: Any) -> str:
    return FORMULA.sub(rendered, page_html)


def rendered(formula: re.Match[str]) -> str:
    tag, bracket, latex = formula.groups()
    mathml = convert(html.unescape(latex).strip(), display="block" if bracket == "[" else "inline")
    return f'<{tag} class="formula">{NAME.sub(spaced, mathml)}</{tag}>'


def spaced(name: re.Match[str]) -> str:
    return f'{name.group()}<mspace width="0.17em"/>'
