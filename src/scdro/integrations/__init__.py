"""Robust losses in the training loops of other libraries. Each module needs its own package; import
it directly.
"""
