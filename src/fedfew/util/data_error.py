"""The error of data that cannot be used: here, so that it can be raised without importing what reads data."""


class DataError(ValueError):
    """Data that cannot be used. The message names the row, file or setting and what would be right, never a row's contents."""
