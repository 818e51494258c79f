"""
What does rho mean, and how large should it be?
===============================================

rho limits, in KL divergence, how far the data may be reweighted against you. It decides three things:
which groups are covered, how steep the weights are, and how far the value is above the mean.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import scdro

# %%
# Log losses of an ordinary model, out of fold.

X, y = load_breast_cancer(return_X_y=True)
model = make_pipeline(StandardScaler(), LogisticRegression())
proba = cross_val_predict(model, X, y, cv=5, method="predict_proba")
losses = -np.log(proba[np.arange(len(y)), y])
print(f"mean loss {losses.mean():.3f}, largest {losses.max():.2f}")

# %%
# A group with a share alpha of the rows is at a KL divergence of log(1 / alpha). With that rho the
# value bounds the mean loss of *every* group of that size, even of the hardest rows.

for alpha in (0.5, 0.1, 0.02):
    rho = scdro.rho_for_group(alpha)
    hardest = np.sort(losses)[-round(alpha * len(losses)) :].mean()
    value = float(scdro.worst_case(losses, rho).value)
    print(f"alpha {alpha:>4}: rho {rho:.2f}, hardest rows {hardest:.2f} <= value {value:.2f}")

# %%
# That is cautious. For training, radii of 0.1 to 1 are usual; how many rows still count is the
# effective sample size.

radii = np.geomspace(0.01, 5, 40)
worst = [scdro.worst_case(losses, rho) for rho in radii]
effective = [1 / np.square(np.asarray(one.weights)).sum() for one in worst]

figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
order = np.argsort(losses)
for rho in (0.1, 0.5, 2.0):
    weights = np.asarray(scdro.worst_case(losses, rho).weights)
    axes[0].semilogy(losses[order], len(losses) * weights[order], label=f"rho = {rho}")
axes[0].axhline(1, color="black", linewidth=0.8)
axes[0].set(xlabel="loss", ylabel="weight, relative to the average row", title="weights")
axes[0].legend()
axes[1].semilogx(radii, [float(one.value) for one in worst])
axes[1].axhline(losses.mean(), color="0.5", linestyle=":", label="mean")
axes[1].axhline(losses.max(), color="0.5", linestyle="--", label="largest loss")
axes[1].set(xlabel="rho", title="value of the worst case")
axes[1].legend()
axes[2].loglog(radii, effective)
axes[2].axhline(len(losses), color="0.5", linestyle=":", label="all rows")
axes[2].set(xlabel="rho", title="rows that still count")
axes[2].legend()
plt.show()
