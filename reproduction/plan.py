"""What a sweep is going to do: its configuration, and how many runs that is."""

from __future__ import annotations

import json
from collections.abc import Sequence

from reproduction import protocol
from scdro.application.study import Study
from scdro.application.wording import plural

__all__ = ["plan"]


def plan(studies: Sequence[Study]) -> str:
    """Of every data set the fields, what was shortened, and the number of settings and runs."""
    head = [protocol.title(studies), *protocol.warnings(studies), protocol.command(studies)]
    return "\n\n".join(["\n".join(head), *map(_of, studies)])


def _of(study: Study) -> str:
    width = max(map(len, study.as_dict()))
    named = ("experiment", "dataset", "scale")
    fields = [f"  {key:{width}}  {json.dumps(value)}" for key, value in study.as_dict().items() if key not in named]
    settings = [f"{arm}: {plural(len(study.search(arm)), 'setting')}" for arm in study.arms()]
    searched, final = number_of_runs(study)
    runs = f"runs: {searched:,} to search, {final:,} of seeds"
    return "\n".join([study.dataset, *fields, protocol.shortened_line(study.as_dict()), *settings, runs])


def number_of_runs(study: Study) -> tuple[int, int]:
    """Of the search, in which arms may share runs, and of the seeds of the best."""
    tried = [study.search(arm) for arm in study.arms()]
    return len({run.path for runs in tried if len(runs) > 1 for run in runs}), study.seeds * len(tried)
