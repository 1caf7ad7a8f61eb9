"""What a run reports about its settings before the first round: those without effect here, and those that may disappoint."""

from __future__ import annotations

import math

import torch
from torch import nn

from fedfew.adapters import TrainedPart
from fedfew.adapters.frozen import has_frozen_batch_norm
from fedfew.config import STRONG, TrainConfig
from fedfew.engines import Engine
from fedfew.methods import FedBN, FedFew, Method, MoFedSAM
from fedfew.models.split import layer_weights
from fedfew.models.state import replica_state
from fedfew.stack import leaves, take, tree_map
from fedfew.training import privacy, products, restart, unseen
from fedfew.training.checkpoint import State


def without_effect(config: TrainConfig, method: Method, state: State, module: nn.Module) -> list[str]:
    """One line per setting that has no effect with this method and model; one line for those of the recipe "strong"."""
    served = leaves(method.candidates(state.server, state.own, torch.tensor([0])))[0].shape[1]
    learned = method.mixture(take(state.own, slice(1))) is not None
    idle = _idle_of_recipe(config, method, single=served == 1 and not learned)
    if config.server_average and not _serves_the_server(method, state):
        idle["server_average"] = f"clients of {method.name} use models that they keep themselves"
    if len(idle) > 1 and all(getattr(config, name) == value for name, value in STRONG.items() if name != "label_prior"):
        found = [f"recipe strong: {', '.join(idle)} have no effect with {method.name}"]
    else:
        found = [f"{name} is {_shown(getattr(config, name))}, but {why}: it has no effect" for name, why in idle.items()]
    if config.serve == "mixture" and learned:
        found = [f"serve is mixture, but {method.name} learns the weights of its mixture: temperature has no effect", *found]
    clients, layers = state.settings["federation"]["clients"], len(layer_weights(replica_state(module)))
    found = [*config.without_effect(), *_mean_without_effect(config, method), *found]
    found += [
        *method.without_effect(clients, layers, config.optimizer),
        *privacy.notes(config, clients, simulated=not state.sites),
    ]
    if config.smoothing_spread and unseen.share(config, method) == 0:
        spread = config.smoothing_spread
        found.append(f"smoothing_spread is {spread:g}, but no losses are checked (check_share): it has no effect")
    if config.restart_unused and not restart.applies(method, state.server, served):
        why = f"{method.name} does not keep several whole models on the server"
        found.append(f"restart_unused is {config.restart_unused}, but {why}: it has no effect")
    if isinstance(method, FedBN) and not state.own:
        frozen = has_frozen_batch_norm(module)
        why = "all BatchNorm layers of the model are frozen" if frozen else "the model has no BatchNorm layer"
        found.append(f"fedbn: {why}, so this is fedavg")
    return found


def _idle_of_recipe(config: TrainConfig, method: Method, single: bool) -> dict[str, str]:
    """Which settings of the recipe "strong" are set without effect, and why; single: each client is served one model."""
    found = {}
    if config.server_optimizer != "none" and method.not_optimised:
        found["server_optimizer"] = f"{method.name} {method.not_optimised}"
    if config.serve == "mixture" and single:
        found["serve"] = f"{method.name} serves each client a single model"
    if config.smoothing_end != 1 and method.smoothed(0.5) == method:
        found["smoothing_end"] = f"{method.name} has no smoothing"
    if config.check_share and not method.checks_losses:
        found["check_share"] = f"{method.name} as it is set does not weigh several whole models by their losses"
    elif config.check_share and config.dp_noise:
        found["check_share"] = "dp_noise is set, and clients' losses are private"
    return found


def _serves_the_server(method: Method, state: State) -> bool:
    """Does what a client is served depend on the server's models?"""

    def served(value: int) -> list[torch.Tensor]:
        filled = tree_map(lambda t: t.new_full((), value).expand_as(t) if t.is_floating_point() else t, state.server)
        return leaves(method.candidates(filled, state.own, torch.tensor([0])))

    return any(not torch.equal(a, b) for a, b in zip(served(0), served(1), strict=True))


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _mean_without_effect(config: TrainConfig, method: Method) -> list[str]:
    found = [] if config.aggregator == "mean" or method.averages else [f"aggregator is {config.aggregator}"]
    found += ["average of adapters is product"] if products.wanted(config) and not method.aggregates else []
    return [f"{setting}, but {method.name} averages no updates: it has no effect" for setting in found]


def about_losses(config: TrainConfig, method: Method, part: TrainedPart) -> list[str]:
    """A line where the losses that clients report are nearly the same for all models (docs/adapters.md)."""
    if part.adapters is None or config.local_epochs < 2 or not isinstance(method, FedFew) or method.models < 2:
        return []
    if method.loss_at == "received":
        return []
    return [
        f"loss_at is training: with adapters and {config.local_epochs} local epochs the losses of the last epoch hardly differ "
        "between models, and these may not separate. Set loss_at='received'"
    ]


def about_momentum(config: TrainConfig, method: Method) -> list[str]:
    """A line where the server's momentum adds up what is a mean over past rounds already, so that the model may oscillate."""
    if config.server_optimizer != "momentum" or not isinstance(method, MoFedSAM):
        return []
    most = method.stable_up_to(config.server_momentum, config.server_lr)
    if most >= 1:
        return []
    least = math.ceil(100 * method.least_beta(config.server_momentum, config.server_lr)) / 100
    return [
        f"mofedsam: beta is {method.beta:g} with server_momentum {config.server_momentum:g}: the model oscillates where "
        f"lr · steps · curvature is above {most:.2g}. Set beta to {least:g} or more (docs/methods/mofedsam.md)"
    ]


def about_engine(engine: Engine, config: TrainConfig, device: torch.device) -> list[str]:
    """Why this engine was chosen, and whether its precision has an effect."""
    lines = [f"engine: {engine.name}, {engine.why}"] if engine.why else []
    if config.precision in ("bf16", "fp16") and device.type == "cpu":
        lines.append(f"precision is {config.precision!r}, which has no effect here: a CPU computes in float32")
    return lines
