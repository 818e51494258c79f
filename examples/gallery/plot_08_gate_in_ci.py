"""
How do I stop a bad model in CI?
================================

``audit.check`` takes rules that no slice may break, and raises an ``AssertionError`` that names the
slices. A slice fails only if its whole interval breaks the rule, so that small slices do not break a
build by chance. In a workflow, the command does the same and ends with status 3::

    scdro audit scored.csv --target y --prediction p --fail-if "accuracy < 0.7"
"""

import warnings

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import scdro
from scdro.auditing import GateError

# %%
# Two candidates for the same job: a scaled linear model, and a stump on one column. Every row is
# predicted by a copy of the model that did not see it.

data = load_breast_cancer(as_frame=True)
X, y = data.data, data.target
described = pd.DataFrame({"radius": X["mean radius"], "texture": X["mean texture"]})
models = {
    "linear, all columns": make_pipeline(StandardScaler(), LogisticRegression()),
    "a stump": DecisionTreeClassifier(max_depth=1, random_state=0),
}
audits = {name: scdro.audit(model, X, y, described, cv=5) for name, model in models.items()}

# %%
# The gate. Slices that break the rule by what was measured, but not surely, are named in a warning;
# ``if_unsure="fail"`` would fail for them too.

RULE = "accuracy < 0.93"


def judge(audit: scdro.auditing.Audit) -> str:
    """What a CI job would print."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scdro.ScdroWarning)
        try:
            return f"passed; not sure about {len(audit.check(RULE).unsure)} slices"
        except GateError as error:
            return str(error)


for name, audit in audits.items():
    print(f"{name}: {judge(audit)}")

# %%
# The stump's fourteen worst slices. Red ones break the rule surely, orange ones perhaps.

stump = sorted(audits["a stump"].slices_scored, key=lambda one: one.scores["accuracy"][0])
shown = [one.slice for one in stump if " and " not in one.slice][:14]
figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharex=True, sharey=True, layout="constrained")
for ax, (name, audit) in zip(axes, audits.items(), strict=True):
    scores = {one.slice: one.scores["accuracy"] for one in audit.slices_scored}
    for k, text in enumerate(shown):
        value, low, high = scores[text]
        colour = "C3" if high < 0.93 else "C1" if value < 0.93 else "C0"
        ax.plot([low, high], [k, k], color=colour)
        ax.plot(value, k, "o", color=colour)
    ax.axvline(0.93, color="black", linestyle=":")
    ax.set(title=name, xlabel="accuracy, with intervals for all slices at once")
axes[0].set_yticks(range(len(shown)), shown)
axes[0].invert_yaxis()
plt.show()
