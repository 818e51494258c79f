"""The values to try: those of the paper, and a fair choice of some of them."""

from collections import Counter

from reproduction.baselines import REGISTRY
from reproduction.grids import GRIDS, trials


def test_the_grids_are_the_papers():
    """EXPERIMENTS.md, "Settings"."""
    assert set(GRIDS) == set(REGISTRY)
    for grid in GRIDS.values():
        assert grid["lr"] == (0.01, 0.05, 0.1, 0.5, 1.0)
    for name in ("SCDRO", "ASCDRO", "RSCDRO", "RASCDRO", "RECOVER"):
        assert GRIDS[name]["beta"] == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    for name in ("SPD", "PGSMD2"):
        assert GRIDS[name]["dual_lr"] == (1e-5, 5e-5, 1e-4, 5e-4)
    assert GRIDS["RECOVER"]["lam"] == (1.0, 50.0, 100.0)
    for name in ("SCDRO-printed", "ASCDRO-printed", "RSCDRO-printed", "RASCDRO-printed", "DualSGM"):
        assert GRIDS[name]["lam"] == (0.1, 1.0, 10.0)


def test_trials():
    every = trials("SPD")
    assert len(every) == 20
    assert {"lr": 0.05, "dual_lr": 1e-4} in every
    some = trials("SPD", 7, seed=1)
    assert len(some) == 7
    assert all(trial in every for trial in some)
    assert some == trials("SPD", 7, seed=1) != trials("SPD", 7, seed=2)
    for count in (7, 15, 24, 100):  # every value as often as the others, but for one or two
        for drawn in (
            trials(name, count, values={"rho": (0.1, 0.5, 1.0)}) for name in ("SCDRO", "DualSGM")
        ):
            assert len({tuple(trial.values()) for trial in drawn}) == count
            for key in drawn[0]:
                times = Counter(trial[key] for trial in drawn)
                assert max(times.values()) - min(times.values()) <= 2
    pairs = [
        (t["lr"], t["rho"])
        for t in trials("SCDRO", 25, values={"beta": (0.1, 0.5), "rho": range(1, 6)})
    ]
    assert len(set(pairs)) == 25  # all of them once
    own = trials("SPD", values={"lr": (0.3,), "rho": (0.1, 0.5)})
    assert own == [
        {"lr": 0.3, "dual_lr": d, "rho": r} for d in (1e-5, 5e-5, 1e-4, 5e-4) for r in (0.1, 0.5)
    ]
