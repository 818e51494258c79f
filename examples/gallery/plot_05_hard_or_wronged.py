"""
Hard, wronged, or failed by the threshold?
==========================================

A model can fail a group for three different reasons, and each has another answer:

- *wrong probabilities*: the model is wrong about these people. Another model, or a missing column.
- *hard*: the probabilities are right, these columns cannot tell. More columns; no training helps.
- *threshold*: the probabilities are right, the decision rule misses the members of a class. Free.
"""

import matplotlib.pyplot as plt
import numpy as np

import scdro

# %%
# Four regions. In the east the model is mostly sure, and right. In the north outcomes are nearly coin
# tosses, and the model says so. In the west things happen far more often than the model says. In the
# south they happen to one in seven, the model says one in seven, and a threshold of one half misses
# every one of them.

rng = np.random.default_rng(0)
n = 8_000
region = rng.choice(["east", "north", "west", "south"], n, p=[0.7, 0.1, 0.1, 0.1])
ranges = {"north": (0.4, 0.6), "west": (0.05, 0.25), "south": (0.04, 0.24)}
said = rng.beta(0.3, 0.3, n).clip(0.01, 0.99)
for name, (low, high) in ranges.items():
    said[region == name] = rng.uniform(low, high, (region == name).sum())
truth = said + 0.3 * (region == "west")
happened = (rng.random(n) < truth).astype(int)

audit = scdro.audit(happened, said, {"region": region})
print(audit)

# %%
# Left: the share of wrong decisions does not tell the three apart, and hides the south, where few
# decisions are wrong and all of those whom it happens to are missed. Right: what was said, and what
# happened.

order = ["east", "north", "west", "south"]
kinds = {one.slice.removeprefix("region = "): one.kind for one in reversed(audit.findings)}
rows = {name: region == name for name in order}
wrong = [((said[rows[name]] > 0.5) != happened[rows[name]]).mean() for name in order]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.bar(order, wrong, color=["0.7", "C0", "C1", "C2"])
left.set(title="wrong decisions", ylim=(0, 0.7))
for k, name in enumerate(order):
    left.text(k, wrong[k] + 0.01, kinds.get(name, "fine"), ha="center", fontsize=8)
for k, (name, colour) in enumerate(zip(order, ["0.5", "C0", "C1", "C2"], strict=True)):
    share = happened[rows[name]].mean()
    half = 1.96 * np.sqrt(share * (1 - share) / rows[name].sum())
    right.errorbar(k, share, half, fmt="o", color=colour, capsize=4)
    right.plot(k, said[rows[name]].mean(), "D", mfc="none", ms=9, color="black")
right.axhline(0.5, color="0.6", linestyle=":", linewidth=1)
right.set_xticks(range(4), order)
right.set(title="said (diamonds) and happened (dots)", ylim=(0, 0.7))
plt.show()
