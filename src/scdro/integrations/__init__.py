"""Robust losses inside other people's loops. Each module needs its own package, and none is imported from here."""
