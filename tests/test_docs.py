"""What the pages show runs as shown."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def code(page):
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))


@pytest.mark.parametrize("page", [p for p in PAGES if code(p)], ids=lambda p: p.stem)
def test_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(code(page), str(page), "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_of_a_page_resolve(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_demo(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "demo.png"
    monkeypatch.setattr(sys, "argv", ["hidden_digits.py", "--quick", "--out", str(picture)])
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path(str(ROOT / "examples" / "hidden_digits.py"), run_name="__main__")
    assert picture.stat().st_size > 10_000
    table = capsys.readouterr().out
    assert all(name in table for name in ("ERM", "class-balanced", "SCDRO", "hidden", "worst"))
