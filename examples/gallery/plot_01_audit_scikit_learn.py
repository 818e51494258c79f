"""
Whom does my scikit-learn model fail?
=====================================

An average score hides people. ``scdro.audit`` takes a fitted model and rows that it did not see,
looks at every condition on the columns and every pair of conditions, and says for whom the
probabilities are wrong. Nothing is trained.
"""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import scdro

# %%
# A table of loans, made here so that we know the truth: debt matters, income matters, and for the
# self-employed under 30 the risk is higher than for anybody else.

rng = np.random.default_rng(0)
n = 12_000
loans = pd.DataFrame(
    {
        "age": rng.integers(18, 75, n),
        "income": rng.lognormal(3.4, 0.5, n).round(1),
        "debt": rng.gamma(2.0, 5.0, n).round(1),
        "job": rng.choice(["employed", "self-employed", "retired"], n, p=[0.65, 0.2, 0.15]),
    }
)
young = (loans["job"] == "self-employed") & (loans["age"] < 30)
log_odds = -1.8 + 0.08 * loans["debt"] - 0.02 * loans["income"] + 1.6 * young
default = (rng.random(n) < 1 / (1 + np.exp(-log_odds))).astype(int)
X, X_test, y, y_test = train_test_split(loans, default, test_size=0.5, random_state=0)

# %%
# A model that many would use. Its accuracy looks fine.

columns = make_column_transformer(
    (OneHotEncoder(), ["job"]), (StandardScaler(), ["age", "income", "debt"])
)
linear = make_pipeline(columns, LogisticRegression()).fit(X, y)
print(f"accuracy: {linear.score(X_test, y_test):.3f}")

audit = scdro.audit(linear, X_test, y_test)
print(audit)

# %%
# A linear model has no place for "self-employed *and* young". Trees do, and the audit says so: the
# finding is gone.

trees = make_pipeline(
    make_column_transformer((OneHotEncoder(sparse_output=False), ["job"]), remainder="passthrough"),
    HistGradientBoostingClassifier(max_depth=3, learning_rate=0.05, random_state=0),
).fit(X, y)
print(f"accuracy: {trees.score(X_test, y_test):.3f}")
print(scdro.audit(trees, X_test, y_test))

# %%
# The self-employed by age: what happened, with 95% intervals, and what each model says.

job, age = X_test["job"].to_numpy(), X_test["age"].to_numpy()
edges = [18, 24, 30, 40, 50, 60, 75]
middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
groups = [
    (job == "self-employed") & (age >= low) & (age < high)
    for low, high in itertools.pairwise(edges)
]
share = np.array([y_test[rows].mean() for rows in groups])
half = 1.96 * np.sqrt(share * (1 - share) / [rows.sum() for rows in groups])
figure, ax = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
ax.errorbar(middles, share, half, fmt="o", color="black", capsize=4, label="happened")
for name, model, mark in (("linear", linear, "D--"), ("trees", trees, "s-")):
    said = model.predict_proba(X_test)[:, 1]
    ax.plot(
        middles,
        [said[rows].mean() for rows in groups],
        mark,
        mfc="none",
        label=f"{name} model says",
    )
ax.axvspan(18, 30, color="C1", alpha=0.12, linewidth=0)
ax.text(18.4, 0.01, audit.findings[0].slice, fontsize=8)
ax.set(xlabel="age of the self-employed", ylabel="share that defaults", ylim=(0, None))
ax.legend()
plt.show()
