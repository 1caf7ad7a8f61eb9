"""The policy for BatchNorm layers, ``fedfew.train(…, batch_norm=…)``: whose statistics does a model use?

average: running statistics are part of the model; they travel and are averaged as its parameters are.
local: every client keeps the BatchNorm layers of each of its models, parameters and statistics (FedBN).
local-statistics: parameters travel, but every client keeps the running statistics of each of its models (published code).
batch: there are no running statistics; a model in evaluation uses those of the batch, which is of one client.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedfew.adapters.frozen import has_frozen_batch_norm
from fedfew.federation import Federation
from fedfew.methods import FedAMP, FedMTL, LocalOnly, Method
from fedfew.methods.local_norm import LocalNorm
from fedfew.models.batch_norm import batch_norms, needs_two, state_names, statistics_names, without_statistics


def with_policy(policy: str, factory: Callable[[], nn.Module], method: Method) -> tuple[Callable[[], nn.Module], Method]:
    """The factory and the method of a run with this policy."""
    factory = method.around(factory)
    if policy == "batch":
        return lambda: without_statistics(factory()), method
    if policy == "local" and not isinstance(method, LocalOnly):  # whose clients keep everything
        return factory, LocalNorm(method, state_names(factory()))
    if policy == "local-statistics" and not isinstance(method, LocalOnly | FedMTL | FedAMP):  # whose clients keep a whole model
        return factory, LocalNorm(method, statistics_names(factory()), policy)
    return factory, method


def check(policy: str, module: nn.Module, method: Method, federation: Federation, batch_size: int) -> None:
    """Refuse, naming the setting, what BatchNorm cannot do here; ``module`` as its factory makes it."""
    check_model(policy, module, method)
    problem = _lone_sample(policy, federation, batch_size) if batch_norms(module) else None
    if problem is not None and needs_two(module, federation.train.inputs(federation.train.rows(0)[:1])):
        raise ValueError(f"{problem}; this model's BatchNorm needs two samples for a variance")


def check_model(policy: str, module: nn.Module, method: Method) -> None:
    """Refuse what does not depend on the samples."""
    if not batch_norms(module):
        if policy != "average":
            why = "has no BatchNorm layer"
            if has_frozen_batch_norm(module):
                why = "has frozen BatchNorm layers alone (adapters, freeze), whose statistics stay as they are"
            raise ValueError(f"batch_norm is {policy!r}, but the model {why}: leave it out")
        return
    if policy == "average" and method.settings().get("send") == "gradient":
        raise ValueError(
            f"{method.name}: send is 'gradient', but BatchNorm's running statistics have none and would never reach the server; "
            "use send='update', or batch_norm 'local' or 'batch'"
        )


def _lone_sample(policy: str, federation: Federation, batch_size: int) -> str | None:
    """Who would have a batch of one sample, and what to do about it."""
    counts = federation.train.sizes
    lone = _last_batch_of_one(counts, batch_size)
    if lone.any():
        client = int(lone.nonzero()[0])
        others = range(batch_size + 1, 2 * batch_size + 100)
        better = next((f" (try {b})" for b in others if not _last_batch_of_one(counts, b).any()), "")
        return (
            f"batch_size is {batch_size}{better}, which leaves client {client}, who has {int(counts[client])} training samples, "
            "with a batch of one"
        )
    splits = (
        ("has a single test sample", federation.test),
        ("has a single validation sample", federation.val),
        ("keeps a single training sample apart (check_share; 0: none)", federation.train.not_seen),
    )
    for what, samples in splits:
        if policy == "batch" and samples is not None and bool((samples.count == 1).any()):
            return f"batch_norm is 'batch', but client {int((samples.count == 1).nonzero()[0])} {what}"
    return None


def _last_batch_of_one(counts: Tensor, batch_size: int) -> Tensor:
    return counts % batch_size == 1 if batch_size > 1 else torch.ones_like(counts, dtype=torch.bool)
