"""What narrow screens need: options that do not break at their hyphens, and images that can be enlarged."""

from __future__ import annotations

import re
from typing import Any

BLOCK = re.compile(r"(<pre\b.*?</pre>)", re.S)
CODE = re.compile(r"(?<=<code>)[^<]*(?=</code>)")
OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
IMAGE = re.compile(r'(?:<a\b[^>]*>)?(<img\b[^>]*?\bsrc="([^"]+)"[^>]*>)(?:</a>)?')


def on_page_content(page_html: str, /, **_: Any) -> str:
    parts = BLOCK.split(page_html)
    parts[::2] = [CODE.sub(whole_options, part) for part in parts[::2]]
    return IMAGE.sub(r'<a class="image" href="\2">\1</a>', "".join(parts))


def whole_options(code: re.Match[str]) -> str:
    return OPTION.sub(r'<span class="whole">\g<0></span>', code.group())
