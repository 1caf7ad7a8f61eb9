"""The paper's tables and figures, and a user's own: declared in a file, run once, kept in one queryable place.

Imports the public names and everything but flower, tracking, bench and cli; only cli imports it.
"""
