"""Networks of the experiments."""

from scdro.models.heads import linear_head
from scdro.models.network import Network
from scdro.models.pretrained import ResNet50
from scdro.models.resnet import CifarResNet, resnet20, resnet32

__all__ = ["CifarResNet", "Network", "ResNet50", "linear_head", "resnet20", "resnet32"]
