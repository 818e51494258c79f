"""
Is it more than a threshold and a temperature?
==============================================

Two gains of robust training are free. The accuracy of a rare class rises when the threshold moves,
and the worst case of log losses falls when the model is less sure of everything. Any model can make
both moves without being trained again. So before you train on the worst case, give the plain model
the best threshold and temperature for the same criterion: that is the rival.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, recall_score
from sklearn.model_selection import TunedThresholdClassifierCV, train_test_split

import scdro
from scdro.linear_model import KLDROClassifier

# %%
# One class in ten. Nobody is overlooked within the classes: they only overlap.

X, y = make_classification(
    12_000, 20, n_informative=6, weights=[0.9], flip_y=0.02, class_sep=0.8, random_state=0
)
X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)
X, X_held, y, y_held = train_test_split(X, y, test_size=0.33, random_state=0, stratify=y)

plain = LogisticRegression().fit(X, y)
robust = KLDROClassifier(rho=0.3).fit(X, y)

# %%
# **The rare class.** The threshold of each model is tuned by scikit-learn, on rows that did not train
# it, for the mean accuracy of the classes.


def recalls(model: object) -> tuple[float, float]:
    """The accuracy on the frequent and on the rare class."""
    said = model.predict(X_test)
    return tuple(recall_score(y_test, said, average=None))


def tune(model: object) -> object:
    """The same model, with the threshold of the best mean accuracy of the classes."""
    tuned = TunedThresholdClassifierCV(
        FrozenEstimator(model), scoring="balanced_accuracy", cv="prefit", refit=False
    )
    return tuned.fit(X_held, y_held)


by_class = {
    "plain": recalls(plain),
    "KL worst case": recalls(robust),
    "plain, tuned": recalls(tune(plain)),
    "KL, tuned": recalls(tune(robust)),
}
for name, (frequent, rare) in by_class.items():
    print(f"{name:<14} frequent {frequent:.3f}  rare {rare:.3f}  mean {(frequent + rare) / 2:.3f}")

# %%
# **The worst case of the log losses.** What each model reaches as it becomes less sure, T > 1: its mean
# log loss is the price.
# scikit-learn's calibrator makes the mean log loss as small as it can; there was little to gain.


def curve(model: object, temperatures: np.ndarray) -> np.ndarray:
    """Mean log loss and robust value for every temperature, (temperatures, 2)."""
    scores = model.decision_function(X_test) * np.where(y_test == 1, 1, -1)
    losses = [np.logaddexp(0, -scores / T) for T in temperatures]
    return np.array([[one.mean(), scdro.worst_case(one, rho=0.3).value] for one in losses])


temperatures = np.geomspace(0.7, 6, 60)
calibrated = CalibratedClassifierCV(FrozenEstimator(plain), method="sigmoid").fit(X_held, y_held)
for name, model in (("plain", plain), ("calibrated", calibrated), ("KL worst case", robust)):
    print(f"{name:<14} mean log loss {log_loss(y_test, model.predict_proba(X_test)):.4f}")

# %%
# Left: the threshold is what serves the rare class, and the plain model is better with it. Right: at
# the same price in mean log loss, the plain model with a temperature has the worst case of the robust
# one. Nothing here is a reason to train another model. There is one where a model fails people whom
# no threshold can serve: see the examples on hidden groups.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained")
for k, (frequent, rare) in enumerate(by_class.values()):
    left.bar(k - 0.2, frequent, 0.38, color="0.7", label="frequent class" if k == 0 else None)
    left.bar(k + 0.2, rare, 0.38, color="C0", label="rare class" if k == 0 else None)
left.set_xticks(
    range(4), [name.replace(", ", ",\n").replace("KL worst", "KL\nworst") for name in by_class]
)
left.set(ylabel="accuracy of the class", ylim=(0, 1.2))
left.legend(ncols=2)
for name, model in (("plain", plain), ("KL worst case", robust)):
    points = curve(model, temperatures)
    own = curve(model, np.array([1.0]))[0]
    line = right.plot(*points.T, label=f"{name}, all temperatures")[0]
    right.plot(*own, "o", color=line.get_color(), label=f"{name}, as trained")
right.set(xlabel="mean log loss (the price)", ylabel="worst case, rho = 0.3")
right.legend(fontsize=8)
plt.show()
