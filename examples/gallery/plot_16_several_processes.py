"""
Does it work on several processes?
==================================

Under torch.distributed, ``KLRobustLoss`` and the optimizers work on the joined batch of all processes;
there is nothing to configure. That matters: if the hard samples are all on one machine, the worst case
of each part by itself is another problem. This script starts two processes on this computer.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

# %%
# The program that every process runs. Only the second process has samples of the small group. The
# third argument chooses whose losses the worst case is over: all processes' (the default), or this
# process's alone, ``process_group=False``.

PROGRAM = """
import json, sys
import torch, scdro
from torch import distributed
from torch.nn.functional import cross_entropy

rank, processes, joined, store, out = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
torch.set_num_threads(1)
torch.manual_seed(0)
x, y = torch.randn(400, 5, dtype=torch.float64), torch.arange(400) % 2
x[:, 0] += 2 * y                       # the usual rule
x[380:, 0] -= 4 * y[380:]              # the last 20 samples follow another one
x[380:, 1] += 6 * y[380:]
model = torch.nn.Linear(5, 2, dtype=torch.float64)
if processes > 1:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    model = torch.nn.parallel.DistributedDataParallel(model)
mine = torch.arange(400).chunk(processes)[rank]
robust = scdro.KLRobustLoss(rho=1.0, process_group=None if joined == "joined" else False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
small = []
for _ in range(150):
    loss = robust(cross_entropy(model(x[mine]), y[mine], reduction="none"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        small.append(float(cross_entropy(model(x[380:]), y[380:])))
if rank == 0:
    weight = getattr(model, "module", model).weight
    json.dump({"loss": small, "weight": weight.flatten().tolist()}, open(out, "w"))
if processes > 1:
    distributed.barrier()
    distributed.destroy_process_group()
"""


def run(processes: int, joined: str, folder: Path) -> dict[str, list[float]]:
    """Start the processes, and read what the first one wrote."""
    program, out = folder / "program.py", folder / f"{processes}-{joined}.json"
    program.write_text(PROGRAM)
    store = folder / f"store-{processes}-{joined}"
    started = [
        subprocess.Popen([sys.executable, program, str(rank), str(processes), joined, store, out])
        for rank in range(processes)
    ]
    assert not any(process.wait(timeout=300) for process in started), "a process has failed"
    result: dict[str, list[float]] = json.loads(out.read_text())
    return result


with tempfile.TemporaryDirectory() as name:
    runs = {
        "one process": run(1, "joined", Path(name)),
        "two processes": run(2, "joined", Path(name)),
        "two, each by itself": run(2, "apart", Path(name)),
    }
one, two = (runs[name]["weight"] for name in ("one process", "two processes"))
difference = max(abs(a - b) for a, b in zip(one, two, strict=True))
print(f"largest difference of the weights after 150 steps: {difference:.0e}")

# %%
# Two processes do what one does on the joined batch. A worst case for each process by itself does not.

figure, ax = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
for (name, result), style in zip(runs.items(), ("C0-", "C1--", "C2-"), strict=True):
    ax.plot(result["loss"], style, linewidth=3 if style == "C0-" else 2, label=name)
ax.set(xlabel="step", ylabel="mean loss of the small group")
ax.legend()
plt.show()
