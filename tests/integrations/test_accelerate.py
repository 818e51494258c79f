"""The Accelerate loop of the examples."""

import pytest
import torch

pytest.importorskip("accelerate")
pytestmark = pytest.mark.integration

from accelerate_loop import train  # noqa: E402

from equality import assert_identical  # noqa: E402


def states(model, robust):
    return {"model": model.state_dict(), "robust": robust.state_dict()}


def test_resumed_equals_uninterrupted(tmp_path):
    whole = train(4, batch=128, parts=2)
    train(2, batch=128, parts=2, out=tmp_path)
    assert_identical(
        states(*whole), states(*train(4, batch=128, parts=2, out=tmp_path, resume=True))
    )


@pytest.fixture
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_float64")
def test_accumulated_gradients_are_those_of_the_large_batch():
    whole, parts = states(*train(2, batch=128)), states(*train(2, batch=32, parts=4))
    for part in ("model", "robust"):
        for key, value in whole[part].items():
            torch.testing.assert_close(value, parts[part][key], rtol=1e-8, atol=1e-10)
