"""Data sets, ready to train on."""

from fedfew.data.digits import digits

__all__ = ["digits"]
