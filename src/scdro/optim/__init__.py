"""The algorithms, as torch optimizers: `step(closure)` with a closure that returns per-sample losses."""

from scdro.optim.ascdro import ASCDRO
from scdro.optim.restart import RASCDRO, RSCDRO, Stage, decay_stages, factor_stages, lemma_stages
from scdro.optim.scdro import SCDRO

__all__ = ["ASCDRO", "RASCDRO", "RSCDRO", "SCDRO", "Stage", "decay_stages", "factor_stages", "lemma_stages"]
