from __future__ import annotations

import pytest
import torch

from fedfew.methods import FedAvg, FedMGDA, FedSoft, Method
from tests.methods.small import (
    FULL_BATCH,
    assert_close,
    assert_same,
    clients_of,
    descend,
    federation,
    initial,
    linear,
    theta,
    train,
)


@pytest.mark.parametrize(("epsilon", "weights"), [(0.1, (0.65, 0.35)), (1.0, (0.5, 0.5))])
def test_a_round_of_two_clients_by_hand(epsilon: float, weights: tuple[float, float]) -> None:
    """Of two vectors of length 1 the shortest mean is the one in the middle; shares are 3/4 and 1/4, and ε keeps near them."""
    data = federation((12, 4))
    w = theta(initial(linear))
    moved = [descend(w, x, y) - w for x, y in clients_of(data)]
    length = [float(d.norm()) for d in moved]
    assert abs(length[0] - length[1]) > 0.01
    typical = 0.75 * length[0] + 0.25 * length[1]
    expected = w + 3.0 * typical * sum(a * d / n for a, d, n in zip(weights, moved, length, strict=True))
    run = train(FedMGDA(epsilon=epsilon, server_step=3.0), data, **(FULL_BATCH | {"rounds": 1}))
    assert_close(theta(run.models[0].state_dict()), expected)


def test_with_weights_that_cannot_move_it_is_fedavg() -> None:
    run, fedavg = train(FedMGDA(epsilon=0.0, normalise=False, server_step=1.0)), train(FedAvg())
    assert_same(dict(run.models[0].state_dict()), dict(fedavg.models[0].state_dict()), 2e-6)


@pytest.mark.parametrize("normalise", [False, True])
def test_a_free_step_is_good_for_every_client(normalise: bool) -> None:
    """The shortest point d of a hull has ⟨d, v⟩ ≥ ‖d‖² for all v of the hull. FedAvg's mean is not like that here."""
    v = torch.tensor([[1.0, 0.0, 0.2], [-0.5, 0.4, 0.1], [3.0, 1.0, -0.2], [0.1, 0.2, 2.0]], dtype=torch.float64)
    gram, samples = v @ v.T, torch.tensor([10.0, 1.0, 10.0, 1.0], dtype=torch.float64)
    share, length = samples / samples.sum(), v.norm(dim=1) if normalise else torch.ones(4, dtype=torch.float64)
    assert float((v @ (share @ v)).min()) < 0
    d = FedMGDA(epsilon=1.0, normalise=normalise, server_step=1.0).weights(gram, samples) @ v / float(share @ length)
    assert float(((v / length[:, None]) @ d).min()) > float(d @ d) - 1e-9


@pytest.mark.parametrize("method", [FedMGDA(), FedSoft()])
def test_a_robust_aggregator_has_no_effect_and_that_is_reported(method: Method) -> None:
    events: list[str] = []
    train(method, rounds=1, aggregator="median", on_round=lambda progress: events.extend(progress.events))
    assert f"aggregator is median, but {method.name} averages no updates: it has no effect" in events


def test_a_client_that_does_not_move_counts_for_nothing_and_breaks_nothing() -> None:
    v = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    weights = FedMGDA().weights(v @ v.T, torch.tensor([1.0, 1.0], dtype=torch.float64))
    assert bool(weights.isfinite().all())
    assert float(weights[1]) == 0.0


def test_a_client_that_moves_next_to_nothing_does_not_either() -> None:
    """One over its length is more than float32 holds: one site of a Flower run could end it."""
    v = torch.tensor([[1.0, 0.0], [0.0, 1e-42]], dtype=torch.float64)
    weights = FedMGDA().weights(v @ v.T, torch.tensor([1.0, 1.0], dtype=torch.float64))
    assert weights.float().isfinite().all()
    assert weights[1] == 0
