"""The sweeps in a folder, finished or not, and runs that belong to none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction.engine.outcomes import Outcome, read_outcomes, read_result, searched
from reproduction.engine.storage import read_json, read_lines
from reproduction.engine.study import Arm, Study
from scdro.errors import DataError, MissingDataError

__all__ = ["Sweep", "described", "read_study", "read_sweeps"]


@dataclass(frozen=True)
class Sweep:
    """Runs that are compared with each other.

    Attributes:
        path: its path, relative to the folder of the report.
        config: the configuration of all its runs.
        outcomes: one for each row of the results.
        searched, to_search: number of finished search runs, and of all.
    """

    path: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    outcomes: list[Outcome]
    searched: int = 0
    to_search: int = 0

    @property
    def experiment(self) -> str:
        return str(self.config.get("experiment", "run"))

    @property
    def dataset(self) -> str:
        return str(self.config.get("dataset", "unknown data"))

    @property
    def title(self) -> str:
        return f"{self.experiment} on {self.dataset}"

    @property
    def at_rho(self) -> str:
        """The radius of the robust losses, as " at rho 0.5"; empty if there are several."""
        every = [r for o in self.outcomes for r in (*o.results, *o.trials) if r is not None]
        radii = {(r.get("study") or {}).get("score_rho") for r in every} - {None}
        return f" at rho {radii.pop():g}" if len(radii) == 1 else ""

    @property
    def hardest(self) -> list[dict[str, Any]]:
        """The training samples with the largest worst-case weights, of all runs."""
        return [
            sample
            for o in self.outcomes
            for result in o.results
            for sample in (result or {}).get("hardest", ())
        ]

    @property
    def one_seed(self) -> bool:
        return all(len(outcome.results) < 2 for outcome in self.outcomes)

    @property
    def ended(self) -> int:
        """Number of seeds with a result of any kind."""
        return sum(result is not None for outcome in self.outcomes for result in outcome.results)

    @property
    def planned(self) -> int:
        """Number of seeds in the end, unless the search failed."""
        return sum(self._seeds(outcome) for outcome in self.outcomes)

    @property
    def finished(self) -> bool:
        return self.searched == self.to_search and self.ended == self.planned

    def _seeds(self, outcome: Outcome) -> int:
        if outcome.settings is None and self.searched == self.to_search:
            return 0
        return int(self.config.get("seeds", len(outcome.results)))


def read_sweeps(folder: Path) -> list[Sweep]:
    """All sweeps in a folder and below it. Runs without a study.json are grouped by configuration."""
    sweeps, runs = [], []
    for path in _walk(folder):
        if (path / "study.json").exists():
            sweeps.append(_sweep(path, _below(path, folder)))
        else:
            runs.append(path)
    sweeps += _lone(folder, runs)
    if not sweeps:
        raise MissingDataError(
            f"expected a study.json, or a run's config.json, in {folder.absolute()} or below it,"
            " found none; pass a folder that `python -m reproduction EXPERIMENT` made"
        )
    return sweeps


def _walk(folder: Path) -> Iterator[Path]:
    """The folders of sweeps and of runs, without those inside them."""
    for at, below, files in os.walk(folder):
        below.sort()
        if "study.json" in files or "config.json" in files:
            below.clear()
            yield Path(at)


def _below(path: Path, folder: Path) -> str:
    own = path.relative_to(folder).as_posix()
    return path.absolute().name if own == "." else own


def read_study(folder: Path) -> Study:
    """The configuration of the sweep in a folder."""
    path = folder / "study.json"
    return _study(read_json(path).get("study"), path)


def _sweep(path: Path, name: str) -> Sweep:
    saved, study = read_json(path / "study.json"), read_study(path)
    found = read_outcomes(study, path)
    trials = [
        searched(study, arm, lambda run: read_result(path / run.path))[0] for arm in study.arms()
    ]
    runs = {run.path for tried in trials if len(tried) > 1 for run in tried}
    made = sum((path / run / "result.json").exists() for run in runs)
    return Sweep(name, study.as_dict(), saved.get("environment", {}), found, made, len(runs))


def _study(saved: Any, path: Path) -> Study:
    try:
        return Study(**{key: _tuples(value) for key, value in saved.items()})
    except (AttributeError, TypeError) as error:
        raise DataError(
            f"expected the configuration of a study of this version in {path}, got another"
            f" ({error}); make the report with the version that made the sweep"
        ) from error


def _tuples(value: Any) -> Any:
    return tuple(_tuples(entry) for entry in value) if isinstance(value, list) else value


def _lone(folder: Path, paths: Iterable[Path]) -> list[Sweep]:
    """Sweeps of runs with the same configuration; runs that differ only in the seed form one row."""
    groups: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    for path in paths:
        config = read_json(path / "config.json")
        if "method" in config and isinstance(config.get("study"), dict):
            groups.setdefault(repr(sorted(config["study"].items())), []).append((path, config))
    return [_lone_sweep(folder, runs) for runs in groups.values()]


def _lone_sweep(folder: Path, runs: list[tuple[Path, dict[str, Any]]]) -> Sweep:
    rows: dict[tuple[str, str], list[tuple[Path, dict[str, Any]]]] = {}
    for path, config in runs:
        rows.setdefault((config["method"], repr(config.get("settings"))), []).append((path, config))
    methods = [method for method, _ in rows]
    found = []
    for (method, _), own in rows.items():
        settings = own[0][1].get("settings") or {}
        own.sort(key=lambda one: one[1].get("seed", 0))
        label = method if methods.count(method) == 1 else f"{method}, {described(settings)}"
        found.append(
            Outcome(
                Arm(label, None),
                dict(settings),
                [],
                [_result(path) for path, _ in own],
                [read_lines(path / "metrics.jsonl") for path, _ in own],
            )
        )
    path, first = runs[0]
    own_path = _below(path if len(runs) == 1 else folder, folder)
    config = {key: value for key, value in first["study"].items() if key != "seeds"}
    return Sweep(own_path, config, first.get("environment", {}), found)


def _result(path: Path) -> dict[str, Any] | None:
    file = path / "result.json"
    found: dict[str, Any] | None = read_json(file) if file.exists() else None
    return found


def described(settings: Mapping[str, Any]) -> str:
    """Settings in one line."""
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, (int, float)) else f"{key} {value}"
        for key, value in settings.items()
    )
