"""Models for use outside of training: a folder of K models with a model card, and single model files.

Imports training and evaluation. Nothing below imports it.
"""

from fedfew.export.distilled import write_distilled
from fedfew.export.folder import model_about, sha256_of_card, write
from fedfew.export.peft_folders import write_adapters
from fedfew.export.personal import write_personal
from fedfew.export.reading import Export, ExportError, is_export, read, read_card

__all__ = [
    "Export",
    "ExportError",
    "is_export",
    "model_about",
    "read",
    "read_card",
    "sha256_of_card",
    "write",
    "write_adapters",
    "write_distilled",
    "write_personal",
]
