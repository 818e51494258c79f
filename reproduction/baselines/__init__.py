"""The methods that the paper compares, and the table of all methods by name.

The library has the methods that users choose (`scdro.optim`). Those that only the experiments need
are here: three that keep a weight for each of n samples (`SPD`, `PGSMD2`, `AccMDA`), `DualSGM` and
`RECOVER`. All have the library's interface, `step(closure, index)`, checkpoints and processes
included. `REGISTRY` creates any method by its name.
"""

from reproduction.baselines.accmda import AccMDA
from reproduction.baselines.dual_sgm import DualSGM
from reproduction.baselines.pgsmd2 import PGSMD2
from reproduction.baselines.recover import RECOVER
from reproduction.baselines.registry import REGISTRY, Method
from reproduction.baselines.spd import SPD

__all__ = [
    "PGSMD2",
    "RECOVER",
    "REGISTRY",
    "SPD",
    "AccMDA",
    "DualSGM",
    "Method",
]
