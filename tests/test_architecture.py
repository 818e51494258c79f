"""Who imports whom, what is loaded when, and how many files a step passes through."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import scdro
from scdro import SCDRO, KLRobustLoss

ROOT = Path(__file__).parents[1]


def is_module(name):
    place = ROOT / "src" / name.replace(".", "/")
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def imported(path, when_loaded=False):
    """Names of the modules that a file imports, wherever in it, or only those it imports when it is loaded.

    Of `from scdro.tables import _folder` both modules, and of `from scdro import load` the one where `load` is.
    """
    tree = ast.parse(path.read_text())
    for node in tree.body if when_loaded else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            yield node.module
            for alias in node.names:
                if is_module(f"{node.module}.{alias.name}"):
                    yield f"{node.module}.{alias.name}"
                elif node.module == "scdro" and alias.name in scdro._HOMES:
                    yield f"scdro.{scdro._HOMES[alias.name]}"


# From the mathematics up: a module imports what is below it, or what is in its own package.
LEVELS = [
    {"errors"},
    {"_files"},
    {"_scalar", "_frames"},
    {"_kl", "_validation"},
    {"distributed"},
    {"_sharding", "temperature", "functional"},
    {"_buffers", "_group_metrics", "_plateau"},
    {"_state"},
    {"loss", "evaluation", "metrics", "optim", "contrastive", "data"},
    {"linear_model", "boosting"},
    {"second_look"},
    {"integrations"},
    {"tables"},
    {"cli"},
    {"__main__", "__init__"},
]


def level(module):
    """Of a module of ours, by the first part of its name below `scdro`."""
    return next(k for k, modules in enumerate(LEVELS) if module in modules)


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    own = path.relative_to(ROOT / "src" / "scdro").parts[0].removesuffix(".py")
    for name in imported(path):
        top, _, below = name.partition(".")
        assert top not in ("reproduction", "tests", "benchmarks", "examples")
        if top != "scdro":
            continue
        if not below:
            assert own in ("__init__", "cli", "tables", "integrations"), f"{path} imports the package's own top"
            continue
        module = below.split(".")[0]
        assert module == own or level(module) < level(own), f"{path} imports {name}"


# The base class of the robust optimizers, for isinstance; the exact solver of a network's last layer, for repair; how a
# table is told, for the command.
SHARED = {"scdro.optim._base", "scdro.linear_model._head_solver", "scdro.tables._summary"}


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_private_modules_stay_in_their_package(path):
    own = ".".join(path.relative_to(ROOT / "src").parent.parts)
    for name in imported(path):
        package, _, module = name.rpartition(".")
        if module.startswith("_") and package.startswith("scdro.") and name not in SHARED:
            assert own == package or own.startswith(f"{package}."), f"{path} imports {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_private_names_stay_in_their_module(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "scdro":
            for alias in node.names:
                private = alias.name.startswith("_") and not alias.name.startswith("__")
                assert not private or is_module(f"{node.module}.{alias.name}"), (
                    f"{path} imports {alias.name} of {node.module}"
                )


def test_no_package_imports_in_circles():
    """Between single files too: each can be read after the ones that it imports, and no others."""
    files = {}
    for path in (ROOT / "src").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        if not name.endswith("__init__"):
            files[name] = set(imported(path, when_loaded=True))
    order = graphlib.TopologicalSorter({name: needs & set(files) for name, needs in files.items()})
    assert len(list(order.static_order())) == len(files)


def loaded_after(code):
    """Top-level packages, and modules of ours, that a fresh interpreter has after running `code`."""
    tell = "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{tell}"], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    return {name.split(".")[0] for name in modules}, [name for name in modules if name.split(".")[0] == "scdro"]


def test_importing_the_package_loads_nothing_heavy():
    packages, ours = loaded_after("import scdro")
    assert not packages & {"torch", "numpy", "scipy", "sklearn"}
    assert ours == ["scdro"]


def test_what_the_loss_loads():
    packages, ours = loaded_after("from scdro import KLRobustLoss")
    assert not packages & {"scipy", "sklearn", "pandas", "matplotlib"}
    assert len(ours) <= 15


def files_met(call):
    """Files of the library in which `call` runs code."""
    files = set()

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and (ROOT / "src" / "scdro") in path.parents:
            files.add(path.relative_to(ROOT / "src" / "scdro").as_posix())

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def steady_state():
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(5, 2), torch.randn(64, 5), torch.randint(2, (64,))
    return model, lambda: cross_entropy(model(x), y, reduction="none")


def test_a_batch_through_the_loss_meets_few_files():
    _, losses = steady_state()
    robust = KLRobustLoss(0.5)
    for _ in range(20):
        robust(losses())
    batch = losses()
    files = files_met(lambda: robust(batch))
    assert {"loss.py", "_state.py", "temperature.py", "_kl.py"} <= files
    assert len(files) <= 7, files


def test_a_step_of_scdro_meets_few_files():
    model, losses = steady_state()
    optimizer = SCDRO(model.parameters(), 0.1, 0.5)
    for _ in range(20):
        optimizer.step(losses)
    files = files_met(lambda: optimizer.step(losses))
    assert {"optim/scdro.py", "optim/_base.py", "_state.py", "temperature.py", "_kl.py"} <= files
    assert len(files) <= 8, files


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


def public_classes(folder):
    """(name, path) of every class in a folder but private ones and those of its tests."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.parse(path.read_text()).body if "tests" not in path.parts else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, path


def test_one_name_is_one_thing():
    library = {}
    for name, path in public_classes("src/scdro"):
        assert library.setdefault(name, path) == path, f"{name} is in {library[name]} and in {path}"
    for name, path in (*public_classes("reproduction"), *public_classes("benchmarks")):
        assert name not in library, f"{name} is in {library[name]} and in {path}"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"]])
def test_help_loads_nothing_heavy(arguments):
    run = f"import scdro.cli\ntry: scdro.cli.main({arguments})\nexcept SystemExit: pass"
    packages, _ = loaded_after(run)
    assert not packages & {"torch", "numpy", "scipy", "sklearn"}
