"""results/index.json, and which results are older than the code that they depend on."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import stale

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "reproduction" / "README.md"]


class Clone:
    """A repository with two sources, and a result of one of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q")
        for name in ("a.py", "b.py"):
            (root / name).write_text("1\n")
        (root / "results").mkdir()
        entry = {"command": "python a.py", "commit": "", "sources": ["own"]}
        stale.index_of(root).write_text(
            json.dumps({"groups": {"own": ["a.py"]}, "results": {"table": entry}})
        )
        self.commit("first")
        stale.made(root, "table")

    def git(self, *words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(self.root), *who, *words], check=True, capture_output=True, text=True
        ).stdout

    def commit(self, subject: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)
        return self.git("rev-parse", "HEAD").strip()

    def changed(self) -> list[str] | None:
        (result,) = stale.read_index(self.root)
        return stale.changed_sources(self.root, result)


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


def test_a_result_is_stale_once_its_code_changes_and_not_after_a_new_run(clone, capsys):
    assert clone.changed() == []
    assert stale.main([], clone.root) == 0
    (clone.root / "a.py").write_text("2\n")
    clone.commit("another a")
    assert clone.changed() == ["a.py"]
    assert stale.main([], clone.root) == 1
    assert "a.py" in capsys.readouterr().out
    stale.main(["--made", "table"], clone.root)
    assert clone.changed() == []


def test_other_files_do_not_make_a_result_stale(clone):
    (clone.root / "b.py").write_text("2\n")
    clone.commit("another b")
    assert clone.changed() == []


def test_words_alone_do_not_make_a_result_stale(clone):
    (clone.root / "a.py").write_text('"""What it is."""\n\n1  # one\n')
    clone.commit("words")
    assert clone.changed() == []
    (clone.root / "a.py").write_text('"""What it is."""\n\n1 + 1  # one\n')
    clone.commit("code")
    assert clone.changed() == ["a.py"]


def test_a_run_of_an_older_commit_stays_stale(clone):
    before = clone.commit("index")
    (clone.root / "a.py").write_text("2\n")
    clone.commit("another a")
    stale.main(["--made", "table", "--commit", before], clone.root)
    assert clone.changed() == ["a.py"]


def test_an_unknown_commit_is_not_taken_for_up_to_date(clone):
    index = stale.index_of(clone.root)
    index.write_text(
        index.read_text().replace(
            json.loads(index.read_text())["results"]["table"]["commit"], "0" * 12
        )
    )
    assert clone.changed() is None
    assert stale.main([], clone.root) == 1


def test_a_run_of_changed_code_belongs_to_no_commit(clone):
    before = stale.index_of(clone.root).read_text()
    (clone.root / "a.py").write_text("2\n")
    with pytest.raises(SystemExit, match=r"a\.py"):
        stale.made(clone.root, "table")
    with pytest.raises(SystemExit, match="tables"):
        stale.made(clone.root, "tables")
    assert stale.index_of(clone.root).read_text() == before


# -- this repository's own
# ---------------------------------------------------------------------------------------------

RESULTS = stale.read_index(ROOT)


def test_every_result_is_in_the_index_and_has_a_table():
    folders = {path.name for path in (ROOT / "results").iterdir()} - {"index.json"}
    assert {result.name for result in RESULTS} == folders
    data = {"features", "pretraining"}
    for name in folders - data:
        folder = ROOT / "results" / name
        assert any(path.suffix in (".md", ".csv") for path in folder.iterdir()), name


def test_sources_exist_and_a_page_cites_each_result():
    texts = [page.read_text() for page in PAGES]
    for result in RESULTS:
        missing = [source for source in result.sources if not (ROOT / source).exists()]
        assert missing == [], result.name
        cited = re.compile(rf"results/{re.escape(result.name)}(/|\b(?![-_]))")
        assert any(cited.search(text) for text in texts), result.name
