"""The stages of the restarted forms with the constants of Lemmas 4 and 5, as table 1 checks them.

A library user takes `scdro.optim.factor_stages`, which has the same factors without the constants:
they are so large that no run reaches the end of the first stage.
"""

from __future__ import annotations

import math

from scdro._validation import check_number, check_whole
from scdro.optim import Stage

__all__ = ["lemma_stages"]


def lemma_stages(
    mu: float, eps1: float, sigma: float, L_F: float, stages: int, *, accelerated: bool = False
) -> list[Stage]:
    """The stages of Lemma 4 (RSCDRO) or, `accelerated`, Lemma 5 (RASCDRO), with every constant.

    eps_k starts at `eps1`, the initial gap, and halves; `sigma` bounds the noise and `L_F` the
    smoothness. L_F grows like exp(2 C/lam0), so the result is of theoretical interest only, unless
    you know a small L_F.

    In Lemma 5, eta_k is taken as sqrt(mu eps_k)/(24 c L_F sigma), as its proof requires (the paper
    prints sigma^2).

    Example:
        >>> [stage.steps for stage in lemma_stages(mu=0.1, eps1=1.0, sigma=1.0, L_F=1.0, stages=2)]
        [14745600, 29491200]
    """
    for name, value in {"mu": mu, "eps1": eps1, "sigma": sigma, "L_F": L_F}.items():
        check_number(name, value, "> 0")
    check_whole("stages", stages)
    return [_lemma_stage(mu, eps1 / 2**k, sigma, L_F, accelerated) for k in range(stages)]


def _lemma_stage(mu: float, eps: float, sigma: float, L_F: float, accelerated: bool) -> Stage:
    c = (768 if accelerated else 384) * L_F**2
    beta = min(mu * eps / (c * sigma**2), 1 / c)
    if accelerated:
        lr = min(math.sqrt(mu * eps) / (24 * c * L_F * sigma), 1 / (24 * c * L_F**2))
        steps = (
            192
            * c
            * max(
                L_F * sigma / (mu**1.5 * math.sqrt(eps)),
                L_F**2 * sigma**2 / (mu * eps),
                L_F**2 / mu,
            )
        )
    else:
        lr = min(mu * eps / (12 * c * L_F**2 * sigma**2), 1 / (12 * c * L_F**2))
        steps = 384 * c * max(L_F**2 * sigma**2 / (mu**2 * eps), L_F**2 / mu)
    return Stage(lr, min(beta, 1.0), math.ceil(steps))
