"""The conda recipe says what pyproject.toml says, and the groups install what their commands load."""

import re
import sys
from pathlib import Path

import jinja2
import pytest

import scdro

ROOT = Path(__file__).parents[1]
if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

EVERYTHING = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = EVERYTHING["project"]
RECIPE = (
    jinja2.Environment(undefined=jinja2.StrictUndefined)
    .from_string((ROOT / "packaging" / "conda" / "meta.yaml").read_text())
    .render(PYTHON="python", python_min="3.10")
)
CONDA_NAMES = {"torch": "pytorch"}


def requirements(section):
    """Lines of a list under `requirements`, with its comments and spaces removed."""
    block = re.search(rf"^  {section}:\n((?:    - .*\n)+)", RECIPE, re.M)[1]
    return {line.strip()[2:].replace(" ", "") for line in block.splitlines()}


def test_it_needs_what_the_wheel_needs():
    ours = set()
    for line in PROJECT["dependencies"]:
        name = re.match(r"[\w-]+", line)[0]
        ours.add(CONDA_NAMES.get(name, name) + line[len(name) :])
    assert requirements("run") == ours | {f"python{PROJECT['requires-python']}"}


def test_version_and_command():
    assert f"\n  version: {scdro.__version__}\n" in RECIPE
    assert f"- scdro = {PROJECT['scripts']['scdro']}" in RECIPE
    assert f"license: {PROJECT['license']}" in RECIPE


def test_it_is_yaml():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load(RECIPE)
    assert set(recipe) == {
        "package", "source", "build", "requirements", "test", "about", "extra",
    }  # fmt: skip


def test_the_docs_can_load_what_they_describe():
    """The site is built in a clean clone: `docs/api/tables.md` needs what `scdro.tables` needs."""
    assert "scdro[tables]" in EVERYTHING["dependency-groups"]["docs"]
