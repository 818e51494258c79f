"""No test asks a network: set before any of these packages is imported, also in processes that tests start."""

import os

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", WANDB_MODE="offline", WANDB_SILENT="true")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
