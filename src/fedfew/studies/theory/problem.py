"""What descends on g: clients with losses and gradients of K models, in float64 and on all their data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedfew import scalarization

Array = NDArray[np.float64]


class Problem(Protocol):
    """M clients. Models are rows [K, d]; quadratic clients (:mod:`fedfew.studies.theory.quadratic`) are one."""

    def losses(self, models: Array) -> Array: ...  # [M, K]

    def gradients(self, models: Array) -> Array: ...  # [M, K, d]


@dataclass(frozen=True)
class Networks:
    """Clients that fit a network (or, without hidden units, a softmax regression) to labels, with a little weight decay."""

    x: Tensor  # [M, n, features]
    y: Tensor  # [M, n]
    classes: int
    hidden: int  # 0: no hidden layer
    decay: float = 0.01

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of parameters of each tensor of a model."""
        inner = self.hidden or self.x.shape[2]
        last = (inner * self.classes, self.classes)
        return (self.x.shape[2] * self.hidden, self.hidden, *last) if self.hidden else last

    def _losses(self, models: Tensor) -> Tensor:
        """Of models [M, K, d], a copy for every client: L[i, k]."""
        M, n, _ = self.x.shape
        *first, weight, bias = models.split(self.sizes, dim=2)
        features = self.x[:, None].expand(-1, models.shape[1], -1, -1)  # [M, K, n, features]
        if first:
            features = torch.tanh(features @ first[0].unflatten(2, (-1, self.hidden)) + first[1][:, :, None])
        logits = features @ weight.unflatten(2, (-1, self.classes)) + bias[:, :, None]
        labels = self.y[:, None].expand(-1, models.shape[1], -1)
        fit = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").reshape(M, -1, n).mean(2)
        return fit + 0.5 * self.decay * models.square().sum(2)

    def losses(self, models: Array) -> Array:
        result: Array = self._losses(self._copies(models)).numpy()
        return result

    def gradients(self, models: Array) -> Array:
        copies = self._copies(models).requires_grad_()
        self._losses(copies).sum().backward()  # each copy appears in one loss only
        assert copies.grad is not None
        result: Array = copies.grad.numpy()
        return result

    def _copies(self, models: Array) -> Tensor:
        return torch.from_numpy(models).expand(len(self.x), -1, -1).clone()


def networks(rng: np.random.Generator, clients: int, hidden: int, samples: int = 40) -> Networks:
    """Clients in groups, each group with a rule of its own for the same features."""
    groups, features, classes = 3, 4, 3
    rules = rng.normal(size=(groups, features, classes))
    x = rng.normal(size=(clients, samples, features))
    scores = np.einsum("inf,ifc->inc", x, rules[np.arange(clients) % groups]) + 0.3 * rng.normal(size=(clients, samples, classes))
    return Networks(torch.from_numpy(x), torch.from_numpy(scores.argmax(2)), classes, hidden)


def coefficients(problem: Problem, models: Array, mu: float) -> Array:
    """α_i w[i, k] = ∂g/∂L[i, k], the library's own."""
    alpha, w = scalarization.weights(torch.from_numpy(problem.losses(models)), mu)
    product: Array = (alpha[:, None] * w).numpy()
    return product


def shares(problem: Problem, models: Array, mu: float) -> Array:
    """The same divided by each model's own sum, in log space, as with ``normalise``: defined for starved models, too."""
    log_alpha, log_w = scalarization.log_weights(torch.from_numpy(problem.losses(models)), mu)
    normalised: Array = torch.softmax(log_alpha[:, None] + log_w, 0).numpy()
    return normalised


def objective(problem: Problem, models: Array, mu: float) -> float:
    return float(scalarization.stch_set(torch.from_numpy(problem.losses(models)), mu))


def combined(problem: Problem, models: Array, weights: Array) -> Array:
    """Σ_i weights[i, k] ∇L_i(θ_k), [K, d]: with :func:`coefficients` the gradient of g."""
    return np.einsum("ik,ikd->kd", weights, problem.gradients(models))


def descended(problem: Problem, start: Array, mu: float) -> Array:
    """Where descent on g ends (BFGS, on to the last digits)."""
    from scipy.optimize import minimize

    def value_and_gradient(flat: Array) -> tuple[float, Array]:
        models = flat.reshape(start.shape)
        return objective(problem, models, mu), combined(problem, models, coefficients(problem, models, mu)).ravel()

    found = minimize(value_and_gradient, start.ravel(), jac=True, method="BFGS", options={"gtol": 1e-12, "maxiter": 3000})
    models: Array = found.x.reshape(start.shape)
    return models


def descended_normalised(problem: Problem, start: Array, mu: float, tolerance: float = 1e-7, most: int = 1500) -> Array:
    """Where descent ends if each model moves by its own weighted mean of gradients; the step grows while g falls.

    That is the gradient of g with each model's part divided by Σ_i α_i w[i, k] > 0: still a direction in which g falls.
    """
    models, step = start, 0.05
    value, direction = objective(problem, models, mu), combined(problem, models, shares(problem, models, mu))
    for _ in range(most):
        ahead = models - step * direction
        ahead_value = objective(problem, ahead, mu)
        if ahead_value <= value + 1e-15 * abs(value):
            models, value, step = ahead, ahead_value, 1.1 * step
            direction = combined(problem, models, shares(problem, models, mu))
        else:
            step /= 2
        if np.abs(direction).max() < tolerance or step < 1e-14:
            break
    return models
