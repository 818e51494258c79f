"""
Do boosted trees gain from the worst case?
==========================================

``KLDROLGBMClassifier`` is LightGBM on the worst case. Its worst losses are much smaller, and most of
that is free: the plain trees with a temperature are less sure too. Look at both, at the same mean log
loss.
"""

import lightgbm
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split

import scdro
from scdro.boosting import KLDROLGBMClassifier

# %%
# A table with noise in its labels. Both models stop early on the same held-out rows.

X, y = make_classification(
    9_000, 20, n_informative=8, n_clusters_per_class=4, flip_y=0.08, random_state=0
)
X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
X, X_held, y, y_held = train_test_split(X, y, test_size=0.3, random_state=0)
settings = {"n_estimators": 400, "learning_rate": 0.1, "num_leaves": 15, "n_jobs": 1, "verbose": -1}
stop = [lightgbm.early_stopping(20, verbose=False)]
plain = lightgbm.LGBMClassifier(**settings)
plain.fit(X, y, eval_X=X_held, eval_y=y_held, callbacks=stop)
robust = KLDROLGBMClassifier(rho=0.1, **settings)
robust.fit(X, y, eval_X=X_held, eval_y=y_held, callbacks=stop)

# %%
# The plain trees' temperature, for the worst case at the robust trees' price: chosen on held-out rows,
# among those whose mean log loss there is no higher than that of the robust trees.


def losses(
    model: lightgbm.LGBMClassifier, X: np.ndarray, y: np.ndarray, T: float = 1.0
) -> np.ndarray:
    """Log losses of the model at a temperature."""
    log_odds = model.predict(X, raw_score=True) * np.where(y == 1, 1, -1)
    result: np.ndarray = np.logaddexp(0, -log_odds / T)
    return result


def worst(values: np.ndarray) -> float:
    return float(scdro.worst_case(values, rho=0.5).value)


temperatures = np.geomspace(0.5, 8, 120)
price = losses(robust, X_held, y_held).mean()
allowed = [T for T in temperatures if losses(plain, X_held, y_held, T).mean() <= price]
best = min(allowed, key=lambda T: worst(losses(plain, X_held, y_held, T)))
rows = {
    "plain": losses(plain, X_test, y_test),
    f"plain, T = {best:.2f}": losses(plain, X_test, y_test, best),
    "KL worst case": losses(robust, X_test, y_test),
}
for name, values in rows.items():
    accuracy = np.mean(values < np.log(2))
    print(
        f"{name:<18} mean {values.mean():.3f}  worst case {worst(values):.3f}  accuracy {accuracy:.3f}"
    )

# %%
# Every temperature of both models. Where one curve lies below the other, that model has something
# that the other cannot have for free. Here the plain trees have it: a temperature is the better way to
# small worst losses on this table.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for name, model in (("plain LightGBM", plain), ("KLDROLGBMClassifier", robust)):
    curve = np.array(
        [[v.mean(), worst(v)] for v in (losses(model, X_test, y_test, T) for T in temperatures)]
    )
    line = left.plot(*curve.T, label=f"{name}, all temperatures")[0]
    own = losses(model, X_test, y_test)
    left.plot(own.mean(), worst(own), "o", color=line.get_color(), label=f"{name}, as trained")
left.set(xlabel="mean log loss", ylabel="worst case of the log losses, rho = 0.5", ylim=(0.5, 2.5))
left.set_xlim(0.35, 0.6)
left.legend(fontsize=8, loc="upper right")
for name, values in rows.items():
    right.plot(np.sort(values)[::-1], label=name)
right.set(xscale="log", xlabel="test rows, hardest first", ylabel="log loss")
right.legend()
plt.show()
