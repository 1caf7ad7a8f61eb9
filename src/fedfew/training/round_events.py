"""Lines about a round: models left out, started again or not specialised, and clients whose losses or weights stand out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedfew.methods import FedFew, Method
from fedfew.stack import all_finite
from fedfew.training.data_record import DataRecord
from fedfew.training.history import History
from fedfew.training.per_client import some
from fedfew.util.printable import printable, shortened
from fedfew.util.spelling import counted
from fedfew.weighted_mean import normalised

ONCE = "This is reported once"  # ends a line about a single client
MOST = 0.9  # of the weight of a model: a client with more than this gets a line
FIRST = 10  # the round from which models should have specialised
ALIKE = 1.25  # times 1/K: where the largest of a client's K weights is less than this on average, models count nearly alike


def unusable(clients: Tensor, reported: Tensor, round: int) -> list[str]:
    """A line for each model whose loss or update is not finite, so that its loss is +inf, for some of the clients."""
    if all_finite({"losses": reported}):
        return []
    clients, order = clients.sort()
    lines = []
    for k, left_out in enumerate((reported[order] == torch.inf).T):
        if left_out.any():
            listed = some(clients[left_out].tolist())
            lines.append(f"round {round}: model {k} left out, its loss or update is not finite: for clients {listed}")
    return lines


def diverged(rounds: Tensor | None, before: Sequence[str]) -> list[str]:
    """A line for each round [M] whose model some clients could not fine-tune, unless it was reported before; 0: no such round."""
    lines = []
    for round in [] if rounds is None else sorted(set(rounds.tolist()) - {0}):
        begin = f"round {round}: fine-tuning diverged"
        if not any(line.startswith(begin) for line in before):
            listed = some((rounds == round).nonzero()[:, 0].tolist())
            lines.append(f"{begin} (lower lr): these clients keep the model that they started from: {listed}")
    return lines


def infinite(history: History, round: int, before: Sequence[str]) -> list[str]:
    """A line where the newest scores are infinite, as R² where training diverges, unless it was reported before."""
    what = "training diverges, infinite scores of clients"
    scores = history.last_scores("served")
    if np.isfinite(scores).all():  # as in nearly every round
        return []
    found = np.isinf(scores).nonzero()[0].tolist()
    if not found or any(what in line for line in before):
        return []
    return [f"round {round}: {what} {some(found)}. Lower lr, or standardise the targets"]


def not_specialised(history: History, method: Method, round: int, before: Sequence[str]) -> list[str]:
    """A line, once, where clients' weights of FedFew's models are nearly uniform although local training gains more than μ.

    Where clients are alike, weights are rightly uniform, too; but then training on one client's samples gains little.
    """
    what = "models have not specialised"
    if round < FIRST or not isinstance(method, FedFew) or method.models < 2 or any(what in line for line in before):
        return []
    most = history.last("w").max(1)
    if most.min() * method.models >= ALIKE:  # then so is the mean, whoever takes part
        return []
    gain = history.last("served_loss") - history.last("adapted_loss")
    known = np.isfinite(most) & np.isfinite(gain)  # those that took part, and share their scores
    if not known.any():
        return []
    gained = float(gain[known].mean())
    if most[known].mean() * method.models >= ALIKE or gained <= method.smoothing(len(gain)):
        return []
    smaller = f"a smaller mu (it is {method.mu:g})"
    cure = smaller if method.loss_at == "received" else f"loss_at='received', {smaller} or a smaller lr"
    return [
        f"round {round}: {what}: clients weigh all {method.models} models nearly alike, but a round of training on its own data "
        f"lowers a client's test loss by {gained:.2g} on average. If clients form groups, set {cure}"
    ]


def restarts(restarted: Iterable[tuple[int, int]], after: int, round: int) -> list[str]:
    """A line for each model that started again near another."""
    return [
        f"round {round}: model {k} starts again near model {neighbour}: no client had used it for {counted(after, 'round')}"
        for k, neighbour in restarted
    ]


def bounded(
    clients: Tensor, reported: Tensor, rows: Iterable[int], bound: float | None, round: int, data: DataRecord
) -> list[str]:
    """A line for each of these rows: the client's losses count as less than it reported."""
    return [
        f"losses of client {_called(clients[row], data)} are bounded: {float(reported[row].amin()):.4g} in round {round} "
        f"counts as {bound:.4g}, by the median of the round before"
        for row in rows
    ]


def of_weights(
    clients: Tensor, log_weights: Tensor, log_alpha: Tensor, factors: Tensor, most_share: float, round: int, data: DataRecord
) -> list[str]:
    """Lines about clients whose weight is capped by a per cent or more, and about clients with most of the weight of a model."""
    capped = factors.nonzero()[:, 0].tolist()
    before, after = (normalised(log_alpha + added).tolist() if capped else [] for added in (0, factors))
    larger = "; its share of the samples or 3 / number of clients, where larger"
    lines = [
        f"the weight of client {_called(clients[row], data)} is capped: by its losses it would have "
        f"{100 * before[row]:.0f} % of round {round}, and has {100 * after[row]:.0f} % (most_share is {most_share:g}"
        f"{larger if after[row] > most_share + 1e-3 else ''})"
        for row in capped
        if f"{before[row]:.2f}" != f"{after[row]:.2f}"
    ]
    of_model = normalised(log_weights + factors[:, None]).nan_to_num()  # NaN: no client gives the model any weight
    return lines + [
        f"client {_called(clients[row], data)} has most of the weight of model {model}: "
        f"{100 * float(of_model[row, model]):.0f} % in round {round}"
        for row, model in (of_model > MOST).nonzero().tolist()
        if len(clients) > 1
    ]


def _called(client: Tensor, data: DataRecord) -> str:
    """A client's number, and its name where it has one."""
    number = int(client)
    return f"{number} ({printable(shortened(data.client_name(number)))})" if data.client_names else str(number)


def not_confirmed(part: float, round: int) -> list[str]:
    """A line where less than half of the differences between clients' losses counts."""
    if part >= 0.5:
        return []
    return [
        "training losses mislead: models have memorised clients' samples. Samples never trained on do not confirm the "
        f"differences between models, of which {100 * part:.0f} % count in round {round} (check_share)"
    ]


def once(lines: Iterable[str], before: Sequence[str]) -> list[str]:
    """The lines that begin as none before."""
    known = {line.partition(":")[0] for line in before}
    return [f"{line}. {ONCE}" for line in lines if line.partition(":")[0] not in known]
