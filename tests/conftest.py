"""Helpers assert too: their failures say what differed, as those of tests do."""

import os

import pytest

# No test asks a network, nor do processes that tests start: set before any of these packages is
# imported.
os.environ.update(
    HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", WANDB_MODE="offline", WANDB_SILENT="true"
)
os.environ.update(MLFLOW_DISABLE_TELEMETRY="true")

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
