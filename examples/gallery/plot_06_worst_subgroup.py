"""
Which subgroup is worst, and how sure is that?
==============================================

The subgroup with the lowest accuracy is always partly the unluckiest one: the more subgroups one
looks at, the worse the worst of them looks by chance. Intervals that hold for all subgroups at once
take care of that.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import scdro

# %%
# Odd or even, from images of digits, by a linear model. What describes an image: the digit, how much
# ink it has, and where its centre is. Half of the images train the model, half are looked at.

images, digit = load_digits(return_X_y=True)
ink = images.sum(1)
place = np.arange(64)
described = pd.DataFrame(
    {
        "digit": digit.astype(str),
        "ink": ink,
        "centre, from the left": (images @ (place % 8) / ink).round(2),
        "centre, from the top": (images @ (place // 8) / ink).round(2),
    }
)
rows, seen = train_test_split(np.arange(len(digit)), test_size=0.5, random_state=0)
model = LogisticRegression(max_iter=5000).fit(images[rows], digit[rows] % 2)
audit = scdro.audit(model, images[seen], digit[seen] % 2, described.iloc[seen])
print(f"accuracy: {audit.scores['accuracy']:.3f}")

# %%
# ``slices_scored`` has every single condition with its scores; each score is (value, low, high), and
# the intervals hold for all of them at once, at 95%.

scored = sorted(audit.slices_scored, key=lambda one: one.scores["accuracy"][0])
for one in scored[:5]:
    value, low, high = one.scores["accuracy"]
    print(f"{one.slice:<34} {one.rows:>4} rows  {value:.3f}  ({low:.3f} to {high:.3f})")

# %%
# A check of that promise: shuffle which image is right and which is wrong. No subgroup is worse than
# another now, but the worst one still looks bad; its interval should reach the average.

rng = np.random.default_rng(0)
right = model.predict(images[seen]) == digit[seen] % 2
missed_average = 0
worst_by_chance = []
for _ in range(25):
    shuffled = rng.permutation(right).astype(int)
    null = scdro.audit(
        np.ones_like(shuffled), shuffled, described.iloc[seen], classes=[0, 1], depth=1
    )
    accuracies = [one.scores["accuracy"] for one in null.slices_scored]
    worst_by_chance.append(min(value for value, _, _ in accuracies))
    missed_average += any(high < right.mean() for _, _, high in accuracies)
print(f"worst subgroup by chance: {np.mean(worst_by_chance):.3f} on average")
print(f"an interval below the average in {missed_average} of 25 shuffles")

# %%
# Only intervals that end below the average show somebody who is served worse.

shown = scored[:12]
figure, ax = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
for k, one in enumerate(shown):
    value, low, high = one.scores["accuracy"]
    ax.plot([low, high], [k, k], color="C1" if high < audit.scores["accuracy"] else "C0")
    ax.plot(value, k, "o", color="C1" if high < audit.scores["accuracy"] else "C0")
ax.axvline(audit.scores["accuracy"], color="black", linewidth=1, label="all images")
ax.axvline(np.mean(worst_by_chance), color="0.5", linestyle=":", label="the worst one by chance")
ax.set_yticks(range(len(shown)), [one.slice for one in shown])
ax.invert_yaxis()
ax.set(xlabel="accuracy (orange: surely below the average)")
# Above the axes: there it hides no interval.
ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=2, fontsize=8)
plt.show()
