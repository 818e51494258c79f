"""What the pages show runs as shown."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "reproduction" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def code(page):
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))


NEEDS = {
    "integrations": ("lightning", "transformers", "accelerate", "skorch", "trl", "torchmetrics", "wandb", "mlflow")
}


RUNNABLE = [
    pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.integration] if page.stem in NEEDS else [])
    for page in PAGES
    if code(page) and page != ROOT / "docs" / "errors.md"  # test_errors.py runs it
]


@pytest.mark.parametrize("page", RUNNABLE)
def test_code_of_a_page_runs(page, tmp_path, monkeypatch):
    for package in NEEDS.get(page.stem, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(code(page), str(page), "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_of_a_page_resolve(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_claims_have_the_tests_they_name(page):
    for name, target in re.findall(r"\[`(\w+)`\]\(([^)]*\.py)\)", page.read_text()):
        source = (page.parent / target).read_text()
        assert re.search(rf"^(def|class) {name}\b", source, re.M), f"{page.name} names {name}, which is not in {target}"


@pytest.mark.timeout(900)
def test_demo(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "demo.png"
    monkeypatch.setattr(sys, "argv", ["hidden_digits.py", "--seeds", "1", "--out", str(picture)])
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path(str(ROOT / "examples" / "hidden_digits.py"), run_name="__main__")
    assert picture.stat().st_size > 10_000
    shown = capsys.readouterr().out
    rows = {name: line.split() for name in ("plain", "worst case", "second look", "digits known")
            for line in shown.splitlines() if line.startswith(name + "  ")}  # fmt: skip
    worst = {name: float(row[len(name.split()) + 2]) for name, row in rows.items()}
    assert worst["plain"] < worst["second look"]
    assert len(worst) == 4
    assert re.search(r"^digit = [2389]: ", shown, re.M)


@pytest.mark.timeout(900)
def test_network_example(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "network.png"
    monkeypatch.setattr(sys, "argv", ["hidden_digits_network.py", "--quick", "--out", str(picture)])
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path(str(ROOT / "examples" / "hidden_digits_network.py"), run_name="__main__")
    assert picture.stat().st_size > 10_000
    table = capsys.readouterr().out
    assert all(name in table for name in ("ERM", "class-balanced", "SCDRO", "hidden", "worst"))


def test_contrastive_example(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["contrastive_images.py", "--quick"])
    runpy.run_path(str(ROOT / "examples" / "contrastive_images.py"), run_name="__main__")
    rows = [
        line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith(("| fixed", "| learned"))
    ]
    assert len(rows) == 2
    for _, _, *accuracies, temperatures, _ in rows:
        assert len(accuracies) == 3
        assert all(30 < float(accuracy) <= 100 for accuracy in accuracies)
        assert len(temperatures.split(",")) == 3


def run_quickly(name, tmp_path, monkeypatch, capsys):
    """The table an example prints at smoke scale, a list of its rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(sys, "argv", [name, "--quick"])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


@pytest.mark.parametrize(
    ("name", "methods", "columns"),
    [
        ("imbalanced_images.py", 5, slice(1, 5)),
        ("text_classification.py", 4, slice(1, 6)),
        ("tabular_groups.py", 8, slice(2, 5)),
    ],
)
def test_example(name, methods, columns, tmp_path, monkeypatch, capsys):
    header, *rows = run_quickly(name, tmp_path, monkeypatch, capsys)
    assert len(rows) == methods
    for row in rows:
        assert len(row) == len(header)
        assert all(0 <= float(cell) <= 100 for cell in row[columns])
    assert max(float(row[columns][0]) for row in rows) > 50, "no method has learnt anything"


def test_every_example_is_on_its_page():
    page = (ROOT / "docs" / "examples.md").read_text()
    assert set(re.findall(r"examples/(\w+\.py)\)", page)) == {path.name for path in (ROOT / "examples").glob("*.py")}
