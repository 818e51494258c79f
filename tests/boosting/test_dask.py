"""The worst case over all workers of a Dask cluster."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not (find_spec("dask") and find_spec("pyarrow")), reason="needs dask[dataframe]"
    ),
]
PROGRAM = Path(__file__).with_name("dask_cluster.py")


@pytest.mark.parametrize(
    "scenarios", [["equal"], ["medians", "function", "estimator"], ["killed"]], ids=" ".join
)
def test_on_two_workers(scenarios):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *scenarios],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == [f"done {' '.join(scenarios)}"], done.stderr[-3000:]
