"""An audit of predictions needs no torch: neither loaded where it is installed, nor installed.

Each test runs a fresh interpreter, in which an import of torch fails as if it were not installed.
"""

import subprocess
import sys

import numpy as np
import pytest

BLOCK = """
import importlib.metadata, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
version = importlib.metadata.version

def version_without_torch(name):
    if name == "torch":
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

importlib.metadata.version = version_without_torch
"""


def run_without_torch(code):
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code], capture_output=True, text=True, timeout=120
    )


def run_command(*words):
    return run_without_torch(f"from scdro.cli import main\nsys.exit(main({list(map(str, words))}))")


@pytest.fixture
def scored(tmp_path):
    """A table with a column of predictions that are too low for people over 50."""
    rng = np.random.default_rng(0)
    age, p = rng.integers(20, 60, 3000), rng.uniform(0.1, 0.5, 3000)
    y = rng.random(3000) < np.where(age > 50, 0.9, p)
    path = tmp_path / "scored.csv"
    np.savetxt(path, np.c_[age, y, p], "%g", ",", header="age,y,p", comments="")
    return path


def test_the_block_works():
    assert run_without_torch("import torch").returncode != 0


def test_an_audit_of_predictions():
    done = run_without_torch(
        "import scdro; audit = scdro.audit([0, 1] * 50, [0.4, 0.6] * 50,"
        " {'half': [k < 50 for k in range(100)]}); audit.check('accuracy < 0.7');"
        " print(audit.to_json()); print(audit._repr_html_())"
    )
    assert done.returncode == 0, done.stderr
    assert '"accuracy": 1.0' in done.stdout


def test_the_command_on_a_column_of_predictions(scored, tmp_path):
    page = tmp_path / "audit.html"
    done = run_command("audit", scored, "--target", "y", "--prediction", "p", "--out", page)
    assert done.returncode == 0, done.stderr
    assert "age > 5" in done.stdout
    assert "age &gt; 5" in page.read_text()
    broken = run_command(
        "audit", scored, "--target", "y", "--prediction", "p", "--fail-if", "gap > 0.1"
    )
    assert broken.returncode == 3


def test_a_page_without_jinja_is_refused_before_the_audit(scored):
    code = (
        "import sys\nsys.modules['jinja2'] = None\nfrom scdro.cli import main\n"
        f"sys.exit(main(['audit', {str(scored)!r}, '--target', 'y', '--prediction', 'p', '--out', 'page.html']))"
    )
    done = run_without_torch(code)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install jinja2" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_loads_no_torch_where_it_is_installed(scored):
    code = (
        "import sys\nfrom scdro.cli import main\n"
        f"main(['audit', {str(scored)!r}, '--target', 'y', '--prediction', 'p'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["KLRobustLoss", "SCDRO", "SecondLook", "optim"])
def test_other_names_say_what_to_install(name):
    done = run_without_torch(f"import scdro; scdro.{name}")
    assert f"scdro.{name} needs torch" in done.stderr
    assert "pip install torch" in done.stderr


def test_an_audit_of_trees_that_are_trained_needs_none(scored):
    done = run_command("audit", scored, "--target", "y", "--candidates", "1")
    assert done.returncode == 0, done.stderr


def test_other_commands_say_what_to_install(scored, tmp_path):
    for words in (
        ["audit", scored, "--target", "y", "--model", "linear"],
        ["train", scored, "--target", "y", "--out", tmp_path / "run"],
    ):
        done = run_command(*words)
        assert done.returncode == 1
        assert "pip install torch" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_doctor_runs_and_names_it():
    done = run_command("doctor")
    assert "not run: it needs torch" in done.stdout
    assert "Traceback" not in done.stderr
