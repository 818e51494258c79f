"""The algorithms, as torch optimizers: `step(closure)` with a closure that returns per-sample losses."""

from scdro.optim.absgd import ABSGD
from scdro.optim.accmda import AccMDA
from scdro.optim.ascdro import ASCDRO
from scdro.optim.dual_sgm import DualSGM
from scdro.optim.fastdro import Chi2, Chi2Penalty, CVaR, FastDRO, KLBall, Multilevel
from scdro.optim.group_dro import GroupDRO
from scdro.optim.pgsmd2 import PGSMD2
from scdro.optim.recover import RECOVER
from scdro.optim.registry import REGISTRY, Method
from scdro.optim.restart import RASCDRO, RSCDRO, Stage, decay_stages, factor_stages, lemma_stages
from scdro.optim.scdro import SCDRO
from scdro.optim.spd import SPD
from scdro.optim.weighting import ERM

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
