"""XGBoost on the worst case: its own objectives, with the weights of the samples set before every
round.

A callback wraps each call of `Booster.update`, as for LightGBM: it sets the weights w p/q, updates
the booster, and sets the weights w again.

    fit = _reweight_xgboost_fit(XGBClassifier.fit)       adds the callback and our metrics
    XGBoost's own fit                                    calls the callback before each round
    XGBoostWorstCase.before_iteration                    wraps the update (_weigh_next_round),
                                                         which computes w p/q (_weight)

Weights rather than an objective in Python, because XGBoost then keeps `base_score`, leaves refitted
to medians and quantiles, probabilities and its file format. Under `xgboost.dask` each worker
weights its own rows by the worst case of all of them: the workers exchange a few numbers for each
trial temperature, through XGBoost's own collectives.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from xgboost import Booster, DMatrix, XGBClassifier, XGBRegressor, collective
from xgboost.callback import TrainingCallback
from xgboost.core import XGBoostError

from scdro._validation import check_rho
from scdro.boosting._losses import Array, BoostingLoss, xgboost_loss
from scdro.boosting._metric import RobustMetric, default_metric, split_metrics
from scdro.boosting._round_weights import choose_first_ratio, solve_ratio
from scdro.errors import HyperparameterError

__all__ = [
    "KLDROXGBClassifier",
    "KLDROXGBRegressor",
    "XGBoostWorstCase",
    "xgboost_metric",
    "xgboost_objective",
]

# Parameters of XGBoost that a loss depends on.
_SETTINGS = ("scale_pos_weight", "quantile_alpha", "huber_slope")


def among_workers(values: Array, operation: str) -> Array:
    """The sum or maximum over the workers of `xgboost.dask`; over one process, itself."""
    if collective.get_world_size() == 1:
        return values
    op = collective.Op.SUM if operation == "sum" else collective.Op.MAX
    try:
        total: Array = collective.allreduce(np.ascontiguousarray(values, dtype=np.float64), op)
        return total
    except XGBoostError as error:
        raise RuntimeError(
            f"expected an answer from all {collective.get_world_size()} workers, got none from"
            " some: one has died or raised an error of its own; look at the workers' logs, and"
            " train again"
        ) from error


def _read_config(booster: Booster) -> tuple[BoostingLoss, bool]:
    """The loss of a booster's objective, and whether it starts from the average."""
    learner = json.loads(booster.save_config())["learner"]
    objective = learner["objective"]
    own: dict[str, Any] = {}
    for group in ("reg_loss_param", "quantile_loss_param", "pseudo_huber_param"):
        own |= objective.get(group, {})
    known = {name: json.loads(own[name]) for name in _SETTINGS if name in own}
    return (
        xgboost_loss(objective["name"], **known),
        learner["learner_model_param"]["boost_from_average"] == "1",
    )


class XGBoostWorstCase(TrainingCallback):
    r"""A callback that puts every round of XGBoost on the worst case of the losses so far.

    Before each round the samples get the weights  w_i p_i/q_i,  where w_i are their own, q_i =
    w_i/sum(w), and

        p  =  argmax_{KL(p, q) <= rho} sum_i p_i l_i,   p_i ~ q_i exp(l_i/lam)

    so that gradients and Hessians are those of the robust value at these p. A classifier starts
    from the constant with the smallest robust value. After each round the samples get their own
    weights back, so metrics are not affected. Works in `xgboost.train`, `xgboost.cv` and, for the
    worst case over all workers, `xgboost.dask`.

    Args:
        rho: radius of the KL ball, >= 0; 0 changes nothing.

    Attributes:
        lam: the temperature of the last round.
        value: the robust value of the training losses before it.

    Example:
        >>> import xgboost
        >>> from sklearn.datasets import load_breast_cancer
        >>> data = xgboost.DMatrix(*load_breast_cancer(return_X_y=True), nthread=1)
        >>> params = {"objective": "binary:logistic", "nthread": 1}
        >>> model = xgboost.train(params, data, 20, callbacks=[XGBoostWorstCase(rho=0.1)])
    """

    def __init__(self, rho: float) -> None:
        check_rho(rho)
        self.rho = rho
        self.lam: float | None = None
        self.value = float("nan")
        self._loss: BoostingLoss | None = None
        self._from_average = True

    def before_training(self, model: Any) -> Any:
        """Called by XGBoost: which loss it is, and whether it starts from the average."""
        self.lam = None
        if self.rho > 0.0:
            self._loss, self._from_average = _read_config(_boosters(model)[0])
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Called by XGBoost before each round; False: go on."""
        if self.rho > 0.0:
            for booster in _boosters(model):
                self._weigh_next_round(booster)
        return False

    def _weigh_next_round(self, booster: Booster) -> None:
        """Wrap the next update of a booster, so that it sees the weights of the worst case.

        The update knows the data, which the callback does not; metrics are computed right after it.
        """

        def update(data: DMatrix, iteration: int = 0, fobj: Any = None) -> None:
            """The booster's own update under the weights of this round, once."""
            del booster.update  # back to the method of the class
            if fobj is not None:
                raise HyperparameterError(
                    "expected one of XGBoost's own objectives, got a function; weigh its gradients"
                    " by scdro.worst_case, or use xgboost_objective"
                )
            own = data.get_weight()
            data.set_weight(self._weight(booster, data))
            try:
                booster.update(data, iteration)
            finally:
                data.set_weight(own)

        booster.update = update

    def _weight(self, booster: Booster, data: DMatrix) -> Array:
        """The weights of the next round, w p/q, (n,)."""
        assert self._loss is not None
        y, own = data.get_label(), data.get_weight()
        if not own.size:
            own = np.ones(len(y), dtype=np.float32)
        factor = self._loss.factor(y)
        q = own if factor is None else own * factor
        if (
            booster.num_boosted_rounds() == 0
            and self._from_average
            and not data.get_base_margin().size
        ):
            ratio = choose_first_ratio(self._loss, y, q, self.rho, among_workers)
            return np.asarray(own if ratio is None else own * ratio)
        scores = booster.predict(data, output_margin=True).astype(np.float64)
        losses = self._loss.of_samples(y, self._loss.prediction(scores))
        worst = solve_ratio(losses, q, self.rho, start=self.lam, reduce=among_workers)
        self.lam, self.value = worst.lam, worst.value
        return np.asarray(own * worst.ratio)


def _boosters(model: Any) -> list[Booster]:
    """One, or those of the folds of `xgboost.cv`."""
    return [fold.bst for fold in model.cvfolds] if hasattr(model, "cvfolds") else [model]


def xgboost_objective(
    rho: float, objective: str = "binary:logistic", **params: Any
) -> Callable[[Array, DMatrix], tuple[Array, Array]]:
    r"""Gradients and Hessians of the robust value, for your own training loop: sum_i p_i l_i at the
    worst case p.

    They are n p_i dl_i/ds_i and n p_i d^2l_i/ds_i^2, n the sum of the weights. As with any
    objective in Python, XGBoost then refits no leaves and predicts scores; `XGBoostWorstCase` with
    a built-in objective keeps all this.

    Args:
        rho: radius of the KL ball, >= 0.
        objective: XGBoost's name of the loss, such as "binary:logistic", "multi:softprob",
            "reg:squarederror".
        params: what belongs to it: scale_pos_weight, quantile_alpha or huber_slope.

    Example:
        >>> import xgboost
        >>> from sklearn.datasets import load_diabetes
        >>> data = xgboost.DMatrix(*load_diabetes(return_X_y=True), nthread=1)
        >>> model = xgboost.train({"nthread": 1}, data, 20, obj=xgboost_objective(0.1, "reg:squarederror"))
    """
    check_rho(rho)
    loss = xgboost_loss(objective, **params)
    lam: float | None = None

    def robust(scores: Array, data: DMatrix) -> tuple[Array, Array]:
        """What XGBoost calls in each round: derivatives in the scores, times n p_i."""
        nonlocal lam
        y, weight, double = data.get_label(), data.get_weight(), scores.astype(np.float64)
        base = weight if weight.size else np.ones(len(y), dtype=np.float32)
        worst = solve_ratio(
            loss.of_samples(y, loss.prediction(double)), base, rho, start=lam, reduce=among_workers
        )
        lam = worst.lam
        share = base * worst.ratio
        first, second = loss.derivatives(y, double)
        share = share[:, None] if first.ndim == 2 else share
        return share * first, share * second

    return robust


def xgboost_metric(
    rho: float, objective: str = "binary:logistic", *, raw: bool = False, **params: Any
) -> Callable[[Array, DMatrix], tuple[str, float]]:
    """The robust value as `custom_metric` of `xgboost.train` and `xgboost.dask.train`.

    Args:
        rho: radius of the KL ball, >= 0.
        objective, params: as for `xgboost_objective`.
        raw: the model is trained by an objective in Python, and so predicts scores.

    Example:
        >>> import xgboost
        >>> from sklearn.datasets import load_breast_cancer
        >>> data = xgboost.DMatrix(*load_breast_cancer(return_X_y=True), nthread=1)
        >>> params, found = {"objective": "binary:logistic", "nthread": 1}, {}
        >>> model = xgboost.train(params, data, 20, evals=[(data, "train")], custom_metric=xgboost_metric(0.1),
        ...                       evals_result=found, verbose_eval=False)
        >>> list(found["train"])
        ['logloss', 'robust@0.1']
    """
    check_rho(rho)
    loss = xgboost_loss(objective, **params)
    value = RobustMetric(f"robust@{rho:g}", rho, loss, raw=raw, reduce=among_workers)

    def metric(predictions: Array, data: DMatrix) -> tuple[str, float]:
        return value.__name__, value(data.get_label(), predictions, data.get_weight())

    return metric


def _reweight_xgboost_fit(fit: Callable[..., Any]) -> Callable[..., Any]:
    """XGBoost's `fit`, with the callback, and the robust value among the metrics."""

    @wraps(fit)
    def robust_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        check_rho(self.rho)
        # XGBoost reads callbacks and metrics from the estimator itself: for the time of the fit,
        # ours are among them.
        own = self.callbacks, self.eval_metric
        try:
            if self.rho > 0.0:
                self.callbacks = [*(own[0] or ()), XGBoostWorstCase(self.rho)]
            metric = default_metric(self.rho) if own[1] is None and self.rho > 0.0 else own[1]
            ours, others = split_metrics(metric, self.rho)
            if ours:
                metrics = [
                    *others,
                    *(_XGBoostMetric(name, rho, self) for name, rho in ours.items()),
                ]
                self.eval_metric = metrics if len(metrics) > 1 else metrics[0]
            return fit(self, *args, **kwargs)
        finally:
            self.callbacks, self.eval_metric = own

    return robust_fit


class _XGBoostMetric:
    """One of our metrics, as XGBoost's estimators accept it. Its loss is that of the objective used
    in `fit`.
    """

    def __init__(self, name: str, rho: float, model: Any) -> None:
        self.__name__, self.rho, self.model = name, rho, model

    def __call__(self, y_true: Array, y_pred: Array, sample_weight: Array | None = None) -> float:
        params = self.model.get_params()
        many = getattr(self.model, "n_classes_", 2) > 2
        known = {name: params[name] for name in _SETTINGS if params.get(name) is not None}
        loss = xgboost_loss("multi:softprob" if many else params["objective"], **known)
        return RobustMetric(self.__name__, self.rho, loss, reduce=among_workers)(
            y_true, y_pred, sample_weight
        )


class _XGBoostOnWorstCase:
    """What `rho` adds to XGBoost's estimators."""

    def _wrapper_params(self) -> set[str]:
        """Names of parameters that the estimator keeps from the booster."""
        own: set[str] = super()._wrapper_params()  # type: ignore[misc]
        return own | {"rho"}  # not XGBoost's


class KLDROXGBClassifier(_XGBoostOnWorstCase, XGBClassifier):
    r"""`xgboost.XGBClassifier` on the worst case: binary or multiclass log loss.

    min over trees of  max_{KL(p, q) <= rho} sum_i p_i l_i:  each round takes the exact worst case p
    of the losses so far, and weights gradients and Hessians by it. Everything else is XGBoost's:
    every parameter, categorical columns, missing values, early stopping, `get_booster()`, SHAP, its
    file format. With rho = 0 it is `XGBClassifier`, bit for bit.

    `eval_metric` also accepts "robust", the robust value at this rho, and "robust@0.5", that at
    another. By default, the one at rho / 5 is added after log loss, so it decides early stopping.

    Predicted probabilities are those of the worst case; calibrate them if you need those of the
    data.

    Args:
        rho: radius of the KL ball, >= 0.
        kwargs: XGBoost's own parameters.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model = KLDROXGBClassifier(rho=0.1, n_estimators=20, n_jobs=1).fit(X, y)
        >>> model.predict(X[:3])
        array([0, 0, 0])

    References:
        Chen and Guestrin, XGBoost, KDD 2016; the worst case: Hu and Hong, Kullback-Leibler
        divergence constrained distributionally robust optimization, 2013.
    """

    def __init__(self, *, rho: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rho = rho

    fit = _reweight_xgboost_fit(XGBClassifier.fit)


class KLDROXGBRegressor(_XGBoostOnWorstCase, XGBRegressor):
    r"""`xgboost.XGBRegressor` on the worst case: squared, absolute, quantile, pseudo-Huber or
    Poisson loss.

    As `KLDROXGBClassifier`. The losses are r^2/2, |r|, max(-alpha r, (1 - alpha) r),
    pseudo-Huber's, and half of Poisson's deviance.

    Args:
        rho: radius of the KL ball, >= 0.
        kwargs: XGBoost's own parameters, such as objective="reg:quantileerror", quantile_alpha=0.9.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = KLDROXGBRegressor(rho=0.1, objective="reg:absoluteerror", n_jobs=1).fit(X, y)
    """

    def __init__(self, *, rho: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rho = rho

    fit = _reweight_xgboost_fit(XGBRegressor.fit)
