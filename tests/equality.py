"""States, compared to the bit."""

import io

import torch


def saved_and_loaded(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def leaves(state, path=""):
    """All tensors and numbers of nested dictionaries and lists, by path; torch invents "differentiable" on loading."""
    if not isinstance(state, dict | list | tuple):
        return {path: state}
    items = state.items() if isinstance(state, dict) else enumerate(state)
    known = [(key, value) for key, value in items if key != "differentiable"]
    if not known:
        return {path: "empty"}
    return {
        place: leaf
        for key, value in known
        for place, leaf in leaves(value, f"{path}/{key}").items()
    }


def differences(a, b):
    """Every place where two states differ in kind, dtype or any bit, with what is there; NaN is NaN."""
    a, b = leaves(a), leaves(b)
    found = [(path, a.get(path), b.get(path)) for path in a.keys() ^ b.keys()]
    for path in a.keys() & b.keys():
        mine, theirs = a[path], b[path]
        if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                found.append((path, mine, theirs))
            else:
                unequal = (mine != theirs) & ~((mine != mine) & (theirs != theirs))
                found += [
                    (f"{path}{i.tolist()}", mine[tuple(i)], theirs[tuple(i)])
                    for i in unequal.nonzero()
                ]
        elif type(mine) is not type(theirs) or (
            mine != theirs and not (mine != mine and theirs != theirs)
        ):
            found.append((path, mine, theirs))
    return found


def assert_identical(a, b):
    assert differences(a, b) == []
