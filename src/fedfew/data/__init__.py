"""Data sets as federations, partitioned among clients: by name, from files, from the hub or from objects in memory."""

from fedfew.data.digits import digits
from fedfew.data.errors import DataError, SkippedWarning
from fedfew.data.loading import load
from fedfew.data.prepared import read as read_prepared
from fedfew.data.prepared import write as write_prepared
from fedfew.data.sources import names

__all__ = ["DataError", "SkippedWarning", "digits", "load", "names", "read_prepared", "write_prepared"]
