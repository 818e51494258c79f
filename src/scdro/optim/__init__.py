"""The algorithms as torch optimizers. Call `step(closure)` with a closure that returns per-sample losses."""

from scdro.optim.ascdro import ASCDRO, RASCDRO
from scdro.optim.baselines.absgd import ABSGD
from scdro.optim.baselines.erm import ERM
from scdro.optim.baselines.fastdro import Chi2, Chi2Penalty, CVaR, FastDRO, KLBall, Multilevel
from scdro.optim.baselines.group_dro import GroupDRO
from scdro.optim.scdro import RSCDRO, SCDRO, Stage, decay_stages, factor_stages

__all__ = [
    "ABSGD",
    "ASCDRO",
    "ERM",
    "RASCDRO",
    "RSCDRO",
    "SCDRO",
    "CVaR",
    "Chi2",
    "Chi2Penalty",
    "FastDRO",
    "GroupDRO",
    "KLBall",
    "Multilevel",
    "Stage",
    "decay_stages",
    "factor_stages",
]
