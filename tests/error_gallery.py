"""docs/errors.md as code: each block of it, and what it should say."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import runpy
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from scdro.cli import main

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "errors.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$(?:\n^```text\n(.*?)^```$)?", re.M | re.S)


class Block(NamedTuple):
    """Code, the message it should end with, None for code that should work, and the words above it."""

    code: str
    message: str | None
    is_command: bool
    heading: str = ""

    @property
    def raised(self) -> str | None:
        """The name of the error's type, where the message has one."""
        return None if self.message is None or self.is_command else self.message.split(":")[0]


def blocks(page: str) -> list[Block]:
    found, end, heading = [], 0, ""
    for match in BLOCK.finditer(page):
        language, code, message = match.groups(default="")
        heading = page[end : match.start()].strip() or heading
        end = match.end()
        if language == "console":
            command, message = code.split("\n", 1)
            found.append(Block(command.removeprefix("$ scdro "), message.strip(), True, heading))
        else:
            found.append(Block(code, message.strip() or None, False, heading))
    return found


def templates() -> list[str]:
    """Of all messages in the source, with ... for what came."""
    listed = runpy.run_path(str(DOCS / "tools" / "messages.py"))
    trees = (ast.parse(path.read_text()) for path in listed["SOURCE"].rglob("*.py"))
    return [message for tree in trees for _, message in listed["raised"](tree)]


def template_of(block: Block, known: Iterable[str]) -> str | None:
    """That which says most of the message; one that says next to nothing fits all."""
    message = (block.message or "").split(": ", 1)[-1]
    said = {each: len(each.replace("...", "")) for each in known}
    fitting = [each for each, size in said.items() if size >= 20 and agrees(each, message)]
    return max(fitting, key=lambda each: said[each], default=message or None)


def out_of(block: Block) -> str | None:
    """The folder that a command writes to."""
    words = shlex.split(block.code) if block.is_command else []
    return words[words.index("--out") + 1] if "--out" in words else None


def under_two_headings(found: Iterable[Block], key: Callable[[Block], str | None]) -> list[str]:
    """What blocks under different words have in common, and should not."""
    headings: defaultdict[str | None, set[str]] = defaultdict(set)
    for block in found:
        headings[key(block)].add(block.heading)
    return [f"{name}: {sorted(where)}" for name, where in headings.items() if name is not None and len(where) > 1]


def outcome(block: Block, names: dict[str, object]) -> str | None:
    """What a block ends with, on the screen or as an exception."""
    if block.is_command:
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            status = main(shlex.split(block.code))
        assert status == 1, f"scdro {block.code} ended with {status}: {said.getvalue()}"
        return said.getvalue().strip()
    try:
        exec(compile(block.code, str(PAGE), "exec"), names)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def agrees(expected: str, got: str) -> bool:
    """Line breaks mean nothing, and ... stands for anything."""
    pattern = re.escape(" ".join(expected.split())).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, " ".join(got.split())) is not None
