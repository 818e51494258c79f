"""What the final table of `scdro train --baseline` may conclude, against exact probabilities and scipy's tests."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, multinomial

from own_data import rows, write_csv
from scdro.application.own.comparing import difference, verdict
from scdro.application.own.fitting import fit
from scdro.application.own.opening import Wanted, open_own
from scdro.application.own.plan import Plan
from scdro.application.own.predicting import predict
from scdro.application.own.saved import load_model
from scdro.application.own.summary import summary, warnings
from scdro.cli import main


def right(both, down, up, neither):
    """Which samples two models predict rightly: both, the first alone, the second alone, none."""
    first = [1] * both + [1] * down + [0] * up + [0] * neither
    second = [1] * both + [0] * down + [1] * up + [0] * neither
    return torch.tensor(first, dtype=torch.bool), torch.tensor(second, dtype=torch.bool)


def test_the_interval_is_that_of_an_r_package():
    """The example of ci.prop.ps in statpsych."""
    assert difference(*right(12, 4, 26, 6)) == pytest.approx((0.2548067, 0.6251933), abs=1e-6)


@pytest.mark.parametrize("confidence", [0.95, 0.99])
@pytest.mark.parametrize(("n", "down", "up"), [(20, 0.1, 0.1), (50, 0.02, 0.1), (54, 0.2, 0.05), (100, 0.01, 0.01)])
def test_the_interval_covers_the_true_difference(n, down, up, confidence):
    """By enumeration of all outcomes."""
    covered = 0.0
    for b in range(n + 1):
        for c in range(n + 1 - b):
            chance = multinomial.pmf([b, c, n - b - c], n, [down, up, 1 - down - up])
            if chance > 1e-9:
                low, high = difference(*right(n - b - c, b, c, 0), confidence)
                covered += chance * (low <= up - down <= high)
    assert covered > confidence - 0.015


def test_the_interval_agrees_with_mcnemars_exact_test():
    """It sees no difference where that one is far from it, and one where it is clear."""
    for b in range(30):
        for c in range(30):
            p = binomtest(c, b + c).pvalue if b + c else 1.0
            low, high = difference(*right(20, b, c, 10))
            assert (low > 0 or high < 0) or p > 0.01
            assert (low <= 0 <= high) or p < 0.08
            assert (low > 0) <= (c > b)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    path = write_csv(folder / "data.csv", rows(500))
    data = open_own(Wanted(path, 0.4, target="label", groups=("site",)))
    return path, folder / "run", data, fit(Plan(epochs=4, baseline=True), data, folder / "run", "data.csv")


def test_the_counts_and_the_paired_samples_are_those_of_the_validation_data(trained):
    path, out, data, fits = trained
    lines = [line.split() for line in summary(fits, data).splitlines() if line]
    content = rows(500)
    kept = {data.inputs.origin(i)["line"] for i in range(len(data.inputs))}
    aside = [row for line, row in enumerate(content, 2) if line not in kept]
    for column, names in (("label", ("yes", "no")), ("site", ("north", "south"))):
        for name in names:
            (found,) = [line for line in lines if line[0] == name]
            assert int(found[1]) == sum(row[column] == name for row in aside)
    for method in fits:
        assert method.right.double().mean().item() == pytest.approx(method.result["validation"]["top1"])
    # The model that is saved, by another way: `predict` of the whole file.
    chosen = np.array(predict(load_model(out), path).predicted)
    own = [chosen[line - 2] == row["label"] for line, row in enumerate(content, 2) if line not in kept]
    assert fits[-1].right.tolist() == own


def replaced(fits, rights, train=None):
    made = []
    for k, (one, known) in enumerate(zip(fits, rights, strict=True)):
        result = one.result | ({} if train is None else {"train": one.result["train"] | train[k]})
        made.append(replace(one, right=known, result=result))
    return made


def test_the_verdict_is_on_the_group_that_is_worst_for_plain_training(trained):
    _, _, data, fits = trained
    south = data.task.validation.groups == data.groups.index("south")
    n, every = int(south.sum()), torch.ones(len(south), dtype=torch.bool)
    (equal,) = verdict(replaced(fits, [~south, ~south]), data)
    assert f"worst group of plain training, 'south', {n} samples: ERM 0.0%, SCDRO 0.0%: no difference" in equal
    (higher,) = verdict(replaced(fits, [~south, every]), data)
    low, high = difference(~south[south], every[south], 0.975)  # two groups
    assert f"SCDRO is higher, by {100 * low:.1f} to {100 * high:.1f} points (95%)" in higher
    (other,) = verdict(replaced(fits, [~south, south]), data)  # the method's own worst group is the other one
    assert "'south'" in other
    assert "SCDRO is higher" in other
    few = every.clone()
    few[torch.nonzero(south)[:3]] = False
    (lower,) = verdict(replaced(fits, [few, ~south]), data)
    assert "SCDRO is lower, by" in lower
    assert summary(replaced(fits, [few, ~south]), data).splitlines()[-1] == lower
    assert verdict(replaced(fits[-1:], [None]), data) == []


def test_a_group_that_is_bad_by_chance_is_no_verdict(trained):
    """Five groups, two models of the same quality: the worst group of one is often better in the other."""
    _, _, data, fits = trained
    rng = np.random.default_rng(0)
    n = len(data.task.validation)
    groups = torch.arange(n) % 5
    validation = type(data.task.validation)(
        data.task.validation.inputs, data.task.validation.labels, names=data.classes, groups=groups, group_names="abcde"
    )
    task = replace(data.task, validation=validation)
    many = replace(data, task=task, groups=tuple("abcde"))
    wrong = 0
    for _ in range(400):
        rights = [torch.from_numpy(rng.random(n) < 0.8) for _ in fits]
        wrong += "no difference" not in verdict(replaced(fits, rights), many)[0]
    assert wrong / 400 < 0.05


def test_plain_training_that_minimises_the_robust_loss_better_is_told(trained):
    _, _, data, fits = trained
    rights = [one.right for one in fits]

    def told(plain, robust, top1=0.9):
        made = replaced(fits, rights, [{"robust_loss": v, "top1": top1} for v in (plain, robust)])
        return [line for line in warnings(made, data) if "plain training" in line], verdict(made, data)

    (line,), _ = told(0.022, 0.065)
    assert line == (
        "plain training has the lower robust loss on the training data (0.022 against 0.065): SCDRO was not trained "
        "well; try more --epochs, or --search 10"
    )
    for plain, robust in ((0.065, 0.022), (0.5, 0.51), (1e-5, 2e-5)):
        assert told(plain, robust)[0] == []
    assert told(0.02, 0.02, top1=1.0)[1][1:] == [
        "both fit every training sample: there is little for the worst case to do"
    ]
    assert len(told(0.02, 0.02, top1=0.99)[1]) == 1


def test_a_method_that_does_not_minimise_that_loss_is_not_blamed(tmp_path):
    path = write_csv(tmp_path / "data.csv", rows(120))
    data = open_own(Wanted(path, target="label", groups=("site",)))
    for method in ("FastDRO-chi2", "GroupDRO"):
        fits = fit(Plan(method=method, epochs=1, baseline=True, model="linear"), data, tmp_path / method, "x")
        made = replaced(fits, [one.right for one in fits], [{"robust_loss": v} for v in (0.1, 0.5)])
        assert warnings(made, data) == []


def test_a_training_gone_wrong_says_so_on_the_screen(tmp_path, capsys):
    path = write_csv(tmp_path / "data.csv", rows(200))
    options = ["--target", "label", "--baseline", "--lr", "1e-4", "--epochs", "20", "--threads", "1"]
    assert main(["train", str(path), "--out", str(tmp_path / "run"), *options]) == 0
    said = capsys.readouterr().out
    losses = {}
    for method in ("ERM", "SCDRO"):
        (file,) = (tmp_path / "run").glob(f"{method}/*/seed-1/result.json")
        losses[method] = json.loads(file.read_text())["train"]["robust_loss"]
    assert losses["ERM"] < 0.95 * losses["SCDRO"]
    assert f"({losses['ERM']:.3f} against {losses['SCDRO']:.3f})" in said
    assert "worst class of plain training, " in said
