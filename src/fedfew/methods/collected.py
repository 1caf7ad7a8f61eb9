"""The replies of a round kept side by side until all are in, for methods whose server compares single clients.

They are a branch of the server's state between ``absorb`` and ``aggregate``, which takes it out again: no checkpoint has it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.axes import add_model_axis, drop_model_axis
from fedfew.methods.base import Reply
from fedfew.stack import Tree, add, branch, leaves, put, take, tensor, tree_map
from fedfew.weighted_mean import WeightedMean

ROUND = "round"


def collect(server: Tree, clients: Tensor, reply: Reply) -> Tree:
    """The server's state with these replies beside those that came before."""
    device = leaves(server)[0].device
    new: Tree = {"clients": clients.to(device), "losses": reply.losses, "samples": reply.samples}
    new["update"] = drop_model_axis(reply.update)
    if ROUND in server:
        new = tree_map(lambda old, t: torch.cat([old, t.to(old)]), branch(server, ROUND), new)
    return server | {ROUND: new}


def collected(server: Tree) -> tuple[Tree, Tree]:
    """The server's state without the replies, and the replies: clients, losses, samples and update, a row per client. Rows are in
    the order of the clients, not in that of arrival, which several processes or sites change: clusters are numbered by it."""
    replies = branch(server, ROUND)
    in_order = tensor(replies, "clients").argsort()
    return {name: part for name, part in server.items() if name != ROUND}, tree_map(lambda t: t[in_order], replies)


def moved(models: Tree, cluster: Tensor, update: Tree, samples: Tensor) -> Tree:
    """Models ``[K, …]``, each moved by the mean, by number of samples, of the updates ``[m, …]`` of its cluster [m]; −1: none."""
    new = tree_map(torch.clone, models)
    for k in range(int(cluster.max()) + 1):
        at = (cluster == k).nonzero()[:, 0]
        if len(at):
            mean = WeightedMean(1)
            mean.add(samples[at].double().log()[:, None], add_model_axis(take(update, at)))
            put(new, torch.tensor([k]), add(take(models, slice(k, k + 1)), mean.mean()))
    return new


def model_of(update: Tree) -> Tree:
    """Parameters and buffers side by side, as in a model."""
    return branch(update, "parameters") | branch(update, "buffers")
