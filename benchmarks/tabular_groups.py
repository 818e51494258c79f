"""Income from census tables: how accurate is a model on groups by sex and race that it never sees?

Adult and Census-Income (UCI), logistic regression on all columns but sex and race: the average
(ERM), class weights, and the worst case (KL-DRO) over rho. Groups are used only for evaluation, and
in one line to choose rho.

    python benchmarks/tabular_groups.py --data DIR    # or SCDRO_DATA=DIR; the files are listed below
    python benchmarks/tabular_groups.py --quick       # a small table, drawn at random

DIR has adult.data.gz, adult.test.gz, census-income-kdd.data.gz and census-income-kdd.test.gz.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import train_test_split

from reproduction.data import Table, adult, census_income
from scdro.linear_model import KLDROClassifier
from scdro.metrics import group_table, worst_group_accuracy

Array = npt.NDArray[Any]
RHOS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SMALLEST = 100  # fewest test samples of a group, or of a class in it, to report its accuracy
COLOURS = {"KL-DRO": "#0072B2", "ERM": "#D55E00", "class weights": "#777777"}  # Okabe-Ito


SOURCES: dict[str, Callable[[Path], tuple[Table, Table]]] = {
    "Adult": adult,
    "Census-Income": census_income,
}


class Result(NamedTuple):
    """Results on test data, for groups (sex and race) with enough samples."""

    accuracy: float
    worst_group: float
    worst_cell: float  # accuracy on one class in one group
    log_loss: float
    worst_log_loss: float


def made_up(_: Path) -> tuple[Table, Table]:
    """A small random table in which one class is rare in one group, to try the script; its numbers mean nothing."""
    rng = np.random.default_rng(0)

    def table(n: int) -> Table:
        groups = np.column_stack(
            [rng.choice(["F", "M"], n), rng.choice(["a", "b"], n, p=[0.8, 0.2])]
        )
        y = (rng.random(n) < np.where(groups[:, 1] == "b", 0.15, 0.5)).astype(np.int64)
        return Table(rng.normal(size=(n, 4)) + y[:, None], y, groups, ())

    return table(2000), table(2000)


def evaluate(model: KLDROClassifier, test: Table) -> Result:
    predicted = model.predict(test.X)
    losses = -model.predict_log_proba(test.X)[np.arange(len(test.y)), test.y]
    groups = [row for row in group_table(test.y, predicted, test.groups) if row.size >= SMALLEST]
    cells = np.column_stack([test.groups, test.y.astype(str)])
    cell_rows = [row for row in group_table(test.y, predicted, cells) if row.size >= SMALLEST]
    by_group = [losses[(test.groups == row.group).all(1)].mean() for row in groups]
    return Result(
        float((predicted == test.y).mean()),
        groups[0].accuracy,
        cell_rows[0].accuracy,
        float(losses.mean()),
        float(max(by_group)),
    )


def chosen_rho(train: Table, C: float) -> float:
    """Choose rho by worst-group accuracy on a held-out quarter, with groups of the validation data only."""
    inner, held = train_test_split(
        np.arange(len(train.y)), test_size=0.25, stratify=train.y, random_state=0
    )

    def score(rho: float) -> float:
        model = KLDROClassifier(rho=rho, C=C).fit(train.X[inner], train.y[inner])
        large = [
            row
            for row in group_table(train.y[held], train.y[held], train.groups[held])
            if row.size >= SMALLEST
        ]
        members = np.array(
            [tuple(group) in {row.group for row in large} for group in train.groups[held].tolist()]
        )
        held_large = held[members]
        return worst_group_accuracy(
            train.y[held_large], model.predict(train.X[held_large]), train.groups[held_large]
        )

    return max((0.0, *RHOS[1::2]), key=score)


def run(folder: Path, name: str, C: float) -> tuple[dict[str, Result], dict[str, float], float]:
    """Results by method, each group's weight in ERM's worst case (divided by its share), and the chosen rho."""
    train, test = SOURCES[name](folder)
    print(f"\n{name}: {train.X.shape[0]:,} + {test.X.shape[0]:,} rows, {train.X.shape[1]} features")
    models = {
        "ERM": KLDROClassifier(rho=0.0, C=C),
        "class weights": KLDROClassifier(0.0, C, class_weight="balanced"),
    }
    models |= {f"KL-DRO, rho = {rho:g}": KLDROClassifier(rho=rho, C=C) for rho in RHOS}
    results = {}
    for method, model in models.items():
        results[method] = evaluate(model.fit(train.X, train.y), test)
        cells = " | ".join(f"{100 * v:.1f}" for v in results[method][:3])
        losses = " | ".join(f"{v:.3f}" for v in results[method][3:])
        print(f"| {name} | {method} | {cells} | {losses} |", flush=True)
    erm = models["ERM"].set_params(rho=0.1)
    weights = erm.worst_case_weights(train.X, train.y)
    found = {}
    for row in group_table(train.y, train.y, train.groups):
        if row.size >= SMALLEST:
            member = (train.groups == row.group).all(1)
            found[" ".join(row.group)] = float(weights[member].sum() / row.share)
    return results, found, chosen_rho(train, C)


def picture(all_results: dict[str, tuple[dict[str, Result], dict[str, float], float]]) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(
        len(all_results),
        3,
        figsize=(15, 4.4 * len(all_results)),
        squeeze=False,
        layout="constrained",
    )
    for (name, (results, found, rho)), (left, middle, right) in zip(
        all_results.items(), axes, strict=True
    ):
        curve = np.array([results[f"KL-DRO, rho = {r:g}"] for r in RHOS])
        for axis, columns, title, unit in (
            (left, (0, 1, 2), "test accuracy, %", 100),
            (middle, (3, 4), "test log loss", 1),
        ):
            styles = ("o-", "s--", "^:") if axis is left else ("o-", "s--")
            labels = (
                ("all", "worst group", "worst class of a group")
                if axis is left
                else ("all", "worst group")
            )
            for j, style, label in zip(columns, styles, labels, strict=True):
                axis.semilogx(
                    RHOS,
                    unit * curve[:, j],
                    style,
                    color=COLOURS["KL-DRO"],
                    label=f"KL-DRO, {label}",
                )
                for method in ("ERM", "class weights"):
                    axis.axhline(
                        unit * results[method][j], ls=style[1:], lw=1.2, color=COLOURS[method]
                    )
            axis.set(title=f"{name}: {title}", xlabel="ρ")
            handles, _ = axis.get_legend_handles_labels()
            handles += [Line2D([], [], color=COLOURS[m], label=m) for m in ("ERM", "class weights")]
            axis.legend(handles=handles, frameon=False, fontsize=8)
        left.axvline(max(rho, RHOS[0] / 1.5), color="#BBBBBB", lw=1, zorder=0)
        order = sorted(found, key=lambda group: found[group])
        right.barh(
            [group[:34] for group in order], [found[group] for group in order], color="#009E73"
        )
        right.axvline(1, color="black", lw=1, ls="--")
        right.set(title=f"{name}: ERM's worst case", xlabel="weight / share of the data (ρ = 0.1)")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("SCDRO_DATA"), help="folder with the files"
    )
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument(
        "--out", type=Path, default=Path("tabular_groups.png"), help="where to save the picture"
    )
    parser.add_argument("--quick", action="store_true", help="a small table, drawn at random")
    args = parser.parse_args()
    if args.quick:
        args.data = Path()
        SOURCES.clear()
        SOURCES["made up"] = made_up
    if args.data is None:
        parser.error("pass the folder with the data: --data DIR, or SCDRO_DATA=DIR")
    print(
        "| data | method | accuracy, % | worst group | worst class of a group | log loss | of the"
        " worst group |"
    )
    all_results = {name: run(Path(args.data), name, args.C) for name in SOURCES}
    for name, (_, found, rho) in all_results.items():
        print(
            f"\n{name}: rho by worst-group accuracy on held-out data: {rho:g}. Worst case's weight"
            " over share:"
        )
        print(
            ", ".join(
                f"{group} {found[group]:.2f}" for group in sorted(found, key=lambda g: -found[g])
            )
        )
    picture(all_results).savefig(args.out, dpi=110)
    print(f"\nPicture: {args.out}")


if __name__ == "__main__":
    main()
