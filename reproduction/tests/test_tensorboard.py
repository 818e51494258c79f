"""What `pretrain --tensorboard` writes, read by TensorBoard."""

import pytest

pytest.importorskip("tensorboard")
pytestmark = pytest.mark.integration

from event_files import assert_as_logged, interrupted  # noqa: E402
from torchrun_worker import Stop  # noqa: E402

from reproduction.data import DigitsST  # noqa: E402
from reproduction.pretrain import Pretraining, pretrain  # noqa: E402


def test_pretraining(tmp_path):
    config = Pretraining("digits-st", model="resnet8", epochs=2, evaluate_every=1, batch_size=256)
    data = [DigitsST(train=part).subset(range(300)) for part in (True, False)]
    with pytest.raises(Stop):
        pretrain(
            config, *data, tmp_path, checkpoint_every=100, tensorboard=True, progress=interrupted(3)
        )
    pretrain(config, *data, tmp_path, tensorboard=True)
    assert_as_logged(tmp_path, [2, 4])
