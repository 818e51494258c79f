"""What the pages show runs as shown."""

import ast
import re
import runpy
import sys
import tempfile
import warnings
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
    "integrations": (
        "lightning",
        "transformers",
        "accelerate",
        "skorch",
        "trl",
        "torchmetrics",
        "wandb",
        "mlflow",
    ),
    "leaving": ("skl2onnx", "onnxruntime"),
}


RUNNABLE = [
    pytest.param(
        page,
        id=str(page.relative_to(ROOT)),
        marks=[pytest.mark.integration] if page.stem in NEEDS else [],
    )
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


def test_the_recipe_for_rho_never_chooses_a_collapsed_model():
    """Nor one that is only less sure of everything; one that serves the hard samples wins."""
    names = {}
    exec(compile(code(ROOT / "docs" / "rho.md"), "rho.md", "exec"), names)
    # The page's own data: a useful radius is chosen, and a collapsed one refused.
    collapsed = {
        rho
        for rho, found in names["logits"].items()
        if names["has_collapsed"](found, names["values"][rho])
    }
    assert (names["best"], collapsed) == (1.0, {4.0})
    g = torch.Generator().manual_seed(0)
    y = torch.arange(1000) % 2
    hard = torch.arange(1000) % 10 == 0
    sign = 2.0 * torch.nn.functional.one_hot(y, 2) - 1.0
    noise = 2.0 * torch.randn(1000, 2, generator=g)
    plain = sign * torch.where(hard, -2.0, 6.0)[:, None] + noise
    equal_chances = 1e-3 * torch.randn(1000, 2, generator=g)
    one_answer = torch.tensor([1.0, 0.0]) + 1e-3 * noise
    better = sign * torch.where(hard, 2.0, 4.0)[:, None] + noise
    choose = names["choose"]
    assert choose({0.0: plain, 1.0: equal_chances, 2.0: one_answer}, y)[0] == 0.0
    assert choose({0.0: equal_chances, 1.0: one_answer}, y)[0] == 0.0
    best, values = choose({0.0: plain, 0.5: plain / 4, 1.0: better, 2.0: one_answer}, y)
    assert best == 1.0
    assert values[0.5] == pytest.approx(values[0.0], rel=0.02)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem not in NEEDS], ids=lambda page: page.stem
)
def test_pages_import_what_scdro_or_an_extra_brings(page):
    imported = set()
    for node in ast.walk(ast.parse(code(page))):
        if isinstance(node, ast.Import):
            imported |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    brought = {
        "scdro",
        "reproduction",
        "torch",
        "numpy",
        "scipy",
        "sklearn",
        "polars",
        "lightgbm",
        "xgboost",
    }
    assert imported <= brought | sys.stdlib_module_names


def test_links_of_all_pages_resolve():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), (
                f"{page.name} links to {target}, which is not there"
            )


def test_claims_have_the_tests_they_name():
    for page in PAGES:
        for name, target in re.findall(r"\[`(\w+)`\]\(([^)]*\.py)\)", page.read_text()):
            source = (page.parent / target).read_text()
            assert re.search(rf"^(def|class) {name}\b", source, re.M), (
                f"{page.name} names {name}, which is not in {target}"
            )


@pytest.mark.timeout(900)
def test_demo(tmp_path, monkeypatch, capsys):
    """The audit names digits, a person confirms them, and they gain more than by any threshold."""
    monkeypatch.setattr(sys, "argv", ["audit_and_fix.py", "--out", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "audit_and_fix.py"), run_name="__main__")
    assert (tmp_path / "audit_and_fix.png").stat().st_size > 10_000
    assert "digit = " in (tmp_path / "audit.html").read_text()
    shown = capsys.readouterr().out
    confirmed = [int(d) for d in re.findall(r"^  digit = (\d): ", shown, re.M)]
    rows = {name: [float(v) for v in line[20:].split()]
            for name in ("the model", "its best threshold", "fixed")
            for line in shown.splitlines() if line.startswith(f"{name}  ")}  # fmt: skip
    assert set(confirmed) <= {2, 3, 8, 9}
    for digit in confirmed:
        assert rows["the model"][digit] < 50
        assert rows["fixed"][digit] > rows["its best threshold"][digit]
    everybody = -2  # the column of all images
    assert rows["fixed"][everybody] > rows["its best threshold"][everybody] + 2


@pytest.mark.timeout(900)
def test_hidden_digits(tmp_path, monkeypatch, capsys):
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


def test_folder_of_images_example(monkeypatch, capsys, tmp_path):
    pytest.importorskip("PIL")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda: str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["images_folder.py", "--quick"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the given head is kept
        runpy.run_path(str(ROOT / "examples" / "images_folder.py"), run_name="__main__")
    shown = capsys.readouterr().out
    found = re.findall(r"^(as it was|repaired): (\d+)% of 80 test images", shown, re.M)
    assert [name for name, _ in found] == ["as it was", "repaired"]
    assert all(int(accuracy) > 70 for _, accuracy in found)
    assert len(list(tmp_path.rglob("*.png"))) == 240


def test_contrastive_example(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["contrastive_images.py", "--quick"])
    runpy.run_path(str(ROOT / "examples" / "contrastive_images.py"), run_name="__main__")
    rows = [
        line.split("|")
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("| fixed", "| learned"))
    ]
    assert len(rows) == 2
    for _, _, *accuracies, temperatures, _ in rows:
        assert len(accuracies) == 3
        assert all(30 < float(accuracy) <= 100 for accuracy in accuracies)
        assert len(temperatures.split(",")) == 3


def run_quickly(script, tmp_path, monkeypatch, capsys):
    """The table a script prints at smoke scale, a list of its rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(sys, "argv", [script, "--quick"])
    runpy.run_path(str(ROOT / script), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ")
    ]


@pytest.mark.parametrize(
    ("script", "methods", "columns"),
    [
        ("examples/imbalanced_images.py", 5, slice(1, 5)),
        ("examples/text_classification.py", 4, slice(1, 6)),
        ("benchmarks/tabular_groups.py", 8, slice(2, 5)),
    ],
)
def test_example(script, methods, columns, tmp_path, monkeypatch, capsys):
    header, *rows = run_quickly(script, tmp_path, monkeypatch, capsys)
    assert len(rows) == methods
    for row in rows:
        assert len(row) == len(header)
        assert all(0 <= float(cell) <= 100 for cell in row[columns])
    assert max(float(row[columns][0]) for row in rows) > 50, "no method has learnt anything"


def test_every_example_is_on_its_page():
    page = (ROOT / "docs" / "examples.md").read_text()
    assert set(re.findall(r"examples/(\w+\.py)\)", page)) == {
        path.name for path in (ROOT / "examples").glob("*.py")
    }
