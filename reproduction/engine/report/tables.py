"""The tables of a sweep: results next to the paper's, classes and groups, settings, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.engine.outcomes import Outcome
from reproduction.engine.report.known import Known
from reproduction.engine.report.markup import Child, Html, table, tag
from reproduction.engine.report.summary import Score, looked_up, spread
from reproduction.engine.report.sweeps import Sweep, described

__all__ = [
    "by_part",
    "by_radius",
    "configuration",
    "curve_numbers",
    "problems",
    "results",
    "search",
]

MOST_ROWS = 120
ACCURACY = Score("test.top1", "test accuracy, %")
OTHERS = (
    Score("test.balanced", "mean over classes, %"),
    Score("test.minority", "rarer classes, %"),
    Score("test.rare_groups", "rare groups, %"),
    Score("test.worst_group", "worst group, %"),
    Score("test.robust_loss", "robust loss, test", percent=False),
    Score("train.robust_loss", "robust loss, train", percent=False),
    Score("train.top1", "train accuracy, %"),
    Score("seconds", "seconds", percent=False, digits=1),
)


def results(sweep: Sweep, known: Known) -> Html:
    """One row per arm: means and standard deviations over its seeds, and the paper's accuracies."""
    others = [score.within(sweep) for score in OTHERS if any(map(score.of, sweep.outcomes))]
    paper = [known.reported.get(outcome.arm, {}) for outcome in sweep.outcomes]
    columns = list(dict.fromkeys(name for row in paper for name in row))
    best = _best(sweep.outcomes)
    rows = [
        [
            str(outcome.arm),
            _seeds(sweep, outcome),
            _score_cell(ACCURACY, outcome, mark=outcome is best),
            *(_paper(row.get(name)) for name in columns),
            *(_score_cell(score, outcome) for score in others),
        ]
        for outcome, row in zip(sweep.outcomes, paper, strict=True)
    ]
    head = [
        "method",
        "seeds",
        ACCURACY.label,
        *(f"paper, {name}, %" for name in columns),
        *(s.label for s in others),
    ]
    caption = "Scores, of one seed" if sweep.one_seed else "Mean ± standard deviation over seeds"
    return table(head, rows, caption, "results")


def by_radius(sweep: Sweep, known: Known) -> Html | None:
    """One row per method and one column per radius; None if there is only one radius."""
    radii = sorted({outcome.arm.rho for outcome in sweep.outcomes if outcome.arm.rho is not None})
    if len(radii) < 2:
        return None
    at = {(outcome.arm.method, outcome.arm.rho): outcome for outcome in sweep.outcomes}
    rows = []
    for method in dict.fromkeys(outcome.arm.method for outcome in sweep.outcomes):
        own = [at.get((method, rho)) for rho in radii]
        rows.append([method, *("" if o is None else ACCURACY.written(ACCURACY.of(o)) for o in own)])
        theirs = [{} if o is None else known.reported.get(o.arm, {}) for o in own]
        for name in dict.fromkeys(name for row in theirs for name in row):
            rows.append([tag("th", f"{method}, paper, {name}", scope="row", class_="paper")])
            rows[-1] += [_paper(row.get(name)) for row in theirs]
    head = ["method", *(f"rho {rho:g}" for rho in radii)]
    return table(head, rows, "Test accuracy by radius, %", "radii")


def by_part(sweep: Sweep, part: str, known: Known) -> Html | None:
    """Accuracy of every class ("per_class") or group ("per_group"), rarest first if sizes are known."""
    arms = [_parts(outcome, part) for outcome in sweep.outcomes]
    number = max(map(len, arms), default=0)
    if not number:
        return None
    classes = part == "per_class"
    name = known.class_name if classes else known.group_name
    sizes = known.counts if classes else known.group_counts
    sized = len(sizes) == number
    means = [[spread(arm[k]) if k < len(arm) else None for arm in arms] for k in range(number)]
    order = sorted(
        (k for k in range(number) if any(means[k])), key=lambda k: sizes[k] if sized else k
    )
    shown = order[:MOST_ROWS]
    rows = [
        [
            name(k),
            *([f"{sizes[k]:,}"] if sized else []),
            *(_heat(f.mean if f else None) for f in means[k]),
        ]
        for k in shown
    ]
    what = "class" if classes else "group"
    head = [
        what,
        *(["training samples"] if sized else []),
        *(str(outcome.arm) for outcome in sweep.outcomes),
    ]
    left_out = (
        "" if len(shown) == len(order) else f"; {len(shown)} of {len(order)}, the first or rarest"
    )
    over = "" if sweep.one_seed else ", mean over seeds"
    return table(head, rows, f"Test accuracy of each {what}, %{over}{left_out}", "heat")


def curve_numbers(sweep: Sweep) -> Html | None:
    """The chart of accuracy as a table, for accessibility."""
    longest = max((curve for o in sweep.outcomes for curve in o.curves), key=len, default=[])
    if not longest:
        return None
    rows: list[list[Child]] = []
    for i, record in enumerate(longest):
        at = [
            spread(looked_up(curve[i], ACCURACY.key) for curve in o.curves if i < len(curve))
            for o in sweep.outcomes
        ]
        rows.append([f"{record['samples']:,}", *map(ACCURACY.written, at)])
    head = ["samples", *(str(outcome.arm) for outcome in sweep.outcomes)]
    return table(head, rows, "Test accuracy as training goes on, %")


def search(sweep: Sweep) -> Html | None:
    """The settings that were tried, folded, the best first."""
    folds = [_trials(outcome, sweep.at_rho) for outcome in sweep.outcomes if outcome.trials]
    if not folds:
        return None
    progress = f"{sweep.searched} of {sweep.to_search} runs ended. "
    how = (
        "Chosen by the mean accuracy over the validation data's classes; the test data have no part"
        " in it."
    )
    return tag("div", tag("p", progress, how), folds)


def configuration(sweep: Sweep) -> Html:
    settings = [
        [
            str(outcome.arm),
            described(outcome.settings) if outcome.settings else "none yet",
        ]
        for outcome in sweep.outcomes
    ]
    own = [[key, _plain(value)] for key, value in sweep.config.items()]
    made_with = [[key, _plain(value)] for key, value in sweep.environment.items()]
    return tag(
        "div",
        table(["method", "settings"], settings, "Settings of the runs above", "texts"),
        tag(
            "div",
            table(["field", "value"], own, "Configuration", "texts"),
            table(["part", "version"], made_with, "Made with", "texts") if made_with else None,
            class_="columns",
        ),
    )


def problems(sweep: Sweep) -> Html | None:
    """Runs that diverged, failed, or have not finished."""
    found = [line for outcome in sweep.outcomes for line in _problems(sweep, outcome)]
    return tag("ul", [tag("li", line) for line in found], class_="problems") if found else None


def _problems(sweep: Sweep, outcome: Outcome) -> list[Child]:
    lines: list[Child] = []
    for seed, (result, curve) in enumerate(zip(outcome.results, outcome.curves, strict=True), 1):
        name = f"{outcome.arm}, seed {seed if result is None else result.get('seed', seed)}"
        if result is None and sweep.searched < sweep.to_search:
            continue  # seeds begin after the search
        if result is None:
            reached = f", {curve[-1]['samples']:,} samples so far" if curve else ""
            lines.append(f"{name}: no result yet{reached}")
        elif result["status"] != "done":
            lines.append([f"{name}: {result['status']}", _error(result)])
    if outcome.settings is None:
        why = (
            "every trial failed or diverged"
            if sweep.searched == sweep.to_search
            else "no trial has ended well yet"
        )
        lines.append(f"{outcome.arm}: {why}")
    return lines


def _error(result: Mapping[str, Any]) -> Html | None:
    text = str(result.get("error", "")).strip()
    if not text:
        return None
    return tag("details", tag("summary", text.splitlines()[-1]), tag("pre", text))


def _trials(outcome: Outcome, at_rho: str) -> Html:
    done = [t for t in outcome.trials if t["status"] == "done"]
    done.sort(key=lambda t: (-t["validation"]["balanced"], t["validation"]["robust_loss"]))
    rows: list[list[Child]] = [
        [
            described(t["settings"]),
            f"{100 * t['validation']['balanced']:.2f}",
            f"{t['validation']['robust_loss']:.4f}",
        ]
        for t in done
    ]
    rows += [
        [described(t["settings"]), [t["status"], _error(t)], ""]
        for t in outcome.trials
        if t["status"] != "done"
    ]
    head = ["settings", "mean over classes, %", f"robust loss{at_rho}"]
    inner = table(head, rows, f"Trials of {outcome.arm}, on validation data")
    return tag("details", tag("summary", f"{outcome.arm}: {len(rows)} tried"), inner)


def _best(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The arm with the highest mean accuracy, if there are several."""
    scored = [(found.mean, outcome) for outcome in outcomes if (found := ACCURACY.of(outcome))]
    return max(scored, key=lambda pair: pair[0])[1] if len(scored) > 1 else None


def _score_cell(score: Score, outcome: Outcome, mark: bool = False) -> Html:
    text = score.written(score.of(outcome))
    return tag("td", tag("strong", text) if mark else text, data_score=score.key)


def _seeds(sweep: Sweep, outcome: Outcome) -> str:
    done = sum(result is not None and result["status"] == "done" for result in outcome.results)
    planned = int(sweep.config.get("seeds", len(outcome.results)))
    return str(done) if done == planned else f"{done} of {planned}"


def _paper(value: float | None) -> Html:
    return tag("td", "–" if value is None else f"{value:.2f}", class_="paper")


def _heat(value: float | None) -> Html:
    return (
        tag("td", "–")
        if value is None
        else tag("td", f"{100 * value:.1f}", style=f"--v:{100 * value:.1f}%")
    )


def _parts(outcome: Outcome, part: str) -> list[list[float | None]]:
    """The values of all seeds, for each class or group."""
    lists = [
        r["test"].get(part) or []
        for r in outcome.results
        if r and r["status"] == "done" and "test" in r
    ]
    return [
        [own[k] for own in lists if k < len(own)] for k in range(max(map(len, lists), default=0))
    ]


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value)) or "none"
    return (
        "; ".join(f"{k}: {_plain(v)}" for k, v in value.items())
        if isinstance(value, Mapping)
        else str(value)
    )
