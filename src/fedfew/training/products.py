"""LoRA with average="product": the server averages the products B·A of its clients, and factors the result to the rank again.

All that the server does with models (a method's mean, the server optimiser, the average over rounds) is done with the products in
place of the factors. The factors that clients get then are those of the nearest matrix of that rank, by its singular value
decomposition: as in FlexLoRA (Bai et al. 2024), but for the scale of A.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedfew.adapters import TrainedPart
from fedfew.config import TrainConfig
from fedfew.methods import IFCA, FedAvg, FedBABU, FedEM, FedFew, FedRep, Method
from fedfew.methods.personal_parts import PersonalParts
from fedfew.stack import Tree, named_leaves, tensor

A, B = "lora_A.weight", "lora_B.weight"
ROUNDING = 2e-6  # of a matrix's norm; in float32 5e-7 were measured for 768 × 768
ADD_THE_MEAN = tuple(kind.aggregate for kind in (FedAvg, FedBABU, FedEM, FedRep, IFCA, PersonalParts))


def wanted(config: TrainConfig) -> bool:
    """Does the run average products?"""
    lora = TrainedPart.named(config.adapters, config.freeze).adapters
    return lora is not None and lora.average == "product"


def check(config: TrainConfig, method: Method) -> None:
    """Refuse what products cannot be averaged with."""
    if not wanted(config) or not method.aggregates:
        return
    if not moves_by_differences(method):
        raise ValueError(
            f"adapters: average is product, but {method.name} as it is set does not just add the mean of trained − received to "
            "its models. Use fedfew with share='none' and send='update', ifca, fedem, fedavg, fedprox, ditto, or another average"
        )
    if config.aggregator != "mean":
        raise ValueError(f"aggregator must be mean where average is product, not {config.aggregator!r}")
    if config.dp_noise:
        raise ValueError("dp_noise must be 0 where average is product: products of clipped factors have no such bound")


def moves_by_differences(method: Method) -> bool:
    """Do clients send trained − received under the model's names, and does the server add a weighted mean of these?"""
    if isinstance(method, FedFew):
        return method.share == "none" and method.send == "update"
    return type(method).aggregate in ADD_THE_MEAN


class Products:
    """Trees of models in which the product of each adapter stands under the name of B, and A is left out."""

    def __init__(self, server: Tree) -> None:
        """server: the models ``[K, …]`` as the round begins."""
        self.server = server
        self.pairs = {name: name.removesuffix(B) + A for name, _ in named_leaves(server) if name.endswith(B)}

    def of(self, models: Tree) -> Tree:
        """The products of models ``[K, …]``."""
        return self._replaced(models, lambda name: _product(tensor(models, name), tensor(models, self.pairs[name])))

    def of_updates(self, update: Tree) -> Tree:
        """(B + ΔB)·(A + ΔA) − B·A of clients' updates ``[C, K or 1, …]``."""

        def change(name: str) -> Tensor:
            a, b = tensor(self.server, self.pairs[name]), tensor(self.server, name)
            trained_a, trained_b = a + tensor(update, self.pairs[name]), b + tensor(update, name)
            return _product(trained_b, trained_a, leading=2) - _product(b, a)

        return self._replaced(update, change)

    def factored(self, products: Tree, before: Tree, terms: int) -> Tree:
        """Models whose products are nearest to these; before: models ``[K, …]``, whose factors stay where the product does.

        terms: see :func:`factors`.
        """
        found: dict[str, Tensor] = {}
        for name, old in named_leaves(before):
            if name in self.pairs:
                continue
            b_name = name.removesuffix(A) + B
            if b_name not in self.pairs:
                found[name] = tensor(products, name)
                continue
            a, b = factors(tensor(products, b_name), old, tensor(before, b_name), terms)
            found |= {name: a, b_name: b}
        return {name: found[name] for name in before}  # in the same order

    def _replaced(self, tree: Tree, product: Callable[[str], Tensor]) -> Tree:
        left_out = set(self.pairs.values())
        return {
            name: product(name) if name in self.pairs else value for name, value in named_leaves(tree) if name not in left_out
        }


def factors(product: Tensor, a: Tensor, b: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """A and B, ``[K, …]`` in the shapes of ``a`` and ``b``, of the matrices of their rank that are nearest to ``product``.

    The rows of A are orthogonal and of equal length, and A as a whole is as long as ``a``, so that a learning rate means the same
    in every round: B = U·S / c and A = c·Vᵀ. Where the product is that of ``a`` and ``b``, these are returned. terms: products
    of their rank that it is the sum of, as far as is known; more make it slower, not wrong.
    """
    u, s, v = decomposed(product.to(torch.promote_types(product.dtype, torch.float32)), terms * a.shape[1])
    rank = min(a.shape[1], s.shape[1])
    u, s, v = u[:, :, :rank], s[:, :rank], v[:, :rank]
    largest = v.gather(2, v.abs().argmax(2, keepdim=True))  # of a row, whose sign is arbitrary
    sign = torch.where(largest < 0, -1.0, 1.0)
    length = a.flatten(1).norm(dim=1)[:, None, None] / rank**0.5
    length = torch.where(length > 0, length, 1.0)
    new_a, new_b = torch.zeros_like(a).flatten(2), torch.zeros_like(b).flatten(2)
    new_a[:, :rank] = v * sign * length
    new_b[:, :, :rank] = u * s[:, None] * sign.mT / length
    same = (product == _product(b, a)).flatten(1).all(1)[:, None, None]
    return torch.where(same, a.flatten(2), new_a).view_as(a), torch.where(same, b.flatten(2), new_b).view_as(b)


def decomposed(matrices: Tensor, bound: int) -> tuple[Tensor, Tensor, Tensor]:
    """The singular value decomposition of matrices ``[K, m, n]``; where none has a rank above ``bound``, by way of small ones.

    So many random combinations of a matrix's columns span all of its columns: Q is an orthonormal basis of them, P = Q·QᵀP, and
    QᵀP has few rows. Whether that holds to rounding is tested; where it does not (moments of a server optimiser, for example, add
    up the ranks of many rounds), P itself is decomposed.
    """
    if 2 * bound < min(matrices.shape[1:]):
        draw = torch.Generator().manual_seed(0)
        mixing = torch.randn(matrices.shape[2], bound, generator=draw, dtype=matrices.dtype).to(matrices.device)
        basis = torch.linalg.qr(matrices @ mixing).Q
        core = basis.mT @ matrices
        missed = torch.linalg.matrix_norm(matrices - basis @ core)
        if bool((missed <= ROUNDING * torch.linalg.matrix_norm(matrices)).all()):
            u, s, v = torch.linalg.svd(core, full_matrices=False)
            return basis @ u, s, v
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    return u, s, v


def _product(b: Tensor, a: Tensor, leading: int = 1) -> Tensor:
    """B·A as matrices; of convolutions, the inputs are in_channels · height · width. leading: axes before those of a model."""
    return b.flatten(leading + 1) @ a.flatten(leading + 1)
