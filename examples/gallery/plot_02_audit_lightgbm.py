"""
Whom does my LightGBM model fail?
=================================

A model can be wrong about people because of a column that it never had. The audit takes any columns
that describe the rows, also ones that the model did not see.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from lightgbm import LGBMClassifier
from sklearn.model_selection import train_test_split

import scdro

# %%
# Deliveries: late or not? Two depots have the same traffic, but one of them is understaffed at
# weekends.

rng = np.random.default_rng(0)
n = 10_000
table = pd.DataFrame(
    {
        "distance": rng.gamma(3.0, 4.0, n).round(1),
        "items": rng.poisson(4, n) + 1,
        "weekend": rng.random(n) < 2 / 7,
        "depot": rng.choice(["north", "south"], n),
    }
)
understaffed = table["weekend"] & (table["depot"] == "south")
log_odds = -2.2 + 0.09 * table["distance"] + 0.05 * table["items"] + 1.3 * understaffed
late = (rng.random(n) < 1 / (1 + np.exp(-log_odds))).astype(int)

# %%
# The model is trained without the column ``depot``: it was thought to be irrelevant. With ``cv=5``
# the audit fits copies of the model, and every row is judged by one that did not see it.

features = ["distance", "items", "weekend"]
settings = {"n_estimators": 60, "learning_rate": 0.05, "num_leaves": 7, "n_jobs": 1, "verbose": -1}
audit = scdro.audit(LGBMClassifier(**settings), table[features], late, table, cv=5)
print(audit)

# %%
# The finding names the missing column. Give it to the model, and look again, on rows that neither
# the model nor the first audit chose anything by.

train, test, y, y_test = train_test_split(table, late, test_size=0.5, random_state=0)
train, test = (part.assign(depot=part["depot"].astype("category")) for part in (train, test))
models = {
    "without depot": LGBMClassifier(**settings).fit(train[features], y),
    "with depot": LGBMClassifier(**settings).fit(train, y),
}
said = {
    "without depot": models["without depot"].predict_proba(test[features])[:, 1],
    "with depot": models["with depot"].predict_proba(test)[:, 1],
}
for name, p in said.items():
    print(f"{name}: {scdro.audit(y_test, p, test).headline}")

# %%
# What each model says, and what happened, by depot and day.

cells = [(depot, day) for depot in ("north", "south") for day in (False, True)]
figure, ax = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
for k, (depot, day) in enumerate(cells):
    rows = ((test["depot"] == depot) & (test["weekend"] == day)).to_numpy()
    share, half = y_test[rows].mean(), 1.96 * y_test[rows].std() / np.sqrt(rows.sum())
    ax.errorbar(k, share, half, fmt="o", color="black", capsize=4, label="late" if k == 0 else None)
    for name, marker, colour in (("without depot", "D", "C1"), ("with depot", "s", "C2")):
        ax.plot(
            k, said[name][rows].mean(), marker, mfc="none", ms=9, color=colour,
            label=f"model {name} says" if k == 0 else None,
        )  # fmt: skip
ax.set_xticks(range(4), [f"{depot}, {'weekend' if day else 'weekday'}" for depot, day in cells])
ax.set(ylabel="share that is late", ylim=(0, None))
ax.legend(loc="upper left")
plt.show()
