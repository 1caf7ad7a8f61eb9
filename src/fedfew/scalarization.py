"""Tchebycheff set scalarization: one number for how well K solutions together serve M objectives.

For a matrix of losses ``L[i, k]`` (objective or client i under solution or model k), preferences λ and ideal values z*:

    TCH-Set   g = max_i min_k λ_i (L[i, k] − z*_i)                                  (paper, Eq. 4)
    STCH-Set  g = μ log Σ_i (Σ_k exp(−λ_i (L[i, k] − z*_i) / μ))⁻¹                    (paper, Eq. 7)

and they are never far apart:  −μ log M ≤ TCH-Set − STCH-Set ≤ μ log K. Client weights p_i may stand in the place of the ones in
the sum over clients. The gradient of STCH-Set is ``∂g/∂L[i, k] = λ_i α_i w[i, k]``: ``w`` is large for the model that fits a
client, ``α`` for the client that is served worst.

Everything is computed in log space after subtracting the row's or column's extreme value, *before* dividing by μ: no overflow,
and no digits lost beyond those of max(|L|, μ), for μ from 1e-6 to 1e6. Half-precision losses are computed with in float32.

A loss of +∞ means that the client cannot use the model: the pair takes no part in the sums, and its weight is 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["stch_set", "tch_set", "weights"]

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def stch_set(
    losses: Tensor,
    mu: float,
    preference: Tensor | float | None = None,
    ideal: Tensor | float | None = None,
    client_weights: Tensor | float | None = None,
) -> Tensor:
    """Smooth Tchebycheff set scalarization of ``losses[M, K]``, a differentiable scalar.

    mu: smoothing, > 0. → 0: the worst client under its best model (TCH-Set); → ∞: all clients and models alike.
    preference: λ, one number per client (or one for all), ≥ 0; ideal: z*, in the same form. Default: 1 and 0.
    client_weights: p, ≥ 0: how much each client counts in the sum, g = μ log Σ_i p_i / S_i with S_i = Σ_k exp(−λ_i (L−z*_i)/μ).
    Default: 1. With weights that add up to one, μ does not depend on the number of clients.
    """
    objectives = _objectives(losses, preference, ideal)
    mu = _checked_mu(mu, losses)
    soft_min = _soft_min(objectives, mu)
    return _as_given(_soft_max(soft_min + mu * _log_client_weights(client_weights, losses), mu), losses)


def tch_set(losses: Tensor, preference: Tensor | float | None = None, ideal: Tensor | float | None = None) -> Tensor:
    """Tchebycheff set scalarization of ``losses[M, K]``: the worst client's loss under its best model."""
    return _as_given(_objectives(losses, preference, ideal).amin(1).amax(0), losses)


def weights(
    losses: Tensor,
    mu: float,
    preference: Tensor | float | None = None,
    ideal: Tensor | float | None = None,
    client_weights: Tensor | float | None = None,
) -> tuple[Tensor, Tensor]:
    """``(alpha[M], w[M, K])`` of ``losses[M, K]`` (paper, Eqs. 9 and 10): both sum to one, over clients and over models.

    ``alpha[:, None] * w`` is the gradient of :func:`stch_set` with respect to the losses where every preference is 1.
    """
    objectives = _objectives(losses, preference, ideal)
    mu = _checked_mu(mu, losses)
    soft_min = _soft_min(objectives, mu)
    alpha = torch.softmax((soft_min - soft_min.amax(0)) / mu + _log_client_weights(client_weights, losses), 0)
    w = torch.softmax((objectives.amin(1, keepdim=True) - objectives) / mu, 1)
    return alpha.to(losses.dtype), w.to(losses.dtype)


def log_weights(
    losses: Tensor,
    mu: float,
    preference: Tensor | float | None = None,
    ideal: Tensor | float | None = None,
    client_weights: Tensor | float | None = None,
) -> tuple[Tensor, Tensor]:
    """``(log alpha + a constant, log w)``: what :func:`weights` normalises over clients, for sums taken a part at a time."""
    objectives = _objectives(losses, preference, ideal)
    mu = _checked_mu(mu, losses)
    least = objectives.amin(1, keepdim=True)
    scaled = (least - objectives) / mu
    log_sum = scaled.exp().sum(1).log()  # the largest is 0. log_softmax would wake all cores for however few numbers
    log_w = scaled - log_sum[:, None]
    return least[:, 0] / mu - log_sum + _log_client_weights(client_weights, losses), log_w


def _soft_min(objectives: Tensor, mu: float) -> Tensor:
    """−μ log S_i = −μ log Σ_k exp(−objectives[i, k] / μ), a value per client."""
    least = objectives.detach().amin(1, keepdim=True)
    return least[:, 0] - mu * torch.logsumexp((least - objectives) / mu, 1)


def _log_client_weights(weights: Tensor | float | None, losses: Tensor) -> Tensor:
    if weights is None:
        return losses.new_zeros(len(losses), dtype=_working_type(losses))
    column, least, most = _per_client("client_weights", weights, losses.to(_working_type(losses)))
    if least < 0 or most <= 0:
        raise ValueError("client_weights must be ≥ 0, and > 0 for at least one client")
    return column.log()


def _working_type(losses: Tensor) -> torch.dtype:
    return torch.float32 if losses.dtype in (torch.float16, torch.bfloat16) else losses.dtype


def _soft_max(values: Tensor, mu: float) -> Tensor:
    most = values.detach().amax(0)
    return most + mu * torch.logsumexp((values - most) / mu, 0)


def _objectives(losses: Tensor, preference: Tensor | float | None, ideal: Tensor | float | None) -> Tensor:
    """λ_i (L[i, k] − z*_i), checked."""
    if not isinstance(losses, Tensor) or losses.dtype not in FLOATING:
        given = losses.dtype if isinstance(losses, Tensor) else type(losses).__name__
        makes = "torch.as_tensor(losses, dtype=torch.float64) makes one"
        raise TypeError(f"losses must be a floating-point torch.Tensor of shape [M, K], not {given}: {makes}")
    if losses.ndim != 2 or 0 in losses.shape:
        raise ValueError(f"losses must have shape [M, K] with M ≥ 1 clients and K ≥ 1 models, not {list(losses.shape)}")
    usable = None
    if not _finite(losses):
        usable = losses.isfinite()
        if not (usable | (losses == torch.inf)).all():
            raise ValueError("losses must be numbers, or +inf for a model that a client cannot use, but some are NaN or -inf")
        if not usable.any(1).all():
            raise ValueError(f"losses of client {int((~usable.any(1)).nonzero()[0])} are all infinite: it has no model to use")
    losses = losses.to(_working_type(losses))
    objectives = losses = losses if usable is None else torch.where(usable, losses, 0)  # ∞ would make derivatives by λ NaN
    if ideal is not None:
        objectives = objectives - _per_client("ideal", ideal, losses)[0][:, None]
    if preference is not None:
        lam, least, _ = _per_client("preference", preference, losses)
        if least < 0:
            raise ValueError("preference must be ≥ 0 for every client")
        objectives = lam[:, None] * objectives
    if objectives is not losses and not _finite(objectives):
        raise ValueError(f"λ (losses − z*) is too large for {objectives.dtype}: give losses, preference or ideal of another size")
    return objectives if usable is None else torch.where(usable, objectives, torch.inf)


def _as_given(value: Tensor, losses: Tensor) -> Tensor:
    """In the type of the losses."""
    given = value.to(losses.dtype)
    if not _finite(given):
        raise ValueError(f"the value is too large for {losses.dtype}: give losses of a wider type, or a smaller mu")
    return given


def _per_client(name: str, value: Tensor | float, losses: Tensor) -> tuple[Tensor, float, float]:
    """One number per client ``[M]``, checked, and the least and the largest of them."""
    try:
        column = torch.as_tensor(value, dtype=losses.dtype, device=losses.device)
    except (TypeError, ValueError, RuntimeError) as error:  # words, None, rows of unequal length
        raise TypeError(f"{name} must be one number or one per client ({len(losses)}), not {value!r}") from error
    if column.ndim > 1 or (column.ndim == 1 and len(column) != len(losses)):
        raise ValueError(f"{name} must be one number or one per client ({len(losses)}), not of shape {list(column.shape)}")
    least, most = map(float, column.detach().aminmax())  # NaN where one of them is
    if not (math.isfinite(least) and math.isfinite(most)):
        raise ValueError(f"{name} must be finite")
    return column.expand(len(losses)), least, most


def _finite(values: Tensor) -> bool:
    """Is every number finite? Their sum is, unless one of them is not or it overflows: only then each is looked at."""
    return math.isfinite(values.detach().sum()) or bool(values.isfinite().all())


def _checked_mu(mu: float, losses: Tensor) -> float:
    if isinstance(mu, str) or not hasattr(mu, "__float__") or int(getattr(mu, "ndim", 0)):
        raise TypeError(f"mu must be one number, not {mu!r}")
    value = mu if isinstance(mu, Tensor) else float(mu)  # a number of NumPy's or a Decimal would meet others in its own way
    if not (value > 0 and value != float("inf")):
        raise ValueError(f"mu must be a finite number > 0, not {mu}")
    kind = torch.finfo(_working_type(losses))
    if not kind.smallest_normal * kind.eps <= value <= kind.max:  # else it would be rounded to 0 or ∞
        raise ValueError(f"mu is {value:g}, which {kind.dtype} cannot hold: give losses as float64")
    return value
