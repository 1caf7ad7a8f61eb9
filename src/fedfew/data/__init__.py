"""Data sets as federations: by name, from files or from the hub, partitioned among clients.

Imports :mod:`fedfew.federation` and :mod:`fedfew.util` only."""

from fedfew.data.digits import digits
from fedfew.data.errors import DataError, SkippedWarning
from fedfew.data.loading import load
from fedfew.data.prepared import read as read_prepared
from fedfew.data.prepared import write as write_prepared
from fedfew.data.sources import names

__all__ = ["DataError", "SkippedWarning", "digits", "load", "names", "read_prepared", "write_prepared"]
