"""
Whom does my torch network fail?
================================

A network and a loader go in as they are. Columns that describe the samples come beside them, in the
order of the loader; here it is the digit, which the network never sees: it only learns odd or even.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import scdro

# %%
# scikit-learn's digits. Of the digits 3 and 8 only six training images each are left.

images, digit = load_digits(return_X_y=True)
train, test = train_test_split(np.arange(len(digit)), test_size=0.5, random_state=0)
rare = [train[digit[train] == d][6:] for d in (3, 8)]
train = np.setdiff1d(train, np.concatenate(rare))
x = torch.tensor(images / 16, dtype=torch.float32)
odd = torch.tensor(digit % 2)

torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3, weight_decay=0.1)
for _ in range(30):
    for rows in torch.tensor(train)[torch.randperm(len(train))].split(64):
        loss = cross_entropy(network(x[rows]), odd[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %%
# The audit runs the network without gradients, in evaluation mode, and leaves it as it was.

loader = DataLoader(TensorDataset(x[test], odd[test]), batch_size=256)
names = {"digit": [str(d) for d in digit[test]]}  # texts: each digit is a category
audit = scdro.audit(network, loader, names)
print(audit)

# %%
# Nobody told the audit which digits were rare.

with torch.no_grad():
    right = (network(x[test]).argmax(1) == odd[test]).numpy()
found = {one.slice.removeprefix("digit = ") for one in audit.findings}
accuracy = [right[digit[test] == d].mean() for d in range(10)]
figure, ax = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
ax.bar(range(10), accuracy, color=["C1" if str(d) in found else "C0" for d in range(10)])
ax.axhline(right.mean(), color="black", linewidth=1, label="average")
ax.legend(loc="lower left")
ax.set(xticks=range(10), xlabel="digit (orange: in a finding)", ylabel="accuracy, odd or even")
ax.set_ylim(0, 1.08)
plt.show()
