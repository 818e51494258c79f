"""
Confirm it, fix it
==================

A model found a shortcut, and fails those for whom the shortcut does not hold. ``SecondLook`` finds
them without group labels, trains again with weights, and says out of fold whether that helps. A fix
counts only if a free move does not do the same, so the plain model with its best threshold stands
beside it, and both are judged on rows that nobody has used.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import TunedThresholdClassifierCV

import scdro

# %%
# Landbirds and waterbirds. The background agrees with the bird for 95%, and is the clearer signal of
# the two.


def birds(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, birds (1: waterbird) and backgrounds (1: water)."""
    rng = np.random.default_rng(seed)
    bird = rng.integers(2, size=n)
    water = np.where(rng.random(n) < 0.95, bird, 1 - bird)
    noise = rng.normal(size=(n, 2)) * (0.1, 0.25)
    return np.c_[water, bird] + noise, bird, water


X, y, water = birds(1000, seed=0)
X_new, y_new, water_new = birds(20_000, seed=1)

# %%
# **Find.** The audit is given the background of new rows, and tells whom the plain model fails.

plain = LogisticRegression().fit(X, y)
audit = scdro.audit(
    plain, X_new[:4000], y_new[:4000], {"background": np.where(water_new, "water", "land")[:4000]}
)
print(audit.headline)

# %%
# **Fix.** No background is given here. The verdict is made from the training rows alone.

look = scdro.SecondLook(LogisticRegression(), random_state=0).fit(X, y)
print(look.verdict_)
print(look.find_slices({"background": np.where(water, "water", "land")}))

# %%
# **Confirm**, on 16,000 rows that nobody has looked at. The free rival: the plain model's threshold,
# tuned for the mean accuracy of the classes. It cannot help: both classes have a group that is failed.

tuned = TunedThresholdClassifierCV(LogisticRegression(), scoring="balanced_accuracy").fit(X, y)
fresh = slice(4000, None)
models = {"plain": plain, "plain, best threshold": tuned, "second look": look}
groups = [(bird, place) for bird in (0, 1) for place in (0, 1)]
names = [f"{'waterbird' if b else 'landbird'}\non {'water' if w else 'land'}" for b, w in groups]
figure, ax = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
for k, (name, model) in enumerate(models.items()):
    said = model.predict(X_new[fresh])
    right = said == y_new[fresh]
    accuracy = [
        right[(y_new[fresh] == bird) & (water_new[fresh] == place)].mean() for bird, place in groups
    ]
    print(
        f"{name:<22} mean {right.mean():.3f}  balanced {balanced_accuracy_score(y_new[fresh], said):.3f}"
        f"  worst group {min(accuracy):.3f}"
    )
    ax.bar(np.arange(4) + 0.27 * (k - 1), accuracy, 0.25, label=name)
ax.set_xticks(range(4), names)
ax.set(ylabel="accuracy on fresh rows", ylim=(0, 1.25))
ax.legend(ncols=3, loc="upper center")
plt.show()
