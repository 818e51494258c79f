"""
Does preference training forget the rare kind of prompt?
========================================================

Direct preference optimization (DPO) averages over pairs, and a rare kind of prompt, for which people
prefer the other answer, is learnt last. Its losses are per pair, so the worst case over pairs is one
line. (For TRL's trainer see ``examples/trl_trainers.py``; this script needs only torch.)
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import log_softmax, logsigmoid

import scdro

# %%
# A tiny policy: prompts are vectors, and there are eight answers. Of every pair, annotators usually
# prefer the answer with the larger number; for one kind of prompt in ten, the smaller one. The kind
# shows in the prompt, but no label names it.


def pairs(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompts, the chosen and the rejected answers, and whether the prompt is of the rare kind."""
    rng = torch.Generator().manual_seed(seed)
    rare = torch.rand(n, generator=rng) < 0.1
    prompts = torch.randn(n, 10, generator=rng)
    prompts[:, 0] += 1.5 * rare
    prompts[:, 1] -= 1.5 * rare
    two = torch.rand(n, 8, generator=rng).topk(2).indices.sort().values
    smaller, larger = two.unbind(1)
    return prompts, torch.where(rare, smaller, larger), torch.where(rare, larger, smaller), rare


x, chosen, rejected, _ = pairs(3000, seed=0)
x_test, chosen_test, rejected_test, rare_test = pairs(6000, seed=1)


def new_policy() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))


reference = new_policy().requires_grad_(False)


def margins(
    policy: torch.nn.Module, x: torch.Tensor, yes: torch.Tensor, no: torch.Tensor
) -> torch.Tensor:
    """How much more the policy prefers the chosen answer than the reference does."""
    moved = log_softmax(policy(x), 1) - log_softmax(reference(x), 1)
    result: torch.Tensor = (moved.gather(1, yes[:, None]) - moved.gather(1, no[:, None]))[:, 0]
    return result


# %%
# DPO's loss, ``-log sigmoid(0.5 * margin)``, for each pair; plain training takes its mean. Every fifth
# step the accuracy on new pairs is noted: does the policy prefer the chosen answer more than before?


def train(rho: float, steps: int = 400) -> np.ndarray:
    """Accuracy on (usual, rare) test prompts along the way."""
    policy = new_policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    robust = scdro.KLRobustLoss(rho=rho)
    noted = []
    for step in range(steps):
        rows = torch.randint(len(x), (64,))
        losses = -logsigmoid(0.5 * margins(policy, x[rows], chosen[rows], rejected[rows]))
        optimizer.zero_grad()
        robust(losses).backward()  # plain: losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if step % 5 == 4:
            with torch.no_grad():
                right = margins(policy, x_test, chosen_test, rejected_test) > 0
            noted.append(
                [float(right[rare_test == kind].double().mean()) for kind in (False, True)]
            )
    return np.array(noted)


curves = {
    "plain DPO": train(0.0),
    "worst case, rho = 0.1": train(0.1),
    "worst case, rho = 0.5": train(0.5),
}
for name, curve in curves.items():
    print(f"{name:<22} usual prompts {curve[-1, 0]:.3f}   rare prompts {curve[-1, 1]:.3f}")

# %%
# Left: the worst case learns the rare kind within fewer steps. Right: the price. A threshold cannot
# help here, but training longer can, and plain DPO's path ends at as good a trade-off: at the same
# share of usual prompts it has as many rare ones. So the gain is in the number of steps; if you can
# afford to train on, train on.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for name, curve in curves.items():
    left.plot(5 * np.arange(1, len(curve) + 1), curve[:, 1], label=name)
    right.plot(curve[:, 0], curve[:, 1], ".-", markersize=3, linewidth=0.8, label=name)
left.set(xlabel="step", ylabel="rare prompts, share right", ylim=(0, 1))
right.set(xlabel="usual prompts, share right", ylabel="rare prompts, share right", ylim=(0, 1))
left.legend()
plt.show()
