"""One module per file format; each returns a :class:`fedfew.data.raw.RawData`."""
