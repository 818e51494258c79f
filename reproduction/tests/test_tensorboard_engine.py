"""What `--tensorboard` writes, read by TensorBoard: what metrics.jsonl has, each step once, after a kill too."""

import numpy as np
import pytest
import torch

pytest.importorskip("tensorboard")
pytestmark = pytest.mark.integration

import torchrun_worker as worker  # noqa: E402
from event_files import assert_as_logged, interrupted, lines, read  # noqa: E402

from reproduction.engine.tensorboard import Events  # noqa: E402
from reproduction.engine.training import train  # noqa: E402
from scdro import worst_case  # noqa: E402


@pytest.mark.parametrize("stops", [(), (100, 300), (400,)])
def test_a_run(tmp_path, stops):
    """Stopped between evaluations, and started again from checkpoints that are older than the last of them."""
    run, task = worker.run_of("SCDRO"), worker.rows()
    with worker.float64():
        for samples in stops:
            seconds = (
                0.0 if samples < 300 else 1e9
            )  # the second stop loses what came after the first
            with pytest.raises(worker.Stop):
                train(
                    run,
                    task,
                    tmp_path,
                    checkpoint_seconds=seconds,
                    tensorboard=True,
                    progress=interrupted(samples),
                )
        train(run, task, tmp_path, tensorboard=True)
    steps = [line["step"] for line in lines(tmp_path)]
    assert len(steps) == worker.STUDY.points + 1
    found = assert_as_logged(tmp_path, steps)
    assert {"lam", "kl", "ess", "train/robust_loss", "validation/top1"} <= set(
        found.Tags()["scalars"]
    )
    n = len(task.train)
    for line, losses, weights in zip(
        lines(tmp_path), found.Histograms("losses"), found.Histograms("weights"), strict=True
    ):
        assert (losses.step, weights.step) == (line["step"], line["step"])
        assert (losses.histogram_value.num, weights.histogram_value.num) == (n, n)
        assert losses.histogram_value.sum == pytest.approx(n * line["train"]["loss"])
        assert weights.histogram_value.sum == pytest.approx(n)
        assert weights.histogram_value.max > 1.5
        assert sum(weights.histogram_value.bucket) == n


def test_histograms_are_those_of_the_losses(tmp_path):
    losses = np.random.default_rng(0).exponential(size=500)
    weights = worst_case(losses, 0.5).weights * 500
    events = Events(tmp_path, 0)
    events.add({}, 3, {"weights": torch.from_numpy(np.asarray(weights))})
    events.close()
    (found,) = read(tmp_path).Histograms("weights")
    edges = np.array(found.histogram_value.bucket_limit)
    counts = np.diff(np.searchsorted(np.sort(weights), edges, side="right"), prepend=0)
    np.testing.assert_array_equal(counts, found.histogram_value.bucket)
