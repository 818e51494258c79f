"""Scripts of the gallery run, and end in a picture. `make docs` runs all; by default the tests run the quick ones."""

import ast
import re
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "examples" / "gallery").glob("plot_*.py"))
QUICK = ("05", "08", "12", "15")  # one or two seconds each


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=[] if p.name[5:7] in QUICK else pytest.mark.slow, id=p.stem)
        for p in SCRIPTS
    ],
)
def test_it_ends_in_a_picture(path, monkeypatch, tmp_path):
    mpl = pytest.importorskip("matplotlib")
    if "import lightgbm" in path.read_text() or "from lightgbm" in path.read_text():
        pytest.importorskip("lightgbm")
    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.close("all")
    monkeypatch.chdir(tmp_path)
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    assert plt.get_fignums()
    assert any(ax.has_data() for k in plt.get_fignums() for ax in plt.figure(k).axes)
    plt.close("all")


def test_there_are_enough_and_each_is_a_question_or_an_order():
    assert len(SCRIPTS) >= 15
    numbers = [path.name[5:7] for path in SCRIPTS]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_its_form(path):
    """A title in the docstring, sections, and nothing of the paper's experiments."""
    tree = ast.parse(path.read_text())
    title, line, *_ = ast.get_docstring(tree).splitlines()
    assert re.fullmatch("=+", line)
    assert len(line) == len(title)
    assert path.read_text().count("# %%") >= 2
    assert path.read_text().rstrip().endswith("plt.show()")
    imports = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        )
    }  # fmt: skip
    assert "reproduction" not in imports
