"""The paper's experiments, run from a clone: `python -m reproduction figure1 --scale smoke`."""
