"""What a client without labels uses: the models that are most certain of its inputs, and a label prior estimated from them.

A model that fits a client's inputs is more certain of their classes than one that was trained for other clients, so the mean
entropy of what it predicts stands in for the loss, which needs labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfew.local import mixture_weights
from fedfew.training.label_prior import estimated_log_prior

TEMPERATURE = 0.1  # of the mixture by entropies, which differ less between models than losses do


def choose(logits: Sequence[Tensor], prior_strength: float, mixture: bool) -> tuple[Tensor, Tensor | None]:
    """The weight of each model and the client's τ·log π (None: no prior), from ``logits[K][N, classes]`` without a prior.

    prior_strength: τ, 0 for models that were trained without label priors. mixture: without it the most certain model is chosen.
    """
    classes = logits[0].shape[1]

    def log_prior(scores: Tensor) -> Tensor:
        return prior_strength * estimated_log_prior(scores, classes)

    shifted = [scores.double() + log_prior(scores) if prior_strength else scores.double() for scores in logits]
    entropies = torch.stack([_entropy(scores) for scores in shifted])
    weights = mixture_weights(entropies[None], TEMPERATURE)[0]
    if not mixture:
        weights = torch.nn.functional.one_hot(weights.argmax(), len(weights)).double()
    if not prior_strength:
        return weights, None
    mixed = sum(w * scores.double().softmax(1) for w, scores in zip(weights, logits, strict=True) if w > 0)
    return weights, log_prior(torch.as_tensor(mixed).log())


def _entropy(scores: Tensor) -> Tensor:
    """Mean over samples; NaN where a model's outputs are not finite, which gives it no weight."""
    log_probabilities = scores.log_softmax(1)
    return -(log_probabilities.exp() * log_probabilities).sum(1).mean()
