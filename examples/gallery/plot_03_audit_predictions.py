"""
I have only a column of predictions
===================================

The model may run on another machine, or belong to somebody else. Labels, predictions and columns that
describe people are all that an audit needs; it does not need torch either. The same from a shell::

    scdro audit scored.csv --target y --prediction p --out audit.html
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import scdro

# %%
# A file as it comes from a data warehouse: the label, the score, and who it is. Scores of people over
# 60 in Rome are too low here, because that is how this file was made.

rng = np.random.default_rng(0)
n = 6_000
scored = pd.DataFrame(
    {
        "age": rng.integers(18, 90, n),
        "city": rng.choice(["Oslo", "Rome", "Lima"], n),
        "visits": rng.poisson(3, n),
        "p": rng.uniform(0.05, 0.6, n),
    }
)
overlooked = (scored["city"] == "Rome") & (scored["age"] > 60)
scored["y"] = (rng.random(n) < scored["p"] + 0.25 * overlooked).astype(int)
scored.head()

# %%
# One call. ``print`` gives sentences, ``to_frame()`` a table, ``save("audit.html")`` a page.

audit = scdro.audit(scored["y"], scored["p"], scored[["age", "city", "visits"]])
print(audit)

# %%
# How much can one trust it? If the scores were right for everybody, labels drawn from them would look
# like the labels we have. Draw such labels twenty times: the audit promises at most one false
# alarm in a hundred.

alarms = sum(
    any(
        one.kind == "wrong probabilities"
        for one in scdro.audit(
            rng.random(n) < scored["p"], scored["p"], scored[["age", "city", "visits"]]
        ).findings
    )
    for _ in range(20)
)
print(f"{alarms} false alarms in 20 audits of scores that are right")

# %%
# The picture that comes with it.

audit.plot()
plt.show()
