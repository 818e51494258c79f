"""The option --tensorboard."""

from __future__ import annotations

import argparse

__all__ = ["TENSORBOARD", "check"]

TENSORBOARD = "write TensorBoard's files beside metrics.jsonl (pip install scdro[tensorboard])"


def check(args: argparse.Namespace) -> None:
    """Complain before any work is done."""
    from reproduction.engine.events import check_tensorboard

    if args.tensorboard:
        check_tensorboard()
