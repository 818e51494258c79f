r"""Step sizes and averaging by the theorems' powers of T. The constants are fixed; only T varies.

The theorems' own constants hold L_F, which grows like exp(2C/lam0), and ask for more steps than
there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scdro.optim import Stage

__all__ = ["Ascdro", "Constant", "Restarts", "Scdro", "staged"]


@dataclass(frozen=True)
class Scdro:
    """Theorem 1: beta = T^(-1/2), eta = `ratio` beta (there 1/(20 L_F^2))."""

    ratio: float

    def at(self, horizon: int) -> tuple[float, float]:
        """eta and beta."""
        beta = horizon**-0.5
        return self.ratio * beta, beta


@dataclass(frozen=True)
class Ascdro:
    """Theorem 2: eta_t = k/(w + t)^(1/3), beta_t = c eta_t^2, t = 1, 2, ...; sigma is in k and w."""

    k: float
    w: float
    c: float

    def at(self, t: int) -> tuple[float, float]:
        """eta_t and beta_t."""
        eta = self.k / (self.w + t) ** (1 / 3)
        return eta, min(self.c * eta**2, 1.0)


@dataclass(frozen=True)
class Restarts:
    """Corollaries 1 and 2: eps = `eps` T^(-1/3), or for the `accelerated` form T^(-1/2), and mu = `mu` eps.

    Stage k works at eps_k = 2^(K-k) eps, the first at about `gap`, the gap of the start:

        RSCDRO   beta_k = `beta` mu eps_k,  eta_k = `eta` mu eps_k,        T_k ~ 1/(mu^2 eps_k)
        RASCDRO  beta_k = `beta` mu eps_k,  eta_k = `eta` sqrt(mu eps_k),  T_k ~ 1/(mu^(3/2) sqrt(eps_k))

    (of the lemma's two lengths the longer one, since mu ~ eps <= eps_k), and the T_k add up to T.
    """

    accelerated: bool
    eps: float
    mu: float
    eta: float
    beta: float
    gap: float

    def target(self, horizon: int) -> tuple[float, float]:
        """eps and mu."""
        eps = self.eps * horizon ** (-1 / 2 if self.accelerated else -1 / 3)
        return eps, self.mu * eps

    def stages(self, horizon: int) -> list[Stage]:
        eps, mu = self.target(horizon)
        count = max(1, math.ceil(math.log2(self.gap / eps)))
        levels = [eps * 2.0**k for k in reversed(range(count))]
        steps = staged(horizon, [self._length(mu, level) for level in levels])
        return [
            self._stage(mu * level, length) for level, length in zip(levels, steps, strict=True)
        ]

    def _length(self, mu: float, level: float) -> float:
        return 1 / (mu**1.5 * level**0.5) if self.accelerated else 1 / (mu**2 * level)

    def _stage(self, scale: float, steps: int) -> Stage:
        eta = self.eta * (math.sqrt(scale) if self.accelerated else scale)
        return Stage(eta, min(self.beta * scale, 1.0), steps)


def staged(total: int, lengths: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to the lengths, at least one each, that add up to the total.

    Example:
        >>> staged(100, [1.0, 2.0, 4.0])
        [14, 29, 57]
    """
    steps = [max(1, round(total * length / sum(lengths))) for length in lengths]
    return [*steps[:-1], total - sum(steps[:-1])]


@dataclass(frozen=True)
class Constant:
    """The baselines: `factor` T^power throughout a run."""

    factor: float
    power: float = -0.5

    def at(self, horizon: int) -> float:
        return float(self.factor * horizon**self.power)
