"""Tables, from a file to a model one would keep: who is failed, whether robust training helps, and at what price."""

from scdro.tables._images import train_images
from scdro.tables._read import read_table
from scdro.tables._run import Run, load
from scdro.tables._study import audit, train
from scdro.tables._summary import Summary

__all__ = ["Run", "Summary", "audit", "load", "read_table", "train", "train_images"]
