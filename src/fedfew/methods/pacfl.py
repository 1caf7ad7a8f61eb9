"""PACFL: clients are clustered by the angles between the subspaces of their data, before training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedfew.local import Local
from fedfew.methods.allowed import AtLeastOne, LayerName, NotNegative
from fedfew.methods.base import Family, Fresh, Outcome
from fedfew.methods.placed_once import PlacedOnce
from fedfew.stack import Tree, branch, named_leaves, tensor


@dataclass(frozen=True)
class PACFL(PlacedOnce):
    """Principal angles between client data subspaces (Vahidian et al. 2023, "Efficient Distribution Similarity Identification in
    Clustered Federated Learning via Principal Angles between Client Data Subspaces", Algorithms 1 and 2). In its first round a
    client sends the first p left singular vectors of its data matrix, one column per sample. Clusters that are nearest by the
    angles between these subspaces are merged (hierarchical clustering, complete linkage) until there are K, and on while they are
    no farther apart than β. A client that comes later joins the cluster nearest to it.

    The data matrix is of what enters the model's first linear layer. Of an MLP these are the inputs themselves, as in the paper;
    of other models they are features under the initial weights, the same for all clients.
    """

    basis: AtLeastOne = 2
    """p, how many singular vectors of its data a client sends. Default 2."""
    measure: Literal["smallest", "sum"] = "smallest"
    """The distance of two clients: the smallest principal angle between their subspaces, or the sum of all p (where a client's
    samples span fewer dimensions: p times the mean of those there are)."""
    beta: NotNegative = 0.0
    """β, in degrees: clusters at most so far apart are merged even if there are no more than K. 0: K clusters. Large: one."""
    layer: LayerName | None = None
    """The linear layer whose inputs are the data, by name. None: the first one that has a bias."""

    name: ClassVar[str] = "pacfl"
    family: ClassVar[Family] = "few models"
    summary: ClassVar[str] = "K clusters, made once by the angles between the subspaces of the clients' data"
    when: ClassVar[str] = "groups by inputs, not by label frequencies, and singular vectors of the data may leave the client"
    notes: ClassVar[frozenset[str]] = PlacedOnce.notes | {"subspaces"}

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        if self.models == 1:
            return self.unused("models is 1", "basis", "measure", "beta", "layer")
        if self.beta >= 90 * self.basis:
            return self.unused(f"beta is {self.beta:g}, and no two clients are farther apart", "models", "measure", "layer")
        return self.unused("basis is 1", "measure") if self.basis == 1 else []

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server, own = super().init(fresh, clients)
        model = dict(named_leaves(fresh(0)))
        weight = model[f"{linear_layer(model, self.layer)}.weight".removeprefix(".")]
        return server | {"subspaces": weight.new_zeros(clients, self.basis, weight.shape[1])}, own

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        """The model, and whether the client has a cluster already."""
        cluster = tensor(server, "cluster")
        return {"model": super().dispatch(server, clients), "placed": cluster[clients.to(cluster.device)] >= 0}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        outcome, model = super().client(branch(received, "model"), own, local), branch(received, "model")
        layer = linear_layer({name: t[0, 0] for name, t in named_leaves(model)}, self.layer)
        width = tensor(model, f"{layer}.weight".removeprefix(".")).shape[-1]
        sent = torch.zeros(len(local), 1, self.basis, width, device=local.counts.device)
        if not bool(tensor(received, "placed").all()):  # once is enough
            data = local.features(model, layer)
            for i, n in enumerate(local.counts.tolist()):
                sent[i, 0] = subspace(data[i, :n].reshape(-1, width), self.basis)
        outcome.reply.update["subspace"] = sent
        return outcome

    def serve(self, received: Tree, own: Tree) -> Tree:
        return branch(received, "model")

    def clustered(self, server: Tree, clients: Tensor, update: Tree) -> tuple[Tree, Tensor]:
        sent = tensor(update, "subspace")
        return self.kept(server, clients, sent), merged(self.angles(sent), self.models, self.beta)

    def joined(self, server: Tree, clients: Tensor, update: Tree) -> tuple[Tree, Tensor]:
        """Nearest as in the merging: by the farthest member."""
        sent, cluster = tensor(update, "subspace"), tensor(server, "cluster")
        known = (cluster >= 0).nonzero()[:, 0]
        angles = self.angles(torch.cat([sent, tensor(server, "subspaces")[known]]))[: len(sent), len(sent) :]
        of = cluster[known].cpu()
        nearest = torch.stack([angles[:, of == k].amax(1) for k in range(int(of.max()) + 1)], 1).argmin(1)
        return self.kept(server, clients, sent), nearest

    def kept(self, server: Tree, clients: Tensor, sent: Tensor) -> Tree:
        subspaces = tensor(server, "subspaces")
        return server | {"subspaces": subspaces.index_copy(0, clients, sent.to(subspaces))}

    def angles(self, subspaces: Tensor) -> Tensor:
        """The distances of clients with these vectors ``[m, p, d]``, in degrees, [m, m]."""
        angles = principal_angles(subspaces.cpu().double())
        if self.measure == "smallest":
            return angles[..., 0]
        number = subspaces.any(-1).sum(-1).cpu()  # of vectors; subspaces have as many angles as the smaller one has vectors
        angles_there = torch.minimum(number[:, None], number).clamp_min(1)
        summed = (angles * (torch.arange(self.basis) < angles_there[..., None])).sum(-1)
        return summed * self.basis / angles_there


def linear_layer(model: Mapping[str, Tensor], name: str | None) -> str:
    """The linear layer of this name; None: the first one that has a bias (an embedding has none)."""
    matrices = [path.removesuffix("weight").rstrip(".") for path, t in model.items() if path.endswith("weight") and t.ndim == 2]
    layers = [layer for layer in matrices if f"{layer}.bias".removeprefix(".") in model]
    if name is None and layers:
        return layers[0]
    if name not in matrices:
        raise ValueError(
            f"pacfl: layer must be a linear layer of the model ({', '.join(matrices) or 'it has none'}), not {name!r}"
        )
    return name


def subspace(x: Tensor, number: int) -> Tensor:
    """The first left singular vectors of the matrix whose columns are samples ``x[n, d]``: ``[number, d]``, 0 where samples span
    fewer dimensions."""
    _, values, vectors = torch.linalg.svd(x.double(), full_matrices=False)
    spanned = vectors[values > values[0] * max(x.shape) * torch.finfo(x.dtype).eps][:number]
    found = torch.zeros(number, x.shape[1], dtype=vectors.dtype, device=x.device)
    found[: len(spanned)] = spanned
    return found.to(x.dtype)


def principal_angles(u: Tensor) -> Tensor:
    """Between subspaces with these orthonormal vectors ``[m, p, d]``, in degrees: ``[m, m, p]``, the smallest first."""
    cosines = torch.linalg.svdvals(torch.einsum("ipd,jqd->ijpq", u, u)).clamp(0, 1)
    angles: Tensor = cosines.arccos().rad2deg()
    return angles


def merged(distance: Tensor, most: int, beta: float) -> Tensor:
    """Clusters [m] by complete linkage of ``distance[m, m]``, numbered by their first member: at most so many, and none two of
    which are no farther than β apart."""
    label = torch.arange(len(distance))
    apart = distance.clone().fill_diagonal_(torch.inf)
    for number in range(len(distance), 1, -1):
        at = int(apart.argmin())
        a, b = sorted((at // len(apart), at % len(apart)))
        if number <= most and float(apart[a, b]) > beta:
            break
        label[label == b] = a
        apart[a] = apart[:, a] = torch.maximum(apart[a], apart[b])
        apart[b] = apart[:, b] = torch.inf
        apart[a, a] = torch.inf
    return torch.tensor([sorted(set(label.tolist())).index(k) for k in label.tolist()])
