"""Files that torch.save wrote, and what is said where they are damaged or another program's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from scdro.errors import CheckpointError, ScdroError

__all__ = ["load", "usable"]


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The dictionary in a file of torch.save."""
    with usable(path):
        state: dict[str, Any] = dict(torch.load(path, map_location=device, weights_only=True))
    return state


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Whatever fails inside for want of the right content is a CheckpointError that names the file."""
    try:
        yield
    except (OSError, ScdroError):
        raise
    except Exception as error:  # torch and pickle fail in many ways on bytes that are not theirs
        raise CheckpointError(
            f"expected what scdro wrote in {path.absolute()}, got a file that is damaged or not scdro's "
            f"({type(error).__name__}: {error}); name another folder, or delete it to begin anew"
        ) from error
