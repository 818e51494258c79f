"""docs/errors.md as code: each block of it, and what it should say."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from scdro.cli import main

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$(?:\n^```text\n(.*?)^```$)?", re.M | re.S)


class Block(NamedTuple):
    """Code, and the message it should end with; None for code that should work."""

    code: str
    message: str | None
    is_command: bool

    @property
    def raised(self) -> str | None:
        """The name of the error's type, where the message has one."""
        return None if self.message is None or self.is_command else self.message.split(":")[0]


def blocks(page: str) -> list[Block]:
    found = []
    for language, code, message in BLOCK.findall(page):
        if language == "console":
            command, message = code.split("\n", 1)
            found.append(Block(command.removeprefix("$ scdro "), message.strip(), True))
        else:
            found.append(Block(code, message.strip() or None, False))
    return found


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
