"""FedBN around another method: BatchNorm layers, or their running statistics, stay with the clients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfew.axes import copies, expanded
from fedfew.local import Local, best_model
from fedfew.methods.base import Fresh, Outcome
from fedfew.methods.wrapper import KeepingWrapper
from fedfew.stack import Tree, add, branch, leaves, tree_map


@dataclass(frozen=True)
class LocalNorm(KeepingWrapper):
    """A method whose clients keep the BatchNorm layers (scale, shift and running statistics) of each of the K models that they
    receive (Li et al. 2021, "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization"), or only the running
    statistics, as the published code does; all else is as the method says.

    For methods that send out a stack of models, or a part of each, and whose clients send back trained − received. It is no
    method by itself: ``fedfew.train(…, batch_norm="local")``.
    """

    names: tuple[str, ...]
    """What stays with the clients, by name in a model's state."""
    policy: str = "local"

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server, own = self.method.init(fresh, clients)
        if self.method.absorbs or not server.keys() <= fresh(0).keys():
            raise ValueError(
                f"batch_norm is {self.policy!r}, which is for methods whose clients train the models that they receive (fedavg, "
                f"fedprox, ditto, apfl, fedrep, ifca, fedfew with share='none'), not for {self.method.name} as it is set; use "
                "'average' or 'batch'"
            )
        kept = copies(self._kept(server), clients)
        return self._sent(server), {"kept": kept, "own": own}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        kept, others = branch(own, "kept"), branch(own, "own")
        outcome = self.method.client(_whole(received, kept), others, local)
        reply = outcome.reply
        if others:  # what is adapted may be the client's own model, and not the one received
            kept = add(kept, self._kept(reply.update))
        else:
            trained = self._kept(outcome.adapted)
            one_of_k = leaves(trained)[0].shape[1] != leaves(kept)[0].shape[1]
            kept = _replaced(kept, best_model(reply.losses), trained) if one_of_k else trained
        reply = replace(reply, update=self._sent(reply.update))
        return Outcome(reply, {"kept": kept, "own": outcome.own}, outcome.adapted, outcome.mixture)

    def serve(self, received: Tree, own: Tree) -> Tree:
        return self.method.serve(_whole(received, branch(own, "kept")), branch(own, "own"))

    def server_models(self, server: Tree) -> Tree:
        return {}  # without its BatchNorm layers a model is none

    def _sent(self, tree: Tree) -> Tree:
        """Without what stays, in the branches of an update, too (FedNova's)."""
        return {name: self._sent(t) if isinstance(t, dict) else t for name, t in tree.items() if name not in self.names}

    def _kept(self, tree: Tree) -> Tree:
        return {name: t for name, t in tree.items() if name in self.names}


def _whole(received: Tree, kept: Tree) -> Tree:
    """K models per client ``[C, K, …]``: what it received, with what it keeps."""
    if not kept:  # no BatchNorm layer is in what the method sends out
        return received
    clients = len(leaves(kept)[0])
    return expanded(received, clients) | kept


def _replaced(own: Tree, choice: Tensor, trained: Tree) -> Tree:
    """Of each client's K, the chosen one replaced by the trained one ``[C, 1, …]``."""
    everyone = torch.arange(len(choice), device=choice.device)
    return tree_map(lambda old, new: old.index_put((everyone, choice), new[:, 0]), own, trained)
