"""A tree of log-sums over n log weights: draw from them and change some, each in O(log n), for batches at once."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["LogSumTree"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
# Children of a node. Wide nodes keep the tree three or four levels high, and NumPy's calls few.
_WIDTH = 32
_BLOCK = 1024


class LogSumTree:
    """n log weights (any offset), with the log of their sum and their mean under themselves at every node.

    Example:
        >>> tree = LogSumTree(torch.log(torch.tensor([1.0, 2.0, 5.0])))
        >>> round(math.exp(tree.total), 6)
        8.0
        >>> tree.draw(1000, torch.Generator().manual_seed(0)).bincount().tolist()
        [132, 248, 620]
    """

    def __init__(self, log_weights: torch.Tensor) -> None:
        self.n = len(log_weights)
        leaves = np.full(_padded(self.n), -np.inf)
        leaves[: self.n] = log_weights.numpy()
        self._logs: list[Floats] = [leaves.reshape(-1, _WIDTH)]
        self._means: list[Floats] = []
        while len(self._logs[-1]) > 1:
            level, count = len(self._logs) - 1, len(self._logs[-1])
            log_sums, means = np.full(_padded(count), -np.inf), np.zeros(_padded(count))
            for start in range(0, count, _BLOCK):  # What one block needs stays in the cache.
                rows = slice(start, min(start + _BLOCK, count))
                log_sums[rows], means[rows] = self._summed(level, rows)
            self._logs.append(log_sums.reshape(-1, _WIDTH))
            self._means.append(means.reshape(-1, _WIDTH))

    @property
    def log_weights(self) -> torch.Tensor:
        """The leaves."""
        return torch.from_numpy(self._logs[0].reshape(-1)[: self.n])

    @property
    def total(self) -> float:
        """log sum_i exp(log weight_i)."""
        return float(self._summed(len(self._logs) - 1, slice(None))[0][0])

    @property
    def mean(self) -> float:
        """The mean log weight, under the weights themselves."""
        return float(self._summed(len(self._logs) - 1, slice(None))[1][0])

    @property
    def kl(self) -> float:
        """KL(p, 1/n) of the normalised weights p: log n + mean_p(log p)."""
        return math.log(self.n) + self.mean - self.total

    def update(self, index: torch.Tensor, log_weights: torch.Tensor) -> None:
        """Give the leaves at `index` (each once) new log weights."""
        nodes: Integers = index.numpy()
        self._logs[0].reshape(-1)[nodes] = log_weights.numpy()
        for level in range(len(self._means)):
            nodes = np.unique(nodes // _WIDTH)
            log_sums, means = self._summed(level, nodes)
            self._logs[level + 1].reshape(-1)[nodes] = log_sums
            self._means[level].reshape(-1)[nodes] = means

    def draw(self, size: int, generator: torch.Generator) -> torch.Tensor:
        """`size` leaves, with replacement, each with probability exp(its log weight)/sum."""
        uniform = (
            1.0 - torch.rand(len(self._logs), size, generator=generator, dtype=torch.float64, device="cpu").numpy()
        )
        node = np.zeros(size, dtype=np.int64)
        for level, u in zip(reversed(self._logs), uniform, strict=True):
            logs = level[node]
            below = np.exp(logs - logs.max(1, keepdims=True)).cumsum(1)
            # 0 < u <= 1: a child of weight zero is never the first to reach it.
            child = (below < (u * below[:, -1])[:, None]).sum(1)
            node = node * _WIDTH + child
        return torch.from_numpy(node)

    def _summed(self, level: int, rows: Integers | slice) -> tuple[Floats, Floats]:
        """Of some nodes: the log-sum of their children, and the mean log weight of the leaves below."""
        logs = self._logs[level][rows]
        top = np.maximum(logs.max(1), -1e300)
        weights = np.exp(logs - top[:, None])
        sums = weights.sum(1)
        of_children = np.where(weights > 0, logs, 0.0) if level == 0 else self._means[level - 1][rows]
        with np.errstate(divide="ignore"):
            log_sums = top + np.log(sums)
        return log_sums, (weights * of_children).sum(1) / np.maximum(sums, 1e-300)


def _padded(size: int) -> int:
    return -(-size // _WIDTH) * _WIDTH
