"""What narrow screens need: options that do not break at their hyphens, and images that can be enlarged."""

from __future__ import annotations

import re
from typing import Any

WRAPPED = '<div class="language-text highlight">'  # by site.css; other blocks scroll
BLOCK = re.compile(rf"((?:{WRAPPED})?<pre\b.*?</pre>)", re.S)
INLINE = re.compile(r"(?<=<code>)[^<]*(?=</code>)")
TEXT = re.compile(r"(?<=>)[^<]+")
OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
IMAGE = re.compile(r'(?:<a\b[^>]*>)?(<img\b[^>]*?\bsrc="([^"]+)"[^>]*>)(?:</a>)?')


def on_page_content(page_html: str, /, **_: Any) -> str:
    parts = [with_whole_options(part) for part in BLOCK.split(page_html)]
    return IMAGE.sub(r'<a class="image" href="\2">\1</a>', "".join(parts))


def with_whole_options(part: str) -> str:
    if part.startswith("<pre"):
        return part
    return (TEXT if part.startswith(WRAPPED) else INLINE).sub(whole, part)


def whole(code: re.Match[str]) -> str:
    return OPTION.sub(r'<span class="whole">\g<0></span>', code.group())
