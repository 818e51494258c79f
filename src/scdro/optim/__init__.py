"""The algorithms as torch optimizers. Call `step(closure)` with a closure that returns per-sample losses."""

from scdro.optim.ascdro import ASCDRO, RASCDRO
from scdro.optim.baselines.absgd import ABSGD
from scdro.optim.baselines.accmda import AccMDA
from scdro.optim.baselines.dual_sgm import DualSGM
from scdro.optim.baselines.erm import ERM
from scdro.optim.baselines.fastdro import Chi2, Chi2Penalty, CVaR, FastDRO, KLBall, Multilevel
from scdro.optim.baselines.group_dro import GroupDRO
from scdro.optim.baselines.pgsmd2 import PGSMD2
from scdro.optim.baselines.recover import RECOVER
from scdro.optim.baselines.spd import SPD
from scdro.optim.registry import REGISTRY, Method
from scdro.optim.scdro import RSCDRO, SCDRO, Stage, decay_stages, factor_stages, lemma_stages

__all__ = [
    "ABSGD",
    "ASCDRO",
    "ERM",
    "PGSMD2",
    "RASCDRO",
    "RECOVER",
    "REGISTRY",
    "RSCDRO",
    "SCDRO",
    "SPD",
    "AccMDA",
    "CVaR",
    "Chi2",
    "Chi2Penalty",
    "DualSGM",
    "FastDRO",
    "GroupDRO",
    "KLBall",
    "Method",
    "Multilevel",
    "Stage",
    "decay_stages",
    "factor_stages",
    "lemma_stages",
]
