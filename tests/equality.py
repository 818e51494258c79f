"""States, compared to the bit."""

import torch


def leaves(state, prefix=""):
    """All tensors and numbers of nested dictionaries and lists, by path."""
    if isinstance(state, dict):
        items = state.items()
    elif isinstance(state, (list, tuple)):
        items = enumerate(state)
    else:
        return {prefix: state}
    return {path: leaf for key, value in items for path, leaf in leaves(value, f"{prefix}/{key}").items()}


def assert_identical(a, b):
    a, b = leaves(a), leaves(b)
    assert a.keys() == b.keys()
    for path, value in a.items():
        same = (
            torch.equal(value.nan_to_num(7.7), b[path].nan_to_num(7.7)) if torch.is_tensor(value) else value == b[path]
        )
        assert same, path
