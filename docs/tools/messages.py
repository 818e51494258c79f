"""Every message of every error, read from the source."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "scdro"
MARK = "<!-- all messages -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARK, listed()) if MARK in markdown else markdown


def listed() -> str:
    """A section for each type of error."""
    ours = {node.name for node in ast.parse((SOURCE / "errors.py").read_text()).body if isinstance(node, ast.ClassDef)}
    by_type: defaultdict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for name, message in raised(ast.parse(path.read_text())):
            if name in ours:
                by_type[name].add(message)
    return "\n\n".join(
        f"### {name}\n\n" + "\n".join(f"- {escaped(message)}" for message in sorted(messages))
        for name, messages in sorted(by_type.items())
    )


def raised(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Type and message of each `raise Type("message")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            for text in node.exc.args[:1]:
                parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                yield node.exc.func.id, "".join(str(p.value) if isinstance(p, ast.Constant) else "..." for p in parts)


def escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_[]<>$|#" else c for c in text)
