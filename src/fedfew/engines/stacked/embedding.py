"""Embeddings whose padding row is not trained, in the stack too.

``torch.func.vmap`` puts the replicas' tables below one another and loses which rows are padding; here their gradient is cut off.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfew.engines.base import UnsupportedModuleError
from fedfew.models.layers import replace_layers


class PaddedEmbedding(nn.Module):
    """``nn.Embedding`` with a ``padding_idx``, sharing its table."""

    def __init__(self, plain: nn.Embedding, padding: int) -> None:
        super().__init__()
        self.weight = plain.weight
        self.padding = padding

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = F.embedding(tokens, self.weight)
        if not torch.is_grad_enabled():
            return vectors  # a copy of them would be as large as all else together
        return torch.where((tokens == self.padding)[..., None], vectors.detach(), vectors)


def make_padded(module: nn.Module) -> nn.Module:
    """The module itself, every embedding with padding replaced; names of parameters stay the same."""

    def padded(name: str, layer: nn.Module) -> nn.Module | None:
        if not isinstance(layer, nn.Embedding):
            return None
        if layer.max_norm is not None or layer.sparse or layer.scale_grad_by_freq:
            raise UnsupportedModuleError(
                f"the stacked engine cannot take an embedding ({name}) with max_norm, sparse or scale_grad_by_freq; "
                "use engine='sequential'"
            )
        return None if layer.padding_idx is None else PaddedEmbedding(layer, layer.padding_idx)

    return replace_layers(module, padded)
