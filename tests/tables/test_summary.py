"""The example of the summary has the fields of the schema, all of them and no others."""

import json
from pathlib import Path

import pytest

from scdro.tables._summary import FORMAT, Summary, mismatch

EXAMPLE = Path(__file__).parent / "summary_example.json"


def test_the_example_is_a_summary():
    example = json.loads(EXAMPLE.read_text())
    assert mismatch(example, Summary) is None
    assert example["format"] == FORMAT


@pytest.mark.parametrize(
    "path", [("verdict", "kept"), ("data", "rows"), ("methods", 0, "scores"), ("settings", "rho")]
)
def test_a_wrong_field_is_seen(path):
    example = json.loads(EXAMPLE.read_text())
    inner = example
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = [None]
    assert mismatch(example, Summary) is not None
    del inner[path[-1]]
    assert mismatch(example, Summary) is not None
