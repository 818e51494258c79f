"""The commands of `python -m reproduction`: each file has `add(subparsers)`, which names the function that runs it, and
one that says whether the processes of torchrun share it."""
