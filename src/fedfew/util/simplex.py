"""The least value of a quadratic form over weights that are not negative and sum to one."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1e-14  # of a weight
RIDGE = 1e-12  # of the mean diagonal entry: makes a form that is only semidefinite have one minimum


def least_quadratic_form(form: Tensor) -> Tensor:
    """α ``[m]`` with α ≥ 0 and Σα = 1 that minimises αᵀ·form·α, for a positive semidefinite ``form[m, m]`` in float64."""
    start = torch.zeros_like(form[0])
    start[form.diagonal().argmin()] = 1.0
    alpha = least_within(form, start, torch.zeros_like(start), torch.ones_like(start))
    return alpha / alpha.sum()


def least_within(form: Tensor, start: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """α ``[m]`` with low ≤ α ≤ high and Σα = Σ start that minimises αᵀ·form·α; ``start[m]`` is within the bounds.

    An active-set method, exact but for rounding: the free weights have one slope in common, those at their lower bound no smaller
    a slope, those at their upper bound no larger one.
    """
    m = len(form)
    form = (form + form.T) / 2
    form = form + (RIDGE * form.diagonal().mean() + torch.finfo(form.dtype).tiny) * torch.eye(m).to(form)
    alpha, movable = start.clone(), high > low
    free = movable.clone()
    for _ in range(20 * m):  # each step lowers the form or frees a weight; far more than it takes
        at = free.nonzero()[:, 0]
        if not len(at):  # no weight can move
            break
        target = _least_on(form, alpha, at)
        step, stop = _until_a_bound(alpha[at], target, low[at], high[at])
        alpha[at] = alpha[at] + step * (target - alpha[at])
        if stop is not None:
            alpha[at[stop]] = (low if bool(target[stop] < low[at[stop]]) else high)[at[stop]]
            free[at[stop]] = False
            continue
        slope = form @ alpha
        level = slope[at].mean()
        up = torch.where(movable & ~free & (alpha <= low), slope, torch.inf)  # may only grow
        down = torch.where(movable & ~free & (alpha >= high), slope, -torch.inf)  # may only fall
        gain, freed = max((float(level - up.min()), int(up.argmin())), (float(down.max() - level), int(down.argmax())))
        if not gain > 1e-12 * float(slope.abs().max()):
            break
        free[freed] = True
    return torch.minimum(torch.maximum(alpha, low), high)


def _least_on(form: Tensor, alpha: Tensor, at: Tensor) -> Tensor:
    """The weights ``at`` that minimise the form while the others, and the sum of all, stay as they are."""
    fixed = alpha.clone()
    fixed[at] = 0.0
    inverse = torch.linalg.solve(form[at][:, at], torch.stack([torch.ones(len(at)).to(form), -(form @ fixed)[at]], 1))
    ones, rest = inverse.T
    least: Tensor = rest + ones * (alpha[at].sum() - rest.sum()) / ones.sum()
    return least


def _until_a_bound(here: Tensor, target: Tensor, low: Tensor, high: Tensor) -> tuple[float, int | None]:
    """How much of the way to the target all stay within their bounds, and who reaches one first; (1, None): all of it."""
    bound = torch.where(target < here, low, high)
    beyond = (target < low - ROUNDING) | (target > high + ROUNDING)
    steps = torch.where(beyond, (bound - here) / torch.where(beyond, target - here, 1.0), torch.inf)
    first = int(steps.argmin())
    return (float(steps[first].clamp(0, 1)), first) if bool(beyond.any()) else (1.0, None)
