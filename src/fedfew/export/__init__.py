"""Models for use outside of training: a folder of K models with a model card, and single model files.

Imports training and evaluation. Nothing below imports it.
"""

from fedfew.export.folder import Export, ExportError, is_export, model_about, read, sha256_of_card, write

__all__ = ["Export", "ExportError", "is_export", "model_about", "read", "sha256_of_card", "write"]
