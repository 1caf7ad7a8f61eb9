"""Programs for those who work on fedfew; not part of the library."""
