"""What a run reports about its settings before the first round: those without effect here, and those that may disappoint."""

from __future__ import annotations

import torch

from fedfew.adapters import TrainedPart
from fedfew.config import TrainConfig
from fedfew.engines import Engine
from fedfew.methods import FedBN, FedFew, Method
from fedfew.stack import leaves, take
from fedfew.training import privacy, products, restart
from fedfew.training.checkpoint import State


def without_effect(config: TrainConfig, method: Method, state: State) -> list[str]:
    """One line per setting that has no effect with this method and model."""
    found = config.without_effect()
    served = leaves(method.candidates(state.server, state.own, torch.tensor([0])))[0].shape[1]
    found += server_without_effect(config, method) + privacy.notes(config, state.settings["federation"]["clients"])
    if config.serve == "mixture" and method.mixture(take(state.own, slice(1))) is not None:
        found.append(f"serve is mixture, but {method.name} learns the weights of its mixture: temperature has no effect")
    elif config.serve == "mixture" and served == 1:
        found.append(f"serve is mixture, but {method.name} serves each client a single model: it has no effect")
    if config.smoothing_end != 1 and method.smoothed(0.5) == method:
        found.append(f"smoothing_end is {config.smoothing_end:g}, but {method.name} has no smoothing: it has no effect")
    if config.check_share and not method.checks_losses:
        found.append(
            f"check_share is {config.check_share:g}, but {method.name} as it is set does not weigh several whole models by their "
            "losses: it has no effect"
        )
    elif config.check_share and config.dp_noise:
        found.append(
            f"check_share is {config.check_share:g}, but dp_noise is set, and clients' losses are private: it has no effect"
        )
    if config.restart_unused and not restart.applies(method, state.server, served):
        found.append(f"restart_unused is {config.restart_unused}, but {method.name} keeps no K whole models: it has no effect")
    if isinstance(method, FedBN) and not state.own:
        found.append("fedbn: the model has no BatchNorm layer, so this is fedavg")
    return found


def server_without_effect(config: TrainConfig, method: Method) -> list[str]:
    """One line per setting of the server's mean and step, for a method that computes no such mean or takes no such step."""
    step = config.server_optimizer != "none" and method.not_optimised
    lines = [f"server_optimizer is {config.server_optimizer}, but {method.name} {step}: it has no effect"] if step else []
    found = [] if config.aggregator == "mean" or method.averages else [f"aggregator is {config.aggregator}"]
    found += ["average of adapters is product"] if products.wanted(config) and not method.aggregates else []
    return lines + [f"{setting}, but {method.name} averages no updates: it has no effect" for setting in found]


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


def about_engine(engine: Engine, config: TrainConfig, device: torch.device) -> list[str]:
    """Why this engine was chosen, and whether its precision has an effect."""
    lines = [f"engine: {engine.name}, {engine.why}"] if engine.why else []
    if config.precision == "bf16" and device.type == "cpu":
        lines.append("precision is 'bf16', which has no effect here: a CPU computes in float32")
    return lines
