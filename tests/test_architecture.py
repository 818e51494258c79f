"""Who imports whom, what is loaded when, and how many files a step passes through."""

import ast
import graphlib
import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import scdro
from scdro import SCDRO, KLRobustLoss
from scdro.cli import main

ROOT = Path(__file__).parents[1]


def is_module(name):
    place = ROOT / "src" / name.replace(".", "/")
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def imported(path, when_loaded=False):
    """Names of the modules that a file imports, wherever in it, or only those it imports when it is loaded.

    Of `from scdro.tables import _folder` both modules, and of `from scdro import load` the one
    where `load` is.
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


SOURCES = sorted((ROOT / "src").rglob("*.py"))

# From the mathematics up: a module imports what is below it, or what is in its own package.
LEVELS = [
    {"errors"},
    {"_files", "_html", "_arguments", "_estimators", "_terminal"},
    {"_scalar", "_frames", "_batches"},
    {"auditing"},
    {"_kl", "_validation"},
    {"distributed"},
    {"_sharding", "temperature", "functional"},
    {"_buffers", "_group_metrics", "_plateau"},
    {"_state"},
    {"printed"},
    {"loss", "evaluation", "metrics", "optim", "contrastive", "data"},
    {"linear_model", "boosting"},
    {"fix"},
    {"second_look"},
    {"integrations"},
    {"tables"},
    {"cli"},
    {"__main__", "__init__"},
]


def level(module):
    """Of a module of ours, by the first part of its name below `scdro`."""
    return next(k for k, modules in enumerate(LEVELS) if module in modules)


def test_imports_point_down():
    for path in SOURCES:
        own = path.relative_to(ROOT / "src" / "scdro").parts[0].removesuffix(".py")
        for name in imported(path):
            top, _, below = name.partition(".")
            assert top not in ("reproduction", "tests", "benchmarks", "examples")
            if top != "scdro":
                continue
            if not below:
                assert own in (
                    "__init__",
                    "cli",
                    "tables",
                    "integrations",
                ), f"{path} imports the package's own top"
                continue
            module = below.split(".")[0]
            assert module == own or level(module) < level(own), f"{path} imports {name}"


# The base class of the robust optimizers, for isinstance; what can be asked of a table, for the
# command.
SHARED = {"scdro.optim._base", "scdro.tables._options"}


def test_private_modules_stay_in_their_package():
    for path in SOURCES:
        own = ".".join(path.relative_to(ROOT / "src").parent.parts)
        for name in imported(path):
            package, _, module = name.rpartition(".")
            if module.startswith("_") and package.startswith("scdro.") and name not in SHARED:
                assert own == package or own.startswith(f"{package}."), f"{path} imports {name}"


def test_private_names_stay_in_their_module():
    for path in SOURCES:
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
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{tell}"], capture_output=True, text=True, check=True
    )
    modules = done.stdout.splitlines()[-1].split()
    return {name.split(".")[0] for name in modules}, [
        name for name in modules if name.split(".")[0] == "scdro"
    ]


def test_importing_the_package_loads_nothing_heavy():
    packages, ours = loaded_after("import scdro")
    assert not packages & {"torch", "numpy", "scipy", "sklearn"}
    assert ours == ["scdro"]


def test_an_audit_of_predictions_loads_no_torch():
    packages, _ = loaded_after(
        "import scdro; scdro.audit([0, 1] * 50, [0.4, 0.6] * 50, {'half': [k < 50 for k in"
        " range(100)]})"
    )
    assert "torch" not in packages


def test_what_the_loss_loads():
    packages, ours = loaded_after("from scdro import KLRobustLoss")
    assert not packages & {"scipy", "sklearn", "pandas", "matplotlib"}
    assert len(ours) <= 15


def files_met(call):
    """Files of the library in which `call` runs code."""
    names = set()

    def note(frame, event, _):  # for every call of any package: no more than this
        if event == "call":
            names.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    home, paths = ROOT / "src" / "scdro", map(Path, names)
    return {path.relative_to(home).as_posix() for path in paths if home in path.parents}


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
    assert len(files) <= 5, files


def test_a_step_of_scdro_meets_few_files():
    model, losses = steady_state()
    optimizer = SCDRO(model.parameters(), 0.1, 0.5)
    for _ in range(20):
        optimizer.step(losses)
    files = files_met(lambda: optimizer.step(losses))
    assert {"optim/scdro.py", "optim/_base.py", "_state.py", "temperature.py", "_kl.py"} <= files
    assert len(files) <= 6, files


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A table with a column of predictions, as a CSV file."""
    rng = np.random.default_rng(0)
    p, place = rng.random(600), rng.choice(["land", "water"], 600)
    y = (rng.random(600) < p).astype(int)
    rows = zip(p, place, y, p.round(2), strict=True)
    path = tmp_path_factory.mktemp("scored") / "data.csv"
    path.write_text("x,place,y,p\n" + "".join(f"{a},{b},{c},{d}\n" for a, b, c, d in rows))
    return str(path)


@pytest.mark.parametrize("more", [["--prediction", "p"], ["--drop", "p", "--candidates", "1"]])
def test_an_audit_meets_few_files(scored, more):
    """A column of predictions meets the command, the reader of tables and the audit; a model is learned besides."""
    command = ["audit", scored, "--target", "y", *more]
    main(command)  # the first call imports
    files = files_met(lambda: main(command))
    assert {"cli/__init__.py", "tables/_audit_table.py", "auditing/_audit.py"} <= files
    assert len(files) <= 15, sorted(files)
    assert "auditing/_gate.py" not in files  # the scores for a gate are for those who ask


def test_an_audit_of_a_table_loads_no_torch(scored):
    command = f"['audit', {scored!r}, '--target', 'y', '--candidates', '1']"
    packages, _ = loaded_after(f"from scdro.cli import main; main({command})")
    assert "torch" not in packages
    assert "lightgbm" in packages


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


def definitions(path):
    """(kind, name, value) of every class, function and constant at the top of a file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            yield "class", node.name, ast.dump(node)
        elif isinstance(node, ast.FunctionDef):
            overload = any(ast.unparse(line) == "overload" for line in node.decorator_list)
            if not overload and not node.name.startswith("__"):
                yield "function", node.name, ast.dump(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                if len(names) != len(values):
                    values = [node.value] * len(names)
                for one, value in zip(names, values, strict=True):
                    if isinstance(one, ast.Name) and not one.id.startswith("__"):
                        yield "constant", one.id, ast.dump(value)


# Names of several things, and why that confuses nobody.
SHARED_NAMES = {
    "Array": "an array of any kind; in _scalar, where all are, of float64",
    "main": "the start of the program, which imports the parser only if it needs one",
    "audit": "of predictions, and of the columns of a table; scdro.tables.audit calls the other",
    "is_network": "the same question, with torch and without",
    "_after_loading": "what torch calls when a state has been loaded",
    "_HOMES": "where a package's lazy names are",
}
# Helpers and numbers of one file each, whose name another file uses for something else. When you
# touch one, give it a name of its own and take it off the list; nothing is added to it.
STILL_TWICE = {"ENOUGH", "TINY", "_mean", "_name", "_rows"}
SHARED_FILES = {
    "scdro": "the package, and the algorithm that it is named after",
    "base": "the base classes of a package",
    "page": "the HTML page of a result, for an audit and for a table",
    "verdict": "of a fix; and a table's verdict in words",
    "fix": "the package; and how a table uses it",
}


def test_one_name_is_one_thing():
    """Classes, functions and constants of the library, private ones too; equal constants may repeat."""
    library = {}
    for path in SOURCES:
        for kind, name, value in definitions(path):
            known, where = library.setdefault(name, ((kind, value), path))
            same = where == path or (kind == "constant" and known == (kind, value))
            listed = name in SHARED_NAMES or name in STILL_TWICE
            assert same or listed, f"{name} is in {where} and in {path}"
    for folder in ("reproduction", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for kind, name, _ in definitions(path) if "tests" not in path.parts else ():
                known = library.get(name, (("", ""), path))
                taken = known[0][0] == kind == "class" and not name.startswith("_")
                assert not taken, f"{name} is in {known[1]} and in {path}"


def test_one_file_name_is_one_thing():
    seen = {}
    for path in SOURCES:
        stem = (path.parent if path.stem == "__init__" else path).stem.strip("_")
        if stem not in SHARED_FILES and stem != "main":
            assert seen.setdefault(stem, path) == path, f"{seen[stem]} and {path}"


def test_the_glossary_names_what_exists():
    page = (ROOT / "docs" / "glossary.md").read_text()
    rows = [
        line for line in page.splitlines() if line.startswith("|") and not line.startswith("|-")
    ]
    assert len({row.split("|")[1] for row in rows if row.split("|")[1].strip()}) > 40
    for name in re.findall(r"\| `(scdro[\w.]*)` \|", page):
        module, rest = name, []
        while not is_module(module):
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
        thing = importlib.import_module(module)
        for part in rest:
            assert hasattr(thing, part), name
            thing = getattr(thing, part)


# What only the interior of an object shows.
INNER_STATE = "what a method keeps between batches has no public name"
# Private names that a test imports, replaces or reads, by file (below tests/, or of the
# reproduction), and why it cannot do without.
PRIVATE_IN_TESTS = {
    "auditing/test_audit.py": {"_repr_html_": "IPython's protocol"},
    "auditing/test_lazy.py": {
        "ROWS_CODED_AT_ONCE": "replaced, so that a small table is coded in several parts",
        "as_table": "replaced, to see how many columns are read at once",
    },
    "auditing/test_subgroup.py": {
        "_blend": "the estimates of a given fit, against other formulas",
        "_reliability": "the estimates of a given fit, against other formulas",
    },
    "auditing/test_audit_page.py": {"_repr_html_": "IPython's protocol"},
    "integrations/test_lightning.py": {
        "CHECK_EVERY": "replaced, so that the state's own check never comes first",
        "_note": "called without a Trainer, to see what it refuses",
    },
    "integrations/test_torchmetrics.py": {"_accuracy": "compared by group, before the minimum"},
    "integrations/test_transformers.py": {
        "CHECK_EVERY": "replaced, so that the state's own check never comes first"
    },
    "linear_model/test_exact.py": {
        "LARGEST_DENSE": "replaced, so that a small problem takes the way of a large one",
        "_Path": "one step by itself, to count its products with X",
    },
    "linear_model/test_sklearn.py": {
        "_depth": "whether the limit of BLAS threads is lifted shows nowhere else",
        "_workers": "whether the limit of BLAS threads is lifted shows nowhere else",
    },
    "linear_model/test_stochastic.py": {"_progress": INNER_STATE},
    "optim/test_contracts.py": {
        "_own_state": INNER_STATE,
        "_two_points": "a property of the class",
    },
    "optim/test_identities.py": {"_method_state": INNER_STATE},
    "ranks.py": {"_method_state": INNER_STATE},
    "second_look/test_gallery.py": {
        "_images": "what the page would show, without drawing it",
        "_repr_html_": "IPython's protocol",
    },
    "second_look/test_look_weights.py": {"_tilted": "its root against 50 digits, alone"},
    "second_look/test_second_look.py": {
        "_scores_of": "row by row, to compare with a mean that is public"
    },
    "second_look/test_slices.py": {
        "_rank_in_classes": "ranks within classes, against a literal computation",
        "_join_p_values": "the level of the joined p-value under the null hypothesis, alone",
        "_p_value": "its level under the null hypothesis, alone",
        "_repr_html_": "IPython's protocol",
        "_search": "which half of the samples it is given",
        "_z": "the statistic against a literal computation",
    },
    "tables/test_study.py": {
        "MANY_ROWS": "replaced, so that a small table counts as large",
        "ROWS_FOR_SETTINGS": "replaced, so that a small table counts as large",
        "_repr_html_": "IPython's protocol",
    },
    "test_api_pages.py": {"_MODULES": "the lazy names, which the pages must all have"},
    "test_architecture.py": {"_HOMES": "the lazy names, for who imports whom"},
    "test_buffers.py": {
        "_skips": "replaced, to take the way of an accelerator on a CPU",
        "_undo_on_device": "to take the way of an accelerator on a CPU",
        "_undo_unless": "replaced, to take the way of an accelerator on a CPU",
        "_watched": "hooks that a copy must not share",
    },
    "test_group_metrics.py": {"MOST_DRAWN": "replaced, so that a small table counts as large"},
    "test_kl.py": {"host_reads": "replaced, to take the way of an accelerator on a CPU"},
    "reproduction/tests/baselines/test_dual_variable.py": {
        "_dual": INNER_STATE,
        "_dual_gradient": "its mean over all samples, alone, against the exact gradient",
        "_method_state": INNER_STATE,
    },
    "reproduction/tests/baselines/test_primal_dual.py": {"_dual": INNER_STATE},
    "reproduction/tests/test_commands.py": {"_studies": "what a command line asks for, not run"},
    "reproduction/tests/test_figures.py": {"_costs": "one panel of a figure, without the others"},
    "reproduction/tests/test_results.py": {"_study": "what a command line asks for, not run"},
    "reproduction/tests/test_so_far.py": {"_begin": "a run that was begun and never finished"},
    "reproduction/tests/test_table1_runs.py": {
        "_all_losses": "counted: passes over the data",
        "_job_of": "the work of a run, done while another process waits for it",
        "_jobs": "the work of a run, done while another process waits for it",
        "_kept": "the work of a run, done while another process waits for it",
        "_method_state": INNER_STATE,
        "_settings": "the work of a run, done while another process waits for it",
    },
}


def private_names(folder):
    """Every name with one leading underscore that the files of a folder define, fields of objects included."""
    names = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return {name for name in names if name.startswith("_") and not name.endswith("__")} - {"_"}


OURS = ("scdro", "reproduction")


def is_private_module(name):
    """Whether a file of the library has this name, such as `_models`."""
    return name.startswith("_") and any(path.stem == name for path in SOURCES)


def private_uses(path, known):
    """Names among `known` that a test file imports, reads of something other than self, or replaces.

    A private module is no private name: the tests of a file import from it.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS):
            for alias in node.names:
                if alias.name in known and not is_module(f"{node.module}.{alias.name}"):
                    yield alias.name
        elif isinstance(node, ast.Attribute) and node.attr in known:
            mine = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not mine and not is_module(f"scdro.{node.attr}"):
                yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("setattr", "patch")):
            target = node.args[0] if node.args else None
            if isinstance(target, ast.Name) and is_private_module(target.id):
                yield node.args[1].value
            for text in node.args[:2]:
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    *module, name = text.value.split(".")
                    if name in known or any(part.startswith("_") for part in module):
                        yield name


def test_tests_use_private_names_only_with_a_reason():
    known = private_names("src") | private_names("reproduction")
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "reproduction/tests").rglob("*.py")]:
        file = path.relative_to(ROOT).as_posix().removeprefix("tests/")
        reasons = PRIVATE_IN_TESTS.get(file, {})
        used = set(private_uses(path, known))
        without, unused = used - set(reasons), set(reasons) - used
        assert not without, f"{path} uses {without}: use a public name, or add why not above"
        assert not unused, f"{path} does not use {unused}: take it off the list above"


def test_examples_import_nothing_of_the_reproduction():
    """They are for users, who have only what they installed."""
    for path in (ROOT / "examples").rglob("*.py"):
        assert not [name for name in imported(path) if name.startswith("reproduction")], path


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"]])
def test_help_loads_nothing_heavy(arguments):
    run = f"import scdro.cli\ntry: scdro.cli.main({arguments})\nexcept SystemExit: pass"
    packages, _ = loaded_after(run)
    assert not packages & {"torch", "numpy", "scipy", "sklearn"}


def test_the_quick_tests_leave_out_only_tests_that_exist():
    """A name of NOT_QUICK that no file has would be an old one, whose successor runs each time."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    names = re.search(r"^NOT_QUICK := (.*)$", makefile, re.MULTILINE)[1].split()
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert not {f"test_{name}" for name in names} - files
    assert len(names) > 20
