"""The least value of a quadratic form over weights that are not negative and sum to one."""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 1e-12  # of the mean diagonal entry: makes a form that is only semidefinite have one minimum


def least_quadratic_form(form: Tensor) -> Tensor:
    """α ``[m]`` with α ≥ 0 and Σα = 1 that minimises αᵀ·form·α, for a positive semidefinite ``form[m, m]`` in float64.

    An active-set method, exact but for rounding: weights that are not on the boundary solve form·α = const among themselves.
    """
    m = len(form)
    form = (form + form.T) / 2
    form = form + (RIDGE * form.diagonal().mean() + torch.finfo(form.dtype).tiny) * torch.eye(m).to(form)
    alpha = torch.zeros_like(form[0])
    free = [int(form.diagonal().argmin())]
    alpha[free] = 1.0
    for _ in range(10 * m):  # each step lowers the form or frees a weight; far more than it takes
        inner = torch.linalg.solve(form[free][:, free], torch.ones(len(free)).to(form))
        target = inner / inner.sum()
        here = alpha[free]
        if bool((target <= 0).any()):  # go until the first weight reaches 0, and fix it there
            falling = target <= 0
            steps = torch.where(falling, here / (here - target).clamp_min(1e-300), torch.inf)
            stop = int(steps.argmin())
            alpha[free] = here + steps[stop].clamp(0, 1) * (target - here)
            alpha[free[stop]] = 0.0
            free.pop(stop)
            continue
        alpha[free] = target
        slope = form @ alpha
        level = slope[free].mean()  # the same for all free weights
        fixed = [j for j in range(m) if j not in free]
        gains = [(float(level - slope[j]), j) for j in fixed]
        gain, best = max(gains, default=(0.0, -1))
        if gain <= 1e-12 * float(level.abs()):
            break
        free.append(best)
    return alpha.clamp_min(0) / alpha.clamp_min(0).sum()
