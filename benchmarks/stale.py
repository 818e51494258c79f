"""Which results are older than the code they depend on.

    python benchmarks/stale.py                  # a line for every result; exit status 1 if any is older than its code
    python benchmarks/stale.py --made figure1   # after a new run: it was made by the present commit, or by --commit

results/index.json has for each result the command that makes it, the commit whose code made it, and
the source paths that its numbers depend on. A result is stale where the code of one of these paths
has changed since; comments and docstrings do not count.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Result:
    """An entry of the index, with the names of groups of paths replaced by the paths."""

    name: str
    command: str
    commit: str
    sources: tuple[str, ...]


def index_of(root: Path) -> Path:
    return root / "results" / "index.json"


def read_index(root: Path) -> list[Result]:
    """The results in the index of a clone, sorted by name."""
    found: Mapping[str, Any] = json.loads(index_of(root).read_text())
    return [
        Result(name, own["command"], own["commit"], _paths(own["sources"], found["groups"]))
        for name, own in sorted(found["results"].items())
    ]


def changed_sources(root: Path, result: Result) -> list[str] | None:
    """The files among the result's sources whose code is not what made it; None if git does not know the commit, as in
    a clone without history."""
    if _git(root, "cat-file", "-e", f"{result.commit}^{{commit}}") is None:
        return None
    names = (
        _git(
            root,
            "diff",
            "--name-only",
            "--no-renames",
            result.commit,
            "HEAD",
            "--",
            *result.sources,
        )
        or ""
    )

    def code(commit: str, name: str) -> str | None:
        text = _git(root, "show", f"{commit}:{name}")
        return _without_words(text) if text is not None and name.endswith(".py") else text

    return [name for name in names.splitlines() if code(result.commit, name) != code("HEAD", name)]


def _without_words(source: str) -> str:
    """The syntax tree of a module without comments and docstrings."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


def made(root: Path, name: str, commit: str = "HEAD") -> str:
    """Write into the index which commit's code made a result. What is made now needs sources as committed."""
    known = {result.name: result for result in read_index(root)}
    if name not in known:
        raise SystemExit(
            f"expected one of {', '.join(known)}, got {name!r}; add it to results/index.json first"
        )
    changed = (
        _git(root, "status", "--porcelain", "--", *known[name].sources)
        if commit == "HEAD"
        else None
    )
    if changed:
        raise SystemExit(
            f"expected the sources of {name} as committed, got changes; commit them"
            f" first:\n{changed}"
        )
    found = _git(root, "rev-parse", "--short=12", "--verify", f"{commit}^{{commit}}")
    if found is None:
        raise SystemExit(
            f"expected a commit of the repository at {root}, got {commit}; fetch the whole history"
        )
    whole = json.loads(index_of(root).read_text())
    whole["results"][name]["commit"] = found.strip()
    index_of(root).write_text(json.dumps(whole, indent=2) + "\n")
    return found.strip()


def _paths(sources: Sequence[str], groups: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    return tuple(path for source in sources for path in groups.get(source, [source]))


def _git(root: Path, *words: str) -> str | None:
    """What git says; None if it fails."""
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--made", metavar="NAME", help="record which commit made this result")
    parser.add_argument("--commit", default="HEAD", help="that made it (default: the present one)")
    args = parser.parse_args(argv)
    if args.made:
        print(f"{args.made}: made by {made(root, args.made, args.commit)}")
        return 0
    stale = 0
    for result in read_index(root):
        changed = changed_sources(root, result)
        if changed is None:
            verdict = f"unknown: git does not know {result.commit}; fetch the whole history"
        elif changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            verdict = (
                f"older than its code: since {result.commit} changed {', '.join(changed[:3])}{more}"
            )
        else:
            verdict = f"up to date ({result.commit})"
        stale += changed is None or bool(changed)
        print(f"{result.name:20} {verdict}")
    return int(stale > 0)


if __name__ == "__main__":
    raise SystemExit(main())
