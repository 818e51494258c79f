"""TensorBoard's files, beside the metrics.jsonl of the same run."""

import json
import time

import pytest
from torchrun_worker import Stop


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    found.Reload()
    return found


def flat(record, prefix=""):
    pairs = {}
    for key, value in record.items():
        pairs |= (
            flat(value, f"{prefix}{key}/") if isinstance(value, dict) else {prefix + key: value}
        )
    return {key: value for key, value in pairs.items() if value is not None}


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_as_logged(folder, steps):
    """Every number of metrics.jsonl, at the right step and once; TensorBoard keeps float32."""
    found, expected = read(folder), {}
    for step, record in zip(steps, lines(folder), strict=True):
        for key, value in flat(record).items():
            expected.setdefault(key, []).append((step, pytest.approx(value, rel=1e-6)))
    tags = found.Tags()["scalars"]
    assert {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in tags} == expected
    return found


def interrupted(samples):
    """TensorBoard reads its files in the order of their names: whole seconds, then a counter in which 10 is before 9.
    So the next run begins in another second."""

    def progress(done, total, text):
        if done >= samples:
            time.sleep(1.01 - time.time() % 1)
            raise Stop

    return progress
