"""The losses behind the objectives of LightGBM and XGBoost, and their derivatives.

A boosting library only needs derivatives; the worst case needs the losses themselves:

    losses       l(y, prediction)            of the prediction as the library gives it
    derivatives  dl/ds, d2l/ds2              in the score s, the sum of the trees

    loss         prediction        l                                  dl/ds, d2l/ds2
    Logistic     p = sigmoid(s)    -y log p - (1-y) log(1-p)          p - y, p (1-p)
    Softmax      p = softmax(s)    -log p_y                           p - e_y, p (1-p)
    OneVsAll     p = sigmoid(s)    Logistic of each class, summed     p - e_y, p (1-p)
    Squared      s                 r^2/2, r = s - y                   r, 1
    Absolute     s                 |r|                                sign r, 1
    Pinball      s                 max(-a r, (1-a) r)                 -a or 1-a, 1
    Huber        s                 r^2/2, linear beyond delta         clip(r), 1
    PseudoHuber  s                 delta^2 (sqrt(1 + r^2/delta^2) - 1)
    Poisson      m = exp(s)        y log(y/m) - y + m                 m - y, m

Each loss is zero for a perfect prediction, so that losses of different samples compare. Second
derivatives that are zero are given as one, as both libraries do: a leaf divides by their sum.

In the last part, `lightgbm_loss` and `xgboost_loss` read which loss a library's parameters mean,
and refuse those under which a worst case of single samples has no meaning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax, xlogy

from scdro.errors import DataError, HyperparameterError

__all__ = [
    "AbsoluteLoss",
    "Array",
    "BoostingLoss",
    "HuberLoss",
    "LogisticLoss",
    "OneVsAllLoss",
    "PinballLoss",
    "PoissonLoss",
    "PseudoHuberLoss",
    "SoftmaxLoss",
    "SquaredLoss",
    "is_true",
    "lightgbm_loss",
    "xgboost_loss",
]

Array = npt.NDArray[Any]


def _sigmoid(scores: Array) -> Array:
    """1/(1 + exp(-s)), which scipy keeps from overflowing."""
    p: Array = expit(scores)
    return p


def _softmax(scores: Array) -> Array:
    """exp(s) over its sum along the classes."""
    p: Array = softmax(scores, axis=1)
    return p


class BoostingLoss(ABC):
    """One loss per sample, l(y, prediction), and its derivatives in the score.

    Targets y are (n,) or (n, targets); predictions and scores have one number per sample, or one
    per class or target. The names of the methods are those of the module's table:

        prediction(scores)            what the library predicts
        of_samples(y, prediction)     (n,), what the worst case is taken of
        derivatives(y, scores)        for objectives in Python; else the library has its own
        factor(y)                     a weight of the sample that the library itself adds
    """

    def prediction(self, scores: Array) -> Array:
        """What the library predicts if its trees sum to `scores`."""
        return scores

    def of_samples(self, y: Array, prediction: Array) -> Array:
        """One loss per sample, (n,): the sum over its targets if there are several."""
        # Non-finite losses are reported by the worst case.
        with np.errstate(over="ignore", invalid="ignore"):
            losses = self.losses(y, prediction)
        return losses.sum(1) if losses.ndim == 2 else losses

    @abstractmethod
    def losses(self, y: Array, prediction: Array) -> Array:
        """l(y, prediction) in double precision, (n,) or (n, targets)."""

    @abstractmethod
    def derivatives(self, y: Array, scores: Array) -> tuple[Array, Array]:
        """First and second, in the shape of the scores."""

    def factor(self, y: Array) -> Array | None:
        """What the library itself multiplies the gradient of each sample by, (n,); None for one."""
        return None


@dataclass(frozen=True)
class LogisticLoss(BoostingLoss):
    """-y log p - (1 - y) log(1 - p), p = 1/(1 + exp(-score))."""

    scale_pos_weight: float = 1.0

    def prediction(self, scores: Array) -> Array:
        return _sigmoid(scores)

    def losses(self, y: Array, prediction: Array) -> Array:
        p, not_p = _log(prediction), _log(1.0 - prediction)
        return -(y * p + (1.0 - y) * not_p)

    def derivatives(self, y: Array, scores: Array) -> tuple[Array, Array]:
        p = _sigmoid(scores)
        return p - y, p * (1.0 - p)

    def factor(self, y: Array) -> Array | None:
        """`scale_pos_weight` for positives. It is part of the sample's weight q, not of its loss."""
        if self.scale_pos_weight == 1.0:
            return None
        if y.ndim == 2:
            raise HyperparameterError(
                "expected scale_pos_weight=1 where samples have several labels, got"
                f" {self.scale_pos_weight}: the worst case weighs samples, not labels"
            )
        return np.where(y > 0, self.scale_pos_weight, 1.0)


class SoftmaxLoss(BoostingLoss):
    """-log p_y, p = softmax(scores); scores and probabilities are (n, classes)."""

    def prediction(self, scores: Array) -> Array:
        return _softmax(scores)

    def losses(self, y: Array, prediction: Array) -> Array:
        if prediction.ndim != 2:
            raise DataError(
                f"expected probabilities (n, classes), got shape {prediction.shape}; with XGBoost"
                " choose the objective multi:softprob instead of multi:softmax"
            )
        return -_log(np.take_along_axis(prediction, y.astype(np.intp)[:, None], 1)[:, 0])

    def derivatives(self, y: Array, scores: Array) -> tuple[Array, Array]:
        p = _softmax(scores)
        second = p * (1.0 - p)  # the diagonal only, as both libraries use
        p[np.arange(len(y)), y.astype(np.intp)] -= 1.0
        return p, second


class OneVsAllLoss(BoostingLoss):
    """The logistic losses of all classes, each against the rest, summed over the classes."""

    def prediction(self, scores: Array) -> Array:
        return _sigmoid(scores)

    def losses(self, y: Array, prediction: Array) -> Array:
        own = y[:, None] == np.arange(prediction.shape[1])
        return np.asarray(-_log(np.where(own, prediction, 1.0 - prediction)).sum(1))

    def derivatives(self, y: Array, scores: Array) -> tuple[Array, Array]:
        p = _sigmoid(scores)
        return p - (y[:, None] == np.arange(p.shape[1])), p * (1.0 - p)


class SquaredLoss(BoostingLoss):
    """r^2/2, r = prediction - y."""

    def losses(self, y: Array, prediction: Array) -> Array:
        r = _residual(y, prediction)
        return 0.5 * r * r

    def derivatives(self, y: Array, scores: Array) -> tuple[Array, Array]:
        return _residual(y, scores), np.ones_like(scores)


class AbsoluteLoss(BoostingLoss):
    """|r|. Its second derivative, zero, is given as one, as both libraries do."""

    def losses(self, y: Array, prediction: Array) -> Array:
        return np.abs(_residual(y, prediction))

    def derivatives(self, y: Array, scores: Array) -> tuple[Array, Array]:
        return np.sign(_residual(y, scores)), np.ones_like(scores)


@dataclass(frozen=True)
class PinballLoss(BoostingLoss):
    """max(-quantile r, (1 - quantile) r): its minimum over constants is the quantile of y.

    Its second derivative, zero, is given as one.
    """

    quantile: float

    def losses(self, y: Array, prediction: Array) -> Array:
        r = _residual(y, prediction)
        return np.maximum(-self.quantile * r, (1.0 - self.quantile) * r)

    def derivatives(self, y: Array, scores: Array) -> tuple[Array, Array]:
        return np.where(
            _residual(y, scores) >= 0, 1.0 - self.quantile, -self.quantile
        ), np.ones_like(scores)


@dataclass(frozen=True)
class HuberLoss(BoostingLoss):
    """r^2/2 up to |r| = delta, delta |r| - delta^2/2 beyond.

    Its second derivative is given as one there too.
    """

    delta: float

    def losses(self, y: Array, prediction: Array) -> Array:
        r = np.abs(_residual(y, prediction))
        near = np.minimum(r, self.delta)
        return near * (r - 0.5 * near)

    def derivatives(self, y: Array, scores: Array) -> tuple[Array, Array]:
        return np.clip(_residual(y, scores), -self.delta, self.delta), np.ones_like(scores)


@dataclass(frozen=True)
class PseudoHuberLoss(BoostingLoss):
    """delta^2 (sqrt(1 + (r/delta)^2) - 1), a Huber loss without a corner.

    Written as r^2/(sqrt(1 + (r/delta)^2) + 1), which keeps the digits of small r.
    """

    delta: float

    def losses(self, y: Array, prediction: Array) -> Array:
        r = _residual(y, prediction) / self.delta
        return self.delta**2 * r * r / (np.sqrt(1.0 + r * r) + 1.0)

    def derivatives(self, y: Array, scores: Array) -> tuple[Array, Array]:
        r = _residual(y, scores)
        root = np.sqrt(1.0 + (r / self.delta) ** 2)
        return r / root, root**-3.0


class PoissonLoss(BoostingLoss):
    """y log(y/mean) - y + mean, mean = exp(score): half the deviance, zero at mean = y."""

    def prediction(self, scores: Array) -> Array:
        with np.errstate(over="ignore"):  # of a model that diverges, as the worst case will tell
            return np.exp(scores)

    def losses(self, y: Array, prediction: Array) -> Array:
        y = y.astype(np.float64)
        entropy: Array = xlogy(y, y)
        return np.asarray(np.maximum(entropy - y * _log(prediction) - y + prediction, 0.0))

    def derivatives(self, y: Array, scores: Array) -> tuple[Array, Array]:
        mean = np.exp(scores)
        return mean - y, mean


def _residual(y: Array, prediction: Array) -> Array:
    """prediction - y in float64; the libraries give float32."""
    return np.subtract(prediction, y, dtype=np.float64)


def _log(p: Array) -> Array:
    """log p, with p at least the rounding unit, so that a confident mistake has a large but finite
    loss.
    """
    return np.asarray(np.log(np.maximum(p, np.finfo(p.dtype).eps), dtype=np.float64))


# -- by the names that the libraries give them

# LightGBM's own names and aliases, as its documentation lists them.
_SQUARED = ["regression", "regression_l2", "l2", "mean_squared_error", "mse"]
_SQUARED += ["l2_root", "root_mean_squared_error", "rmse"]
_LIGHTGBM: dict[str, type[BoostingLoss]] = {
    "binary": LogisticLoss,
    **dict.fromkeys(["multiclass", "softmax"], SoftmaxLoss),
    **dict.fromkeys(["multiclassova", "multiclass_ova", "ova", "ovr"], OneVsAllLoss),
    **dict.fromkeys(_SQUARED, SquaredLoss),
    **dict.fromkeys(["regression_l1", "l1", "mean_absolute_error", "mae"], AbsoluteLoss),
    "quantile": PinballLoss,
    "huber": HuberLoss,
    "poisson": PoissonLoss,
}
_XGBOOST: dict[str, type[BoostingLoss]] = {
    "binary:logistic": LogisticLoss,
    "multi:softprob": SoftmaxLoss,
    "multi:softmax": SoftmaxLoss,
    "reg:squarederror": SquaredLoss,
    "reg:absoluteerror": AbsoluteLoss,
    "reg:quantileerror": PinballLoss,
    "reg:pseudohubererror": PseudoHuberLoss,
    "count:poisson": PoissonLoss,
}


def is_true(flag: Any) -> bool:
    """A flag as LightGBM reads it: True, or a text such as "true", "False", "+", "-"."""
    return flag.lower() not in ("false", "-", "0", "") if isinstance(flag, str) else bool(flag)


def lightgbm_loss(params: Mapping[str, Any], y: Array | None = None) -> BoostingLoss:
    """The loss that LightGBM's parameters ask for.

    Raises for settings under which a worst case has no meaning. With `is_unbalance`, the labels y
    determine the weight of positives.
    """
    kind = _loss_type(params.get("objective") or "regression", _LIGHTGBM, "LightGBM")
    for name in ("boosting", "boosting_type", "boost"):
        if str(params.get(name)).lower() in ("rf", "random_forest"):
            raise HyperparameterError(
                f'expected {name} "gbdt" or "dart", got "{params[name]}": a forest takes gradients'
                " only once"
            )
    if is_true(params.get("reg_sqrt")):
        raise HyperparameterError(
            "expected reg_sqrt=False, got True; fit the square roots of y instead"
        )
    if kind is LogisticLoss:
        if float(params.get("sigmoid", 1.0)) != 1.0:
            raise HyperparameterError(
                f"expected sigmoid=1, got {params['sigmoid']}; change learning_rate instead"
            )
        scale = float(params.get("scale_pos_weight", 1.0))
        if y is not None and any(
            is_true(params.get(n)) for n in ("is_unbalance", "unbalance", "unbalanced_sets")
        ):
            positive = float((y > 0).sum())
            # LightGBM raises the rarer class to the weight of the other; to scale negatives is to
            # scale positives by the inverse, up to a factor that the worst case does not see.
            scale *= (len(y) - positive) / max(positive, 1.0)
        return LogisticLoss(scale)
    alpha = float(params.get("alpha", 0.9))
    return (
        PinballLoss(alpha)
        if kind is PinballLoss
        else HuberLoss(alpha)
        if kind is HuberLoss
        else kind()
    )


def xgboost_loss(
    objective: Any,
    *,
    scale_pos_weight: float = 1.0,
    quantile_alpha: Any = 0.5,
    huber_slope: float = 1.0,
) -> BoostingLoss:
    """The loss of one of XGBoost's objectives, with the parameters that belong to it."""
    kind = _loss_type(objective, _XGBOOST, "XGBoost")
    if kind is PinballLoss:
        quantiles = np.atleast_1d(np.asarray(quantile_alpha, dtype=np.float64))
        if len(quantiles) != 1:
            raise HyperparameterError(
                f"expected one quantile_alpha, got {quantiles.tolist()}: their worst cases differ;"
                " fit a model for each"
            )
        return PinballLoss(float(quantiles[0]))
    if kind is LogisticLoss:
        return LogisticLoss(float(scale_pos_weight))
    return PseudoHuberLoss(float(huber_slope)) if kind is PseudoHuberLoss else kind()


def _loss_type(
    objective: Any, known: Mapping[str, type[BoostingLoss]], library: str
) -> type[BoostingLoss]:
    """The class of a loss by the library's name for it, or an error that lists the names."""
    if not isinstance(objective, str) or objective not in known:
        name = (
            objective
            if isinstance(objective, str)
            else f"the function {getattr(objective, '__name__', objective)}"
        )
        raise HyperparameterError(
            f"expected one of {library}'s objectives {', '.join(known)}, got {name}; the worst case"
            " needs the losses of samples, and knows those of these only (rho=0 takes any)"
        )
    return known[objective]
