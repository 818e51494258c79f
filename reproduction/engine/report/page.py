"""The self-contained HTML page: nothing is fetched, and only its own script may run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from reproduction.engine.report import tables
from reproduction.engine.report.hardest import hardest
from reproduction.engine.report.known import Known
from reproduction.engine.report.markup import Child, Html, data_block, tag
from reproduction.engine.report.summary import curves
from reproduction.engine.report.sweeps import Sweep, read_sweeps
from reproduction.engine.storage import write
from reproduction.engine.wording import plural
from scdro import __version__

__all__ = ["render", "write_report"]

SCRIPTS = ("scales.js", "chart.js", "page.js")
FEW = 26  # tables of up to this many rows are not folded
HARDEST = (
    "The worst case within the radius puts more weight on hard samples. Weight 10 means: as much as"
    " ten samples of the average. Look here for wrong labels, and for groups that nobody labelled."
)


def write_report(folder: Path, out: Path, look_up: Callable[[Sweep], Known]) -> list[Sweep]:
    """Write the report of a folder, with what `look_up` knows about each sweep, and return the sweeps."""
    sweeps = read_sweeps(folder)
    write(out, render(sweeps, [look_up(sweep) for sweep in sweeps]).encode())
    return sweeps


def render(sweeps: Sequence[Sweep], known: Sequence[Known]) -> str:
    """The page."""
    methods = list(
        dict.fromkeys(outcome.arm.method for sweep in sweeps for outcome in sweep.outcomes)
    )
    parts = [_sweep(i, *pair, methods) for i, pair in enumerate(zip(sweeps, known, strict=True))]
    title = sweeps[0].title if len(sweeps) == 1 else f"{len(sweeps)} sweeps"
    script = "\n".join(_asset(name) for name in SCRIPTS)
    return Template(_asset("page.html")).substitute(
        title=tag("title", f"{title} – scdro report"),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=_asset("page.css"),
        contents=_contents(sweeps) if len(sweeps) > 1 else "",
        body="\n".join(parts),
        version=tag("span", f"scdro {__version__}"),
        script=script,
    )


def _asset(name: str) -> str:
    return files("reproduction.engine.report").joinpath(name).read_text("utf-8")


def _contents(sweeps: Sequence[Sweep]) -> Html:
    links = [
        tag("li", tag("a", sweep.title, href=f"#sweep-{i}"), f", {sweep.path}: {_status(sweep)}")
        for i, sweep in enumerate(sweeps)
    ]
    return tag("nav", tag("h1", "Report"), tag("ul", links), aria_label="Contents")


def _sweep(i: int, sweep: Sweep, known: Known, methods: Sequence[str]) -> Html:
    parts: list[tuple[str, list[Child]]] = [
        ("Results", [tables.results(sweep, known), tables.by_radius(sweep, known)]),
        ("Not finished, or gone wrong", [tables.problems(sweep)]),
        ("Curves", _curves(i, sweep, methods)),
        (
            "Classes",
            [_fold("Accuracy of each class", tables.by_part(sweep, "per_class", known), FEW)],
        ),
        (
            "Groups",
            [_fold("Accuracy of each group", tables.by_part(sweep, "per_group", known), FEW)],
        ),
        ("What the worst case weighs most", _with_note(HARDEST, hardest(sweep, known))),
        ("Configuration", [tables.configuration(sweep)]),
        ("Search of settings", [tables.search(sweep)]),
    ]
    sections = [
        tag("section", tag("h2", title), content)
        for title, content in parts
        if any(part is not None for part in content)
    ]
    return tag("article", _head(sweep, known), sections, id=f"sweep-{i}")


def _head(sweep: Sweep, known: Known) -> Html:
    config = sweep.config
    facts = [f"{key} {config[key]}" for key in ("model", "inputs") if key in config]
    facts += [plural(config["epochs"], "epoch")] if "epochs" in config else []
    facts += [f"{config['batch_size']} to a batch"] if "batch_size" in config else []
    scale = config.get("scale")
    facts += [f"scale {scale}"] if scale else []
    return tag(
        "header",
        tag("h1", sweep.title),
        tag("p", " · ".join(facts), tag("span", _status(sweep), class_="status"), class_="facts"),
        tag("p", sweep.path, class_="path"),
        known.claim,
    )


def _status(sweep: Sweep) -> str:
    if sweep.finished:
        return "finished"
    seeds, trials = plural(sweep.planned, "seed"), plural(sweep.to_search, "trial")
    return f"not finished: {sweep.ended} of {seeds}, {sweep.searched} of {trials}"


def _curves(i: int, sweep: Sweep, methods: Sequence[str]) -> list[Child]:
    found = curves(sweep, methods)
    if not found["charts"]:
        return [None]
    return [
        data_block(f"curves-{i}", found),
        tag(
            "div",
            tag("noscript", tag("p", "Charts need JavaScript; the tables do not.")),
            class_="curves",
            data_curves=i,
        ),
        _fold("The curve of test accuracy as a table", tables.curve_numbers(sweep)),
    ]


def _fold(summary: str, content: Html | None, open_to: int = 0) -> Html | None:
    """Content that is folded at first, unless it is a table of at most `open_to` rows."""
    if content is None:
        return None
    return tag("details", tag("summary", summary), content, open=content.count("<tr>") <= open_to)


def _with_note(text: str, content: Html | None) -> list[Child]:
    return [None] if content is None else [tag("p", text), content]
