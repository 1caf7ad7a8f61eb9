"""Each client's label prior: the log of its smoothed training label frequencies, added to the logits of its samples.

Where clients differ in how often labels occur but not in what a label looks like (p(x|y) is shared), the best predictor for
client i is softmax(f(x) + log π_i) with one scorer f for all (balanced softmax, Ren et al. 2020). π_i is computed and used by
the client; the counts never leave it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedfew.config import LocalTraining
from fedfew.federation import Federation, Samples
from fedfew.models.served import ServedModel

STEPS = 100  # of EM
SMOOTHING = 1.0  # added to the count of every class, so that no class is ruled out


def log_frequencies(labels: Tensor, classes: int) -> Tensor:
    """log π ``[classes]`` from one client's labels, smoothed."""
    counts = torch.bincount(labels.flatten(), minlength=classes).double() + SMOOTHING
    return (counts / counts.sum()).log()


def log_priors(samples: Samples, classes: int, strength: float) -> Tensor:
    """τ·log π_i of every client, ``[M, classes]``."""
    rows = [samples.y[samples.rows(i)] for i in range(len(samples.count))]
    return strength * torch.stack([log_frequencies(y, classes) for y in rows]).float()


def with_label_prior(federation: Federation, training: LocalTraining, classes: int | None = None) -> Federation:
    """The federation whose clients add their log prior to all logits, where the settings ask for one.

    classes: of the model, where there are more than in these data (as at a site that does not have them all).
    """
    if training.label_prior == "none":
        return federation
    priors = log_priors(federation.train, classes or federation.classes, training.prior_strength)
    return federation.with_splits(lambda samples: replace(samples, log_prior=priors))


def estimated_log_prior(scores: Tensor, classes: int) -> Tensor:
    """log π ``[classes]`` estimated from unlabelled inputs: EM of Saerens, Latinne and Decaestecker (2002).

    scores: ``[N, classes]``, outputs of a model trained with label priors, i.e. log-likelihoods of the classes up to
    a constant per input. The result is smoothed like the frequencies of labels.
    """
    log_likelihood = scores.double().log_softmax(1)
    log_prior = torch.full((classes,), 1 / classes, dtype=torch.float64, device=scores.device).log()
    for _ in range(STEPS):
        responsibilities = (log_likelihood + log_prior).softmax(1)
        counts = responsibilities.sum(0) + SMOOTHING
        log_prior = (counts / counts.sum()).log()
    return log_prior


def with_frequencies(
    models: Sequence[nn.Module], settings: Mapping[str, Any], frequencies: Any, classes: int, model: int | None
) -> ServedModel:
    """One of the models with a client's label frequencies; settings: of the training."""
    if settings.get("label_prior", "none") == "none":
        raise ValueError("these models were trained without label priors (label_prior is none): their logits need none")
    if model is None and len(models) != 1:
        raise ValueError(f"model is missing: give the number of one of the {len(models)} models, from 0")
    if model is not None and not 0 <= model < len(models):
        raise ValueError(f"model must be the number of one of the {len(models)} models, from 0, not {model}")
    given = torch.as_tensor(frequencies, dtype=torch.float64)
    if given.shape != (classes,) or not bool(given.isfinite().all() and (given > 0).all()):
        raise ValueError(f"frequencies must be {classes} numbers above 0, one per class (add 1 to counts, as in training)")
    return ServedModel([models[model or 0]], None, settings.get("prior_strength", 1.0) * (given / given.sum()).log()).eval()
