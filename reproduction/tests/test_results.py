"""The tables of `python -m reproduction` say what made them, what was shortened, and no more than they show."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from reproduction import paired, protocol
from reproduction.__main__ import main, parser
from reproduction.commands.experiment import _study
from reproduction.engine.outcomes import Outcome
from reproduction.presets import study
from reproduction.records import seed_rows
from reproduction.results import markdown

QUICK = "--scale smoke --epochs 1 --trials 1 --seeds 1 --points 1"


def parsed(line, dataset):
    return _study(parser().parse_args([*line.split()]), dataset)


TEST, TRAIN = (
    ("top1", "minority", "majority", "worst_group", "rare_groups"),
    ("top1", "robust_loss"),
)


def results(values):
    return [
        {"status": "done", "test": dict.fromkeys(TEST, v), "train": dict.fromkeys(TRAIN, v)}
        for v in values
    ]


def outcomes(own, values=(0.5, 0.6, 0.7), trials=()):
    """Every arm with the same test accuracies."""
    return [
        Outcome(arm, {"lr": 0.1}, list(trials), results(values), [[] for _ in values])
        for arm in own.arms()
    ]


def table(*studies):
    return markdown([(own, outcomes(own)) for own in studies])


# -- the command that makes them
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("figure1 --features DIR", ["cifar10-st", "cifar100-st"]),
        ("figure2 --dataset cifar10-st --data DIR", ["cifar10-st"]),
        (
            "figure1 --scale paper --dataset imagenet-lt inaturalist18 --features DIR --epochs 30",
            None,
        ),
        (
            (
                "figure1 --scale paper --dataset cifar10-st --features DIR --epochs 1 --grid lr=0.1"
                " --seeds 2"
            ),
            None,
        ),
        ("table2 --features DIR --methods ERM", ["cifar10-st", "cifar100-st"]),
        ("table4 --data DIR --rho 0.1 1 --no-choose-rho", ["cifar10-st", "cifar100-st"]),
        (
            "table4 --data DIR --epochs 6 --decay-epoch 5 --choose-rho",
            ["cifar10-st", "cifar100-st"],
        ),
        (
            "table4 --data DIR --methods SCDRO --grid SCDRO.beta=0.1,0.9 lr=1",
            ["cifar10-st", "cifar100-st"],
        ),
        ("hidden --scale smoke --dataset digits-hidden --max-grad-norm 2.5", ["digits-hidden"]),
        ("hidden --features DIR --data DIR", ["cifar100-hidden", "adult"]),
    ],
)
def test_the_command_makes_the_same_studies(line, names):
    names = names or line.split("--dataset ")[1].split(" --")[0].split()
    studies = [parsed(line, name) for name in names]
    found = protocol.command(studies)
    assert [
        parsed(found.removeprefix("python -m reproduction "), name) for name in names
    ] == studies
    if "--no-choose-rho" not in line:  # which is the scale's own
        assert sorted(found.split()) == sorted(["python", "-m", "reproduction", *line.split()])


def test_results_say_what_made_them(tmp_path, capsys):
    runs, results = tmp_path / "private" / "runs", tmp_path / "results"
    line = f"figure1 {QUICK} --methods SPD FastDRO --data {tmp_path}/secret"
    assert main([*line.split(), "--out", str(runs), "--results", str(results)]) == 0
    text = (results / "table.md").read_text()
    command = next(row for row in text.splitlines() if "python -m reproduction" in row).split()
    own = "--dataset digits-st --methods SPD FastDRO --epochs 1 --trials 1 --seeds 1 --points 1"
    assert " ".join(command) == f"python -m reproduction figure1 --scale smoke {own}"
    assert str(tmp_path) not in text
    own = json.loads((runs / "figure1-smoke/digits-st/study.json").read_text())
    made_in = own.pop("environment") | {
        "threads": 1
    }  # of the runs; the command itself may have more
    saved = json.loads((results / "studies.json").read_text())
    assert saved == {"digits-st": {**own, "environments": [made_in]}}
    assert f"scdro {made_in['scdro']}, torch {made_in['torch']}, python {made_in['python']}" in text
    capsys.readouterr()
    assert main(["report", str(results)]) == 1
    assert "--out" in capsys.readouterr().err


def test_versions_are_those_of_the_runs_and_not_of_the_last_command(tmp_path, capsys):
    line = f"figure1 {QUICK} --dataset digits-st --methods SPD FastDRO --out {tmp_path}"
    assert main(line.split()) == 0
    (config,) = tmp_path.glob("*/*/SPD/*/seed-1/config.json")
    old = json.loads(config.read_text())
    config.write_text(json.dumps({**old, "environment": {**old["environment"], "torch": "1.0"}}))
    assert main(line.split()) == 0
    assert (
        f"torch 1.0 and {old['environment']['torch']}, python"
        in (tmp_path / "figure1-smoke/table.md").read_text()
    )
    assert main(["report", str(tmp_path / "figure1-smoke")]) == 0  # studies.json is no sweep


def test_one_is_one():
    own = study("figure1", "cifar10-st", "small")
    assert "3 epochs (lr falls by ten after 2)" in table(own)
    assert "Settings searched at full length" in table(own)
    assert "Mean and standard deviation of 5 seeds." in table(own)
    single = table(replace(own, epochs=1, seeds=1, trials=1, tune_epochs=1))
    assert "1 epoch (lr" in single
    assert "One seed." in single
    assert "One setting of each method, no search." in single
    assert "Settings searched" not in single
    assert "Settings searched for 1 epoch by" in table(replace(own, tune_epochs=1))
    assert not re.search(r"\b1 \w+s\b", single.split("## ")[1])


# -- what was shortened
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (study("figure1", "cifar10-st", "paper"), "nothing, given the features."),
        (study("figure2", "cifar10-st", "paper"), "nothing."),
        (
            study("figure2", "cifar10-st", "small"),
            (
                "resnet8 of width 8 instead of resnet20 of width 16; images smaller by 2; epochs 12"
                " instead of 120; searches of 4 epochs; grids beta=0.1,0.5,"
                " FastDRO.momentum=0.5,0.9, lam=1,10, dual_lr=1e-05,0.0001, DualSGM.dual_lr=0.1,"
                " max_grad_norm=0,1 in place of the paper's;"
                " effective steps 0.03, 0.1, 0.3, 1, 3 for every method; four"
                " steps more around the best."
            ),
        ),
        (
            study("table2", "cifar10-st", "small"),
            (
                "cifar10-st (the paper's: ImageNet-LT and iNaturalist18); epochs 3 instead of 60 or"
                " 30; batches of 128 instead of 512; grids beta=0.1 in place of the paper's;"
                " effective steps 0.03, 0.1, 0.3, 1, 3 for every method; four steps more around the"
                " best."
            ),
        ),
        (
            replace(
                study("figure1", "inaturalist18", "paper", ("SPD", "ERM")),
                seeds=2,
                trials=3,
                decay_epoch=4,
            ),
            (
                "lr falls after epoch 4 instead of 20; at most 3 settings of each grid; seeds 2 "
                "instead of 5; without RSCDRO, RASCDRO, FastDRO and DualSGM; with ERM."
            ),
        ),
    ],
)
def test_what_was_shortened(own, expected):
    assert f"What was shortened or changed: {expected}" in table(own)


def test_the_head_says_which_update_of_lam_ran():
    assert "lam is solved for in RSCDRO and RASCDRO; the paper takes" in table(
        study("figure1", "cifar10-st", "paper")
    )
    assert "solved for" not in table(
        study("figure1", "cifar10-st", "paper", ("RSCDRO-printed", "SPD"))
    )
    assert "solved for" not in table(study("hidden", "adult", "small"))


def test_the_head_of_table3_is_not_that_of_the_paper():
    assert (
        "features instead of images; mlp of width 128 instead of the last block of resnet50;"
        in table(study("table3", "cifar10-st", "small"))
    )


def test_what_has_to_be_known_of_the_data():
    every_other = "that of every other test image"
    assert every_other in table(study("figure1", "cifar10-st", "small"))
    assert "rare images are not the paper's very ones" not in table(
        study("figure1", "cifar10-st", "small")
    )
    assert "rare images are not the paper's very ones" in table(
        study("figure2", "cifar100-st", "paper")
    )
    assert "two of the three validation images of each class" in table(
        study("figure1", "inaturalist18", "paper")
    )
    assert every_other not in table(study("figure1", "imagenet-lt", "paper"))


# -- titles and claims
# ------------------------------------------------------------------------------------------------


def test_the_title_says_what_differs_from_the_scale():
    own = parsed(
        "figure1 --scale paper --epochs 1 --seeds 2 --grid lr=.1 SPD.dual_lr=.001,.01", "cifar10-st"
    )
    head = table(own).splitlines()[0]
    assert (
        head
        == "# figure1, scale paper, with epochs 1, grid lr=0.1, SPD.dual_lr=0.001,0.01, seeds 2"
    )
    assert table(study("figure1", "cifar10-st", "paper")).startswith("# figure1, scale paper\n")
    both = [
        parsed("figure1 --scale paper --epochs 30", name)
        for name in ("inaturalist18", "imagenet-lt")
    ]
    assert table(*both).startswith(
        "# figure1, scale paper, with epochs 30\n"
    )  # the first has so many anyway


def test_the_papers_claim_is_about_its_own_methods():
    claim = "The paper's claim: The KL constraint gives better accuracy"
    assert claim in table(study("table2", "cifar10-st", "small"))
    assert claim in table(
        parsed(
            f"table2 --methods {' '.join(study('table2', 'x', 'small').methods)} ERM", "cifar10-st"
        )
    )
    alone = table(parsed("table2 --methods ERM", "cifar10-st"))
    assert "claim" not in alone
    assert alone.startswith("# table2, scale small, with methods ERM\n")
    assert "claim" not in table(study("hidden", "adult", "small"))


def test_smoke_and_stand_ins_are_told_before_any_number():
    text = table(study("table2", "digits-st", "smoke"))
    head = text[: text.index("|")]
    assert "embedded digits in place of cifar10-st and cifar100-st; pixels, not features" in head
    assert "smoke scale: that it runs, nothing more" in head
    assert "paper, imagenet-lt" not in text
    assert "paper, imagenet-lt" in table(study("table2", "cifar10-st", "small"))
    assert "**" not in table(study("table2", "cifar10-st", "small"))
    assert "pixels" not in table(study("figure2", "digits-st", "smoke"))
    small = table(parsed("table4 --scale small", "digits-st"))
    assert "embedded digits" in small
    assert "smoke" not in small
    assert "[" not in small  # the paper's, by rho
    assert "in brackets" not in small
    assert "[67.57]" in table(study("table4", "cifar10-st", "small"))


# -- verdicts
# ---------------------------------------------------------------------------------------------------------


def by_method(own, values):
    """Outcomes with test accuracies of each method's seeds."""
    return [replace(o, results=results(values[o.arm.method])) for o in outcomes(own)]


def test_verdicts_are_those_of_holm_over_all_comparisons():
    rng = np.random.default_rng(3)
    own = study("figure1", "cifar10-st", "small")
    shifts = {"RSCDRO": 0.0, "RASCDRO": 0.004, "SPD": -0.01, "FastDRO": 0.012, "DualSGM": 0.0005}
    kinds = set()
    for _ in range(40):
        values = {name: shift + 0.5 + 0.004 * rng.normal(size=5) for name, shift in shifts.items()}
        found = paired.comparisons(own, by_method(own, values))
        tests = [
            scipy.stats.ttest_rel(values[d.ours.split(",")[0]], values[d.other.split(",")[0]])
            for d in found
        ]
        p = np.array([test.pvalue for test in tests])
        adjusted = np.empty(6)  # Holm's adjusted p-values: running maxima of (m - rank) p
        adjusted[np.argsort(p)] = np.maximum.accumulate(np.sort(p) * np.arange(6, 0, -1))
        for verdict, test, least, single in zip(
            paired.verdicts(found), tests, adjusted, p, strict=True
        ):
            way = "higher" if test.statistic > 0 else "lower"
            alone = f"{way} by its own interval alone" if single <= 0.05 else "no difference shown"
            assert verdict == (way if least <= 0.05 else alone)
            kinds.add(verdict)
    assert len(kinds) == 5


def test_verdicts_are_corrected_for_the_comparisons_on_all_data_sets():
    first, second = (study("table3", name, "small") for name in ("cifar10-st", "cifar100-st"))
    few = np.array([0.0, 1.0, -1.0, 2.0, -2.0]) / 1000
    clear = {
        "SCDRO": 0.5 + few,
        "ERM": 0.497 + 0 * few,
        "RECOVER": 0.5 - few,
        "ABSGD": 0.5 + few[::-1],
    }
    equal = {name: 0.5 + few * k for k, name in enumerate(clear)}
    p = scipy.stats.ttest_rel(clear["SCDRO"], clear["ERM"]).pvalue
    assert 0.05 / 6 < p < 0.05 / 3
    rows = [
        next(row for row in markdown(found).splitlines() if row.startswith("| SCDRO | ERM |"))
        for found in (
            [(first, by_method(first, clear))],
            [(n, by_method(n, v)) for n, v in ((first, clear), (second, equal))],
        )
    ]
    assert rows[0].endswith("| higher |")
    assert rows[1].endswith("| higher by its own interval alone |")


def test_rows_of_a_radius_do_not_name_the_one_of_the_search():
    """Settings of table 4 are searched at rho = .5; those of table 2 include the radius."""
    for experiment, searched, shown in (
        ("table4", 5 * ["lr=0.1"], (0.01, 0.05, 0.1, 0.5, 1.0)),
        ("table2", ["lr=0.1 rho=0.5"], (None,)),
    ):
        own = study(experiment, "cifar10-st", "small")
        own = replace(own, methods=own.methods[:1], grid=())
        found = [
            replace(outcome, settings={"lr": 0.1, "rho": 0.5})
            for outcome in outcomes(own, values=(0.5,))
        ]
        rows = seed_rows([(own, found)])
        assert [row["settings"] for row in rows] == searched
        assert tuple(row["rho"] for row in rows) == shown


def test_no_verdict_below_three_pairs():
    own = study("table3", "digits-st", "smoke")
    values = {"SCDRO": [0.9, 0.8], "ERM": [0.4, 0.3], "RECOVER": [0.1], "ABSGD": []}
    text = markdown([(own, by_method(own, values))])
    assert "all 3 comparisons of this page at once" in text
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| SCDRO | ")]
    rows = [[text.strip() for text in line] for line in lines]
    assert [row[3] for row in rows[-3:]] == ["2", "1", "0"]
    assert {row[-1] for row in rows[-3:]} == {"too few pairs"}
    assert [row[4:6] for row in rows[-2:]] == [["+80.00", "none"], ["none", "none"]]


def test_the_papers_own_update_is_compared_where_it_stands_alone():
    def pairs(*methods):
        own = study("figure1", "cifar10-st", "small", methods)
        return [
            (d.ours.split(",")[0], d.other.split(",")[0])
            for d in paired.comparisons(own, outcomes(own))
        ]

    assert pairs("RSCDRO-printed", "SPD") == [("RSCDRO-printed", "SPD")]
    assert pairs("RSCDRO", "RSCDRO-printed") == [("RSCDRO", "RSCDRO-printed")]


def test_equal_gaps_are_no_chance():
    own = study("table3", "cifar10-st", "small")
    values = {
        "SCDRO": [0.5, 0.75, 0.25],
        "ERM": [0.25, 0.5, 0.0],
        "RECOVER": [0.5, 0.75, 0.25],
        "ABSGD": [0.5] * 3,
    }
    found = paired.comparisons(own, by_method(own, values))
    assert paired.verdicts(found) == ["higher", "no difference shown", "no difference shown"]


def a_trial(loss, status="done", classes=10):
    return {
        "status": status,
        "settings": {},
        "train": {"robust_loss": loss, "per_class": [0.5] * classes},
    }


def test_trials_that_ended_far_above_guessing_did_not_end_well():
    own = study("figure1", "cifar10-st", "small", ("DualSGM",))
    trials = [
        a_trial(0.7),
        a_trial(23.0),
        a_trial(23.1),
        a_trial(1e13),
        a_trial(math.inf),
        {"status": "diverged"},
    ]
    text = markdown([(own, outcomes(own, trials=trials))])
    assert "| 2 of 6 |" in text  # 10 log 10 = 23.03
    assert "at most 10 log(classes)" in text
    hundred = [a_trial(46.0, classes=100), a_trial(46.1, classes=100)]
    assert "| 1 of 2 |" in markdown([(own, outcomes(own, trials=hundred))])
    assert "log(classes)" not in markdown([(own, outcomes(own))])


# -- beforehand
# -------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_done_and_makes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = (
        "table4 --scale smoke --dataset digits-st --methods SCDRO ERM --epochs 1 --trials 2"
        " --seeds 2"
    )
    assert main([*line.split(), "--rho", ".1", "1", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert not list(tmp_path.iterdir())
    for text in (
        "table4, scale smoke, with ",
        "embedded digits in place",
        "epochs 1 instead of 120",
        "batch_size     32",
    ):
        assert text in said.out
    assert "SCDRO, rho 0.1: 2 settings\nSCDRO, rho 1: 2 settings\nERM: 2 settings\n" in said.out
    assert main([*line.split(), "--rho", ".1", "1"]) == 0  # the runs that there are then
    seeds = [path.parent.name for path in tmp_path.rglob("result.json")]
    assert (
        f"runs: {seeds.count('seed-0')} to search, {len(seeds) - seeds.count('seed-0')} of seeds"
        in said.out
    )


def test_a_dry_run_needs_no_data_and_says_what_is_missing(tmp_path, capsys):
    line = f"figure1 --scale paper --data {tmp_path} --out {tmp_path}/runs --dry-run"
    assert main(line.split()) == 0
    said = capsys.readouterr()
    assert said.err.count("expected features in") == 4
    assert "runs: 160 to search, 25 of seeds" in said.out
    assert not list(tmp_path.iterdir())
