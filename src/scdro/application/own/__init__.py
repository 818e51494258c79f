"""Training on one's own data: `scdro train` and `scdro predict`."""
