"""FedPAC: features of a class are aligned across clients, and each client gets the combination of heads that suits it best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfew.axes import add_model_axis, copies, drop_model_axis, expanded
from fedfew.local import Local, Loss, with_features
from fedfew.methods.allowed import AtLeastOne, LayerName, NotNegative
from fedfew.methods.base import Family, Fresh, Method, Outcome, Reply
from fedfew.methods.fedrep import whole
from fedfew.models.split import linear_head
from fedfew.stack import Tree, add, branch, leaves, named_leaves, put, stack, subtract, take, tensor, tree_map
from fedfew.util.simplex import least_quadratic_form
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class FedPAC(Method):
    """A shared body whose features of a class are pulled to the class's mean over all clients, and a head per client that the
    server combines from the heads of the round (Xu, Tong and Huang 2023, "Personalized Federated Learning with Feature Alignment
    and Classifier Collaboration", Algorithm 1).

    A round: statistics of the features under the body as received; head_epochs epochs on the head; the local epochs on the body,
    with λ·mean((z − c_y)²) added to the loss, z a sample's features and c_y the centroid of its class; then new centroids. The
    server averages bodies and centroids by number of samples, and combines for client i the heads j of the round by the weights
    α ≥ 0, Σα = 1, that minimise Σ_j α_j²·V_j + Σ_c ‖Σ_j α_j·(h_i,c − h_j,c)‖²: h_j,c is class c's share of client j's mean
    feature, V_j the variance of that estimate. Class means and these statistics leave the client.
    """

    lam: NotNegative = 0.1
    """λ, the pull of features to the centroid of their class. 0: no alignment."""
    head_epochs: AtLeastOne = 1
    """Epochs on the head, before the body."""
    head: LayerName | None = None
    """The linear layer that is the head, by name. None: the model's last linear layer."""

    name: ClassVar[str] = "fedpac"
    family: ClassVar[Family] = "personal parts"
    needs_classes: ClassVar[bool] = True
    summary: ClassVar[str] = "class-wise aligned features, and a head per client combined from all heads by the server"
    when: ClassVar[str] = "clients differ in inputs and labels but resemble each other; class means of features may leave them"
    served: ClassVar[str] = "the body as received with the head that the server combined for the client"
    adapted: ClassVar[str] = "the same after the client's local epochs"
    notes: ClassVar[frozenset[str]] = frozenset({"heads", "centroids", "sent"})

    def head_layer(self, parameters: Mapping[str, Tensor]) -> str | None:
        return linear_head(parameters, self.head)

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        model = fresh(0)
        name = linear_head(dict(named_leaves(model)), self.head)
        head: Tree = {path: t for path, t in model.items() if path.startswith(f"{name}.")}
        body: Tree = {path: t for path, t in model.items() if path not in head}
        heads = copies(head, clients)
        weight = tensor(head, f"{name}.weight")
        centroids: Tree = {"mean": torch.zeros_like(weight)[None], "known": weight.new_zeros(1, len(weight))}
        sent: Tree = {"moments": weight.new_zeros(clients, *weight.shape), "variance": weight.new_zeros(clients)}
        sent |= {"heads": tree_map(torch.clone, heads), "present": weight.new_zeros(clients)}
        return {"body": stack([body]), "heads": heads, "centroids": centroids, "sent": sent}, {}

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        heads = branch(server, "heads")
        own = add_model_axis(take(heads, clients.to(leaves(heads)[0].device)))
        same: Tree = {"body": branch(server, "body"), "centroids": branch(server, "centroids")}
        return {"head": own} | tree_map(lambda t: t.expand(len(clients), *t.shape), same)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        body, head, centroids = (branch(received, part) for part in ("body", "head", "centroids"))
        moments, _, variance = statistics(body, head, local)
        head, _ = local.train(head, whole, context=body, epochs=self.head_epochs)
        context: Tree = {"head": head, "centroids": centroids}
        trained, losses = local.train({"body": body}, self.aligned, context, first_epoch=self.head_epochs)
        after, shares, _ = statistics(branch(trained, "body"), head, local)
        sent: Tree = {"body": subtract(branch(trained, "body"), body), "head": head, "moments": moments[:, None]}
        sent |= {"variance": variance[:, None], "class_means": after[:, None], "class_shares": shares[:, None]}
        return Outcome(Reply(sent, losses, local.counts), own, adapted=branch(trained, "body") | head)

    def aligned(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        model, centroids = branch(params, "body") | branch(context, "head"), branch(context, "centroids")
        logits, z = with_features(loss, model, name_of(branch(context, "head")))
        value = loss.of(logits)
        labels, weight = (t if t.ndim == 2 else t[:, None] for t in (loss.labels, loss.weight.to(z.dtype)))
        apart = (z[:, None] - tensor(centroids, "mean")[labels]).square().mean(-1) * tensor(centroids, "known")[labels]
        return value + self.lam * (weight * apart).sum(), value.detach()

    def absorb(self, server: Tree, clients: Tensor, reply: Reply) -> Tree:
        sent = tree_map(torch.clone, branch(server, "sent"))
        new: Tree = {"heads": branch(reply.update, "head")} | {of: tensor(reply.update, of) for of in ("moments", "variance")}
        new = drop_model_axis(new)
        put(sent, clients, new | {"present": torch.ones_like(tensor(new, "variance"))})
        return server | {"sent": sent}

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        found, centroids, sent = mean.mean(), branch(server, "centroids"), branch(server, "sent")
        shares, sums = tensor(found, "class_shares"), tensor(found, "class_means")
        seen = shares > 0
        means = torch.where(seen[..., None], sums / shares.clamp_min(1e-12)[..., None], tensor(centroids, "mean"))
        known = torch.where(seen, 1.0, tensor(centroids, "known"))
        at = tensor(sent, "present").nonzero()[:, 0]
        alpha = combination(tensor(sent, "moments")[at], tensor(sent, "variance")[at])
        heads = tree_map(torch.clone, branch(server, "heads"))
        put(heads, at, tree_map(lambda t: torch.tensordot(alpha.to(t), t, 1), take(branch(sent, "heads"), at)))
        return {
            "body": add(branch(server, "body"), branch(found, "body")),
            "heads": heads,
            "centroids": {"mean": means, "known": known},
            "sent": sent | {"present": torch.zeros_like(tensor(sent, "present"))},
        }

    def serve(self, received: Tree, own: Tree) -> Tree:
        head = branch(received, "head")
        clients = len(leaves(head)[0])
        return expanded(branch(received, "body"), clients) | head

    def server_models(self, server: Tree) -> Tree:
        return {}  # a body alone is no model


def statistics(body: Tree, head: Tree, local: Local) -> tuple[Tensor, Tensor, Tensor]:
    """Of the clients' features z: Σ_{class c} z / n_i [C, classes, d], n_i,c / n_i [C, classes], and V_i [C]."""
    name = name_of(head)
    z, n = local.features(body | head, name), local.counts
    classes = torch.arange(tensor(head, f"{name}.weight").shape[2], device=z.device)
    of_class = (local.labels[..., None] == classes).to(z.dtype)  # [C, longest, classes]
    moments, shares = of_class.mT @ z / n[:, None, None], of_class.sum(1) / n[:, None]
    variance = (z.square().sum((1, 2)) / n - moments.square().sum((1, 2))) / n
    return moments, shares, variance.clamp_min(0)


def name_of(head: Tree) -> str:
    return next(iter(head)).rpartition(".")[0]


def combination(moments: Tensor, variance: Tensor) -> Tensor:
    """The weights α [m, m] for the heads of m clients, a row per client."""
    h, v = moments.double().flatten(1), variance.double().diag()
    return torch.stack([least_quadratic_form(v + (mine - h) @ (mine - h).T) for mine in h])
