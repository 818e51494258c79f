"""The training samples that the worst case weighs most, arm by arm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scdro.experiments.report.markup import Child, Html, table, tag
from scdro.experiments.report.reading import Sweep
from scdro.experiments.report.samples import Known
from scdro.experiments.sweep import Outcome, Result

__all__ = ["hardest"]

Sample = Mapping[str, Any]


def hardest(sweep: Sweep, known: Known) -> Html | None:
    """A fold for each arm, the first open: pictures, or rows of a table."""
    chosen = [(outcome, result) for outcome in sweep.outcomes if (result := _first(outcome))]
    if not chosen:
        return None
    note = tag("p", f"The data are not at hand, so samples are known by position: {known.missing}.", class_="missing")
    folds = [
        tag(
            "details",
            tag("summary", f"{outcome.arm}, seed {result.get('seed', 1)}"),
            _gallery(result["hardest"], known) if known.pictures else _rows(result["hardest"], known, outcome),
            open=not i,
        )
        for i, (outcome, result) in enumerate(chosen)
    ]
    return tag("div", note if known.missing else None, folds, class_="hardest")


def _first(outcome: Outcome) -> Result | None:
    """Of the first seed that has them: seeds differ, and one is enough to look at."""
    return next((result for result in outcome.results if result and result.get("hardest")), None)


def _gallery(samples: list[Sample], known: Known) -> Html:
    return tag("ul", [tag("li", _picture(sample, known)) for sample in samples], class_="gallery")


def _picture(sample: Sample, known: Known) -> Html:
    label, predicted = known.class_name(sample["label"]), known.class_name(sample["predicted"])
    position = sample["position"]
    group = [tag("br"), tag("small", known.group_name(known.groups[position]))] if position in known.groups else None
    image = tag("img", src=known.pictures[position], alt=f"training image {position}, {label}", loading="lazy")
    caption = tag(
        "figcaption",
        tag("b", label),
        None if label == predicted else [" taken for ", tag("b", predicted)],
        group,
        tag("span", f"weight {sample['weight']:.1f}, loss {sample['loss']:.2f}", class_="numbers"),
    )
    return tag("figure", image, caption)


def _rows(samples: list[Sample], known: Known, outcome: Outcome) -> Html:
    grouped, featured = bool(known.groups), bool(known.features)
    head = ["position", "label", "predicted", "weight", "loss"]
    head += (["group"] if grouped else []) + (["largest features"] if featured else [])
    rows: list[list[Child]] = []
    for sample in samples:
        position = sample["position"]
        row: list[Child] = [
            position,
            known.class_name(sample["label"]),
            known.class_name(sample["predicted"]),
            f"{sample['weight']:.1f}",
            f"{sample['loss']:.3f}",
        ]
        row += [known.group_name(known.groups[position])] if grouped else []
        row += [tag("td", _features(known.features[position]), class_="features")] if featured else []
        rows.append(row)
    return table(head, rows, f"Training samples of the largest weight, {outcome.arm}")


def _features(largest: list[tuple[str, float]]) -> str:
    return ", ".join(name if value == 1 else f"{name} {value:.3g}" for name, value in largest)
