"""Useful arithmetic of a training step, counted from the module itself.

One multiply-add is two operations. Training a sample costs three forward passes: the forward pass, the gradient with respect to
the parameters and the gradient with respect to a layer's input (the first layer needs none; it is counted all the same, as is
usual, which is 8 % too much for the paper's CNN). Only matrix products and convolutions are counted: the rest is small.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedfew.bench.workloads import Workload
from fedfew.federation import Samples


def forward_flop(module: nn.Module, samples: Samples) -> float:
    """Operations of one sample on its way forward through the module."""
    x = samples.inputs(torch.arange(2, device=samples.y.device) % len(samples.y))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() / len(x)


def training_flop(module: nn.Module, samples: Samples) -> float:
    """Operations of one sample in training, forward and backward."""
    return 3 * forward_flop(module, samples)


def round_flop(workload: Workload, per_sample: float) -> float:
    """Operations of one round: every client trains each of its K replicas on each of its samples once per local epoch."""
    return per_sample * sum(workload.sizes()) * workload.models * workload.local_epochs
