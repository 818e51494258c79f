"""The algorithms, as torch optimizers: `step(closure)` with a closure that returns per-sample losses."""

from scdro.optim.ascdro import ASCDRO
from scdro.optim.restart import RASCDRO, RSCDRO, Stage, decay_stages, factor_stages, lemma_stages
from scdro.optim.scdro import SCDRO
from scdro.optim.weighting import ABSGD, ERM, Chi2, Chi2Penalty, CVaR, DualSGM, FastDRO, KLBall

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
    "DualSGM",
    "FastDRO",
    "KLBall",
    "Stage",
    "decay_stages",
    "factor_stages",
    "lemma_stages",
]
