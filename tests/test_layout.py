"""The library knows nothing of what is beside it, and what is beside it uses its public names."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def imported(path):
    """Names of the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            yield node.module


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_the_library_imports(path):
    part = path.relative_to(ROOT / "src").parts[1]
    above = {"cli": (), "__main__.py": (), "application": ("scdro.cli",)}.get(part, ("scdro.cli", "scdro.application"))
    for name in imported(path):
        assert name.split(".")[0] not in ("reproduction", "tests", "benchmarks", "examples")
        assert not name.startswith(above or "no module"), f"{path} imports {name}"


def test_what_the_reproduction_imports():
    """Modules with a page in docs/api, and the private ones that its README names."""
    public = {"scdro", *(f"scdro.{page.stem}" for page in (ROOT / "docs" / "api").glob("*.md"))}
    named = re.findall(r"`(scdro\.[\w.]+)`", (ROOT / "reproduction" / "README.md").read_text())
    private = tuple(named)
    for path in (ROOT / "reproduction").rglob("*.py"):
        if "tests" not in path.parts:
            for name in imported(path):
                known = name in public or name.startswith(private) or not name.startswith("scdro")
                assert known, f"{path} imports {name}"
