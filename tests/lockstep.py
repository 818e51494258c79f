"""A printed algorithm and its linear-domain twin, step by step on the same batches."""

import numpy as np
import torch

from logistic import N, flat, losses_of, problem

STEPS = 100
LAM1 = 1.5


def batches(steps=STEPS, size=8, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.choice(N, size, replace=False) for _ in range(steps)]


def distance(a, b):
    """The largest difference relative to max(1, |b|)."""
    a, b = np.atleast_1d(np.asarray(a, dtype=float)), np.atleast_1d(np.asarray(b, dtype=float))
    return float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b))))


def assert_close(opt, model, twin, tolerance, t):
    for name, ours, theirs in (
        ("w", flat(model), twin.w),
        ("lam", opt.lam.item(), twin.lam),
        ("log s", opt.log_s.item(), twin.log_s),
    ):
        assert distance(ours, theirs) <= tolerance, (
            f"{name} differs by {distance(ours, theirs):.1e} after step {t}"
        )


def run_in_lockstep(make, make_twin, *, weighted=False, indices=None, tolerance=1e-9, seed=0):
    """Both for 100 steps; returns the optimizer, the twin and the history of (lam, |w|)."""
    model, x, y, by_hand = problem(seed)
    opt, twin = make(model), make_twin(flat(model))
    history, rng = [], np.random.default_rng(2)
    for t, index in enumerate(batches() if indices is None else indices, 1):
        weight = (
            rng.uniform(0.0, 2.0, len(index)) * (rng.random(len(index)) < 0.8) + 1e-3
            if weighted
            else None
        )
        opt.step(
            losses_of(model, x, y, index),
            sample_weight=None if weight is None else torch.tensor(weight),
        )
        twin.step(by_hand.batch(index), weight)
        assert_close(opt, model, twin, tolerance, t)
        assert opt.resets.item() == twin.resets
        history.append((opt.lam.item(), float(np.linalg.norm(flat(model)))))
    return opt, twin, np.array(history)


SETTINGS = {
    "plain": ({}, {}, False),
    "weight_decay": ({"weight_decay": 0.05}, {"wd": 0.05}, False),
    "mu": ({"mu": 0.05}, {"mu": 0.05}, False),
    "radius": ({"radius": 0.5}, {"radius": 0.5}, False),
    "sample_weight": ({}, {}, True),
    "everything": (
        {"weight_decay": 0.02, "mu": 0.03, "radius": 0.6},
        {"wd": 0.02, "mu": 0.03, "radius": 0.6},
        True,
    ),
}
