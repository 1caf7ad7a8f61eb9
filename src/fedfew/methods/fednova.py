"""FedNova: FedAvg for clients that take different numbers of local steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedfew.local import Local
from fedfew.methods.base import Outcome, Reply
from fedfew.methods.fedavg import FedAvg
from fedfew.stack import Tree, add, branch, scaled, subtract, tensor
from fedfew.weighted_mean import WeightedMean


@dataclass(frozen=True)
class FedNova(FedAvg):
    """Normalised averaging (Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization", Eq. 5 and Algorithm 1). A client divides its update by its number of local steps (with momentum: by ‖a_i‖₁);
    the server averages these directions by number of samples and takes the clients' mean number of steps, τ_eff, along them. So a
    client that takes more steps does not count for more. Where all take the same number, it is FedAvg.
    """

    name: ClassVar[str] = "fednova"
    summary: ClassVar[str] = "FedAvg of updates per local step, so that clients with more steps do not count for more"
    when: ClassVar[str] = "one model, clients of very different sizes that train for epochs rather than steps"

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        trained, losses = local.train(received)
        parameters, buffers = local.split(subtract(trained, received))
        steps = local.steps[:, None]
        reply = Reply({"per_step": scaled(parameters, 1 / steps), "buffers": buffers, "steps": steps}, losses, local.counts)
        return Outcome(reply, own, adapted=trained)

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """w ← w + τ_eff·Σ_i p_i·Δ_i/τ_i with τ_eff = Σ_i p_i·τ_i."""
        moved = mean.mean()
        steps, buffers = tensor(moved, "steps"), branch(moved, "buffers")
        parameters: Tree = {name: t for name, t in server.items() if name not in buffers}
        kept: Tree = {name: server[name] for name in buffers}
        new = add(parameters, branch(moved, "per_step"), steps) | add(kept, buffers)
        return {name: new[name] for name in server}
