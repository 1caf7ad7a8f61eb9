"""Helpers that know nothing of federated learning. They import nothing of fedfew outside this package."""
