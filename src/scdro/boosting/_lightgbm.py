"""LightGBM on the worst case: its own objectives, with the weights of the samples set before every
round.

LightGBM calls a callback before each round. It wraps the next call of `Booster.update`:

    1. compute p from the losses of the trees so far                            (solve_ratio)
    2. set the weights of the training data to w p/q, and update the booster
    3. set them back to w, so that metrics of the training data are not affected

From `KLDROLGBMClassifier.fit` to a tree:

    fit = _reweight_lightgbm_fit(LGBMClassifier.fit)     adds the callback and our metrics
    LightGBM's own fit                                   calls the callback before each round
    LightGBMWorstCase.__call__ -> _weigh_next_round      the three steps above

Weights rather than an objective in Python, because a custom objective would disable parts of
LightGBM: the start from the average, leaves refitted to medians and quantiles, probabilities from
`predict`, its file format.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from lightgbm import Booster, CVBooster, Dataset, LGBMClassifier, LGBMRegressor

from scdro._frames import numbers_or_pandas
from scdro._validation import check_rho
from scdro.boosting._losses import (
    Array,
    BoostingLoss,
    LogisticLoss,
    OneVsAllLoss,
    SoftmaxLoss,
    is_true,
    lightgbm_loss,
)
from scdro.boosting._metric import RobustMetric, default_metric, split_metrics
from scdro.boosting._round_weights import choose_first_ratio, solve_ratio
from scdro.errors import DataError

__all__ = [
    "KLDROLGBMClassifier",
    "KLDROLGBMRegressor",
    "LightGBMWorstCase",
    "lightgbm_metric",
    "lightgbm_objective",
]


class LightGBMWorstCase:
    r"""A callback that puts every round of LightGBM on the worst case of the losses so far.

    Before each round the samples get the weights  w_i p_i/q_i,  where w_i are their own, q_i =
    w_i/sum(w), and

        p  =  argmax_{KL(p, q) <= rho} sum_i p_i l_i,   p_i ~ q_i exp(l_i/lam)

    so that gradients and Hessians are those of the robust value at these p. A classifier starts
    from the constant with the smallest robust value. After each round the samples get their own
    weights back, so metrics are not affected.

    Args:
        rho: radius of the KL ball, >= 0; 0 changes nothing.

    Attributes:
        lam: the temperature of the last round.
        value: the robust value of the training losses before it.

    Example:
        >>> import lightgbm
        >>> from sklearn.datasets import load_breast_cancer
        >>> data = lightgbm.Dataset(*load_breast_cancer(return_X_y=True))
        >>> params = {"objective": "binary", "num_threads": 1, "verbose": -1}
        >>> model = lightgbm.train(params, data, 20, callbacks=[LightGBMWorstCase(rho=0.1)])
    """

    before_iteration = True
    order = 0

    def __init__(self, rho: float) -> None:
        check_rho(rho)
        self.rho = rho
        self.lam: float | None = None
        self.value = float("nan")

    def __call__(self, env: Any) -> None:
        if self.rho == 0.0:
            return
        for booster in env.model.boosters if isinstance(env.model, CVBooster) else [env.model]:
            self._weigh_next_round(booster, env.params, first=env.iteration == env.begin_iteration)

    def _weigh_next_round(self, booster: Booster, params: dict[str, Any], first: bool) -> None:
        """Wrap the next update of a booster, so that it sees the weights of the worst case.

        Args:
            booster: to be updated.
            params: LightGBM's parameters, which say what the loss is.
            first: whether it is the first round of this training, which has no losses yet unless
                scores were given to start from.
        """
        data = booster.train_set
        y = data.get_label()
        loss = lightgbm_loss(params, y)
        own = data.get_weight()
        if own is None:
            own = np.ones(len(y), dtype=np.float32)
        if first and own.min() < 0:  # LightGBM alone takes them, but they are no distribution
            raise DataError(f"expected sample weights of at least 0, got {own.min():g}")
        factor = loss.factor(y)
        q = own if factor is None else own * factor
        if (
            first
            and data.get_init_score() is None
            and is_true(params.get("boost_from_average", True))
        ):
            ratio = choose_first_ratio(loss, y, q, self.rho)
        else:
            # LightGBM keeps the predictions of the training rows (data 0) up to date, and has no
            # public way to read them: `predict` would run all trees again in every round.
            losses = loss.of_samples(y, booster._Booster__inner_predict(data_idx=0))
            worst = solve_ratio(losses, q, self.rho, start=self.lam)
            ratio, self.lam, self.value = worst.ratio, worst.lam, worst.value
        weight = own if ratio is None else (own * ratio).astype(np.float32)  # of this round

        def update(*args: Any, **kwargs: Any) -> Any:
            """The booster's own update under the weights of this round, once."""
            del booster.update  # back to the method of the class
            data.set_field("weight", weight)
            if first and any(data.feature_num_bin(k) for k in range(data.num_feature())):
                # The objective reads weights, and starts from the average, where they were when it
                # was made. (Where no column can be split there is nothing to weight, and LightGBM
                # would not make it.)
                objective = params.get("objective") or "regression"
                own_objective = {
                    "objective": objective,
                    "num_class": booster.num_model_per_iteration(),
                }
                booster.reset_parameter(
                    own_objective | _number_of_leaves(params) | _bound_on_leaves(loss, params)
                )
            try:
                return booster.update(*args, **kwargs)
            finally:
                data.set_field("weight", own)

        # The metrics of the training data follow right after the update, before any callback, so
        # this wraps it.
        booster.update = update


def _number_of_leaves(params: dict[str, Any]) -> dict[str, Any]:
    """num_leaves as it was given, by any of its names: without it, a reset warns where there is a
    max_depth.
    """
    names = ("num_leaves", "num_leaf", "max_leaves", "max_leaf", "max_leaf_nodes")
    return {name: params[name] for name in names if name in params} or {"num_leaves": 31}


def _bound_on_leaves(loss: BoostingLoss, params: dict[str, Any]) -> dict[str, float]:
    """A bound on the leaves of classifiers, unless the user gave one (even 0, for none).

    Where the true class is improbable its loss has hardly any curvature, Newton's step is hundreds
    of log odds, and the
    samples that it fails then get all the weight: without a bound the trees run away.
    """
    given = {"max_delta_step", "max_tree_output", "max_leaf_output"} & set(params)
    classifies = isinstance(loss, LogisticLoss | OneVsAllLoss | SoftmaxLoss)
    return {"max_delta_step": 10.0} if classifies and not given else {}


def lightgbm_objective(
    rho: float, objective: str = "binary", **params: Any
) -> Callable[[Array, Dataset], tuple[Array, Array]]:
    r"""Gradients and Hessians of the robust value, for your own training loop: sum_i p_i l_i at the
    worst case p.

    They are n p_i dl_i/ds_i and n p_i d^2l_i/ds_i^2, n the sum of the weights. As with any
    objective in Python, LightGBM then starts from zero (give `init_score`), refits no leaves and
    predicts scores; `LightGBMWorstCase` with a built-in objective keeps all this.

    Args:
        rho: radius of the KL ball, >= 0.
        objective: LightGBM's name of the loss, such as "binary", "multiclass", "regression",
            "quantile".
        params: what belongs to it, such as alpha=0.9.

    Example:
        >>> import lightgbm
        >>> from sklearn.datasets import load_diabetes
        >>> data = lightgbm.Dataset(*load_diabetes(return_X_y=True))
        >>> params = {"objective": lightgbm_objective(0.1, "regression"), "num_threads": 1, "verbose": -1}
        >>> model = lightgbm.train(params, data, 20)
    """
    check_rho(rho)
    loss = lightgbm_loss({**params, "objective": objective})
    lam: float | None = None

    def robust(scores: Array, data: Dataset) -> tuple[Array, Array]:
        """What LightGBM calls in each round: derivatives in the scores, times n p_i."""
        nonlocal lam
        y, weight = data.get_label(), data.get_weight()
        worst = solve_ratio(loss.of_samples(y, loss.prediction(scores)), weight, rho, start=lam)
        lam = worst.lam
        share = worst.ratio if weight is None else weight * worst.ratio
        first, second = loss.derivatives(y, scores)
        share = share[:, None] if first.ndim == 2 else share
        return share * first, share * second

    return robust


def lightgbm_metric(
    rho: float, objective: str = "binary", *, raw: bool = False, **params: Any
) -> Callable[[Array, Dataset], tuple[str, float, bool]]:
    """The robust value as `feval` of `lightgbm.train`.

    Args:
        rho: radius of the KL ball, >= 0.
        objective, params: as for `lightgbm_objective`.
        raw: the model is trained by an objective in Python, and so predicts scores.

    Example:
        >>> import lightgbm
        >>> from sklearn.datasets import load_breast_cancer
        >>> data = lightgbm.Dataset(*load_breast_cancer(return_X_y=True))
        >>> params = {"objective": "binary", "metric": "None", "num_threads": 1, "verbose": -1}
        >>> model = lightgbm.train(params, data, 20, valid_sets=[data], feval=lightgbm_metric(0.1))
        >>> list(model.best_score["training"])
        ['robust@0.1']
    """
    check_rho(rho)
    value = RobustMetric(
        f"robust@{rho:g}", rho, lightgbm_loss({**params, "objective": objective}), raw=raw
    )

    def metric(predictions: Array, data: Dataset) -> tuple[str, float, bool]:
        return value.__name__, value(data.get_label(), predictions, data.get_weight()), False

    return metric


class _LightGBMMetric:
    """One of our metrics, as LightGBM's estimators accept it. Its loss is that of the objective
    used in `fit`.
    """

    def __init__(self, name: str, rho: float, model: Any) -> None:
        self.name, self.rho, self.model = name, rho, model

    def __deepcopy__(self, memo: Any) -> _LightGBMMetric:
        """Itself: `fit` copies metrics, and with them would copy the model."""
        return self

    def __call__(
        self, y_true: Array, y_pred: Array, weight: Array | None
    ) -> tuple[str, float, bool]:
        loss = lightgbm_loss(self.model._process_params(stage="predict"), y_true)
        return self.name, RobustMetric(self.name, self.rho, loss)(y_true, y_pred, weight), False


def _reweight_lightgbm_fit(fit: Callable[..., Any]) -> Callable[..., Any]:
    """LightGBM's `fit`, with the callback, our metrics, and a robust value as the default metric."""
    signature = inspect.signature(fit)

    @wraps(fit)
    def robust_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the estimator's own `fit`, whose text `help` shows."""
        check_rho(self.rho)
        given = signature.bind(self, *args, **kwargs).arguments  # by name, however they came
        given["X"] = numbers_or_pandas(given["X"])
        for name in ("eval_set", "eval_X"):
            given[name] = _make_readable(given.get(name))
        metrics = given.get("eval_metric")
        if self.rho > 0.0:
            given["callbacks"] = [*(given.get("callbacks") or ()), LightGBMWorstCase(self.rho)]
            if metrics is None and not self._has_metric():
                metrics = default_metric(self.rho)
        ours, others = split_metrics(metrics, self.rho)
        if ours:
            given["eval_metric"] = [
                *(_LightGBMMetric(name, rho, self) for name, rho in ours.items()),
                *others,
            ]
            # Otherwise LightGBM would put its own metric first, and stop by it (_process_params).
            self._no_default_metric = not others and not self._has_metric()
        try:
            return fit(**given)
        finally:
            self.__dict__.pop("_no_default_metric", None)

    return robust_fit


def _make_readable(thing: Any) -> Any:
    """Tables as LightGBM reads them, also in lists and pairs.

    A category or text of polars or Arrow ends the process in its C++ code; categories of pandas it
    knows, and texts of pandas it refuses.
    """
    if isinstance(thing, list | tuple):
        return type(thing)(_make_readable(one) for one in thing)
    return numbers_or_pandas(thing)


def _read_rows_first(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of prediction that reads tables of any kind."""

    @wraps(method)
    def call(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, numbers_or_pandas(X), *args, **kwargs)

    return call


class _LightGBMOnWorstCase:
    """What `rho` adds to LightGBM's estimators: it is a parameter of ours, and none of LightGBM's."""

    def _has_metric(self) -> bool:
        """Whether a metric is among the parameters, by any of its names."""
        return bool({"metric", "metrics", "metric_types"} & set(self.get_params()))  # type: ignore[attr-defined]

    def _process_params(self, stage: str) -> dict[str, Any]:
        """The parameters that LightGBM gets from its estimator, which calls this in `fit` and `predict`."""
        params: dict[str, Any] = super()._process_params(stage)  # type: ignore[misc]
        params.pop("rho")  # not LightGBM's
        if getattr(self, "_no_default_metric", False):
            params["metric"] = "None"
        return params


class KLDROLGBMClassifier(_LightGBMOnWorstCase, LGBMClassifier):
    r"""`lightgbm.LGBMClassifier` on the worst case: binary or multiclass log loss.

    min over trees of  max_{KL(p, q) <= rho} sum_i p_i l_i:  each round takes the exact worst case p
    of the losses so far, and weights gradients and Hessians by it. Everything else is LightGBM's:
    every parameter, categorical columns, missing values, early stopping, `booster_`,
    `predict(pred_contrib=True)`, its file format. With rho = 0 it is `LGBMClassifier`, bit for bit.

    `eval_metric` also accepts "robust", the robust value at this rho, and "robust@0.5", that at
    another. By default, the one at rho / 5 replaces log loss, also in early stopping.

    Predicted probabilities are those of the worst case; calibrate them if you need those of the
    data.

    Args:
        rho: radius of the KL ball, >= 0.
        kwargs: LightGBM's own parameters.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model = KLDROLGBMClassifier(rho=0.1, n_estimators=20, n_jobs=1, verbose=-1).fit(X, y)
        >>> model.predict(X[:3])
        array([0, 0, 0])

    References:
        Ke et al., LightGBM, NeurIPS 2017; the worst case: Hu and Hong, Kullback-Leibler divergence
        constrained distributionally robust optimization, 2013.
    """

    def __init__(self, *, rho: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rho = rho

    fit = _reweight_lightgbm_fit(LGBMClassifier.fit)
    predict = _read_rows_first(LGBMClassifier.predict)
    predict_proba = _read_rows_first(LGBMClassifier.predict_proba)


class KLDROLGBMRegressor(_LightGBMOnWorstCase, LGBMRegressor):
    r"""`lightgbm.LGBMRegressor` on the worst case: squared, absolute, quantile, Huber or Poisson
    loss.

    As `KLDROLGBMClassifier`. The losses are r^2/2, |r|, max(-alpha r, (1 - alpha) r), Huber's, and
    half of Poisson's deviance; with the quantile loss the worst case is one of the pinball losses,
    not of the errors.

    Args:
        rho: radius of the KL ball, >= 0.
        kwargs: LightGBM's own parameters, such as objective="quantile", alpha=0.9.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = KLDROLGBMRegressor(rho=0.1, objective="huber", n_jobs=1, verbose=-1).fit(X, y)
    """

    def __init__(self, *, rho: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rho = rho

    fit = _reweight_lightgbm_fit(LGBMRegressor.fit)
    predict = _read_rows_first(LGBMRegressor.predict)
