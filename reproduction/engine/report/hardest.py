"""The training samples with the largest worst-case weights, arm by arm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reproduction.engine.outcomes import Outcome, Result
from reproduction.engine.report.known import Known
from reproduction.engine.report.markup import Child, Html, table, tag
from reproduction.engine.report.sweeps import Sweep

__all__ = ["hardest"]

Sample = Mapping[str, Any]


def hardest(sweep: Sweep, known: Known) -> Html | None:
    """One foldable section per arm, the first one open: pictures, or rows of a table."""
    chosen = [(outcome, result) for outcome in sweep.outcomes if (result := _first(outcome))]
    if not chosen:
        return None
    note = tag(
        "p",
        f"The data are not at hand, so samples are known by position: {known.missing}.",
        class_="missing",
    )
    folds = [
        tag(
            "details",
            tag("summary", f"{outcome.arm}, seed {result.get('seed', 1)}"),
            (
                _gallery(result["hardest"], known)
                if all(sample["position"] in known.pictures for sample in result["hardest"])
                else _rows(result["hardest"], known, outcome)
            ),
            open=not i,
        )
        for i, (outcome, result) in enumerate(chosen)
    ]
    return tag("div", note if known.missing else None, folds, class_="hardest")


def _first(outcome: Outcome) -> Result | None:
    """The first seed that has them: one is enough to look at."""
    return next((result for result in outcome.results if result and result.get("hardest")), None)


def _gallery(samples: list[Sample], known: Known) -> Html:
    return tag("ul", [tag("li", _picture(sample, known)) for sample in samples], class_="gallery")


def _picture(sample: Sample, known: Known) -> Html:
    label, predicted = known.class_name(sample["label"]), known.class_name(sample["predicted"])
    position, group = sample["position"], _group(sample, known)
    image = tag(
        "img",
        src=known.pictures[position],
        alt=f"training image {position}, {label}",
        loading="lazy",
    )
    caption = tag(
        "figcaption",
        tag("b", label),
        None if label == predicted else [" taken for ", tag("b", predicted)],
        None if group is None else [tag("br"), tag("small", group)],
        tag("span", f"weight {sample['weight']:.1f}, loss {sample['loss']:.2f}", class_="numbers"),
    )
    return tag("figure", image, caption)


def _rows(samples: list[Sample], known: Known, outcome: Outcome) -> Html:
    grouped = all(_group(sample, known) is not None for sample in samples)
    head = ["position", "label", "predicted", "weight", "loss"]
    head += (["group"] if grouped else []) + (["largest features"] if known.features else [])
    rows: list[list[Child]] = []
    for sample in samples:
        row: list[Child] = [
            sample["position"],
            known.class_name(sample["label"]),
            known.class_name(sample["predicted"]),
            f"{sample['weight']:.1f}",
            f"{sample['loss']:.3f}",
        ]
        row += [_group(sample, known)] if grouped else []
        row += [tag("td", _features(sample, known), class_="features")] if known.features else []
        rows.append(row)
    return table(head, rows, f"Training samples of the largest weight, {outcome.arm}")


def _group(sample: Sample, known: Known) -> str | None:
    group = known.groups.get(sample["position"])
    return None if group is None else known.group_name(group)


def _features(sample: Sample, known: Known) -> str:
    largest = known.features[sample["position"]]
    return ", ".join(name if value == 1 else f"{name} {value:.3g}" for name, value in largest)
