"""The API pages: every public name, no other, each with an example that runs."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import scdro

ROOT = Path(__file__).parents[1]
PAGES = {page.stem: page for page in (ROOT / "docs" / "api").glob("*.md") if page.stem != "index"}
# Their packages are not here; only the source is read.
OPTIONAL = [name for name in PAGES if name.startswith("integrations.")]
IMPORTED = sorted(set(PAGES) - set(OPTIONAL))


def module_of(page):
    return "scdro" if page == "scdro" else f"scdro.{page}"


def documented(page):
    """Names with a description of their own, and those that lead to one on another page, with its address."""
    text = PAGES[page].read_text()
    own = re.findall(rf"^::: {re.escape(module_of(page))}\.(\w+)$", text, re.M)
    assert len(own) == len(re.findall(r"^::: ", text, re.M)), (
        f"{page}: a description of another module's name"
    )
    return own, dict(re.findall(r"\[`(\w+)`\]\[([\w.]+)\]", text))


@pytest.mark.parametrize("page", IMPORTED)
def test_a_page_has_every_public_name(page):
    module = importlib.import_module(module_of(page))
    own, elsewhere = documented(page)
    assert len(set(own)) == len(own)
    assert {*own, *elsewhere} == set(module.__all__)
    for name, address in elsewhere.items():
        where, _, there = address.rpartition(".")
        assert getattr(importlib.import_module(where), there) is getattr(module, name)
        assert there in documented(where.removeprefix("scdro.") if where != "scdro" else "scdro")[0]


@pytest.mark.parametrize("page", OPTIONAL)
def test_a_page_of_an_optional_package_has_every_public_name(page):
    tree = ast.parse((ROOT / "src" / (module_of(page).replace(".", "/") + ".py")).read_text())
    assigned = {
        ast.unparse(node.targets[0]): node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
    }
    own, elsewhere = documented(page)
    assert set(own) == set(ast.literal_eval(assigned["__all__"]))
    assert not elsewhere
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in own:
            assert ">>>" in ast.get_docstring(node), f"{node.name} has no example"


@pytest.mark.parametrize("page", IMPORTED)
def test_every_public_name_has_an_example(page):
    for name in documented(page)[0]:
        value = getattr(importlib.import_module(module_of(page)), name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue  # a table or a type; a string below it in the source is its description
        found = inspect.getdoc(value) or ""
        assert ">>>" in found, f"{module_of(page)}.{name} has no example"


def test_every_public_module_has_a_page():
    """Packages and modules with names of their own that `import scdro` offers, and all that the pages import from."""
    index = (ROOT / "docs" / "api" / "index.md").read_text()
    assert set(re.findall(r"\]\(([\w.]+)\.md\)", index)) == set(PAGES)
    assert {"scdro", *OPTIONAL, *scdro._MODULES} - {"loss"} == set(PAGES)
    private = ("scdro.cli",)
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for module in re.findall(r"^\s*from (scdro[\w.]*) import", page.read_text(), re.M):
            assert module.startswith(private) or module.removeprefix("scdro.") in PAGES, (
                f"{page.name}: {module}"
            )
