"""Helpers assert too: their failures say what differed, as those of tests do."""

import pytest

pytest.register_assert_rewrite(
    "checkpoint_worker",
    "equality",
    "event_files",
    "lockstep",
    "loops",
    "ranks",
    "refusals",
    "torchrun_worker",
)
