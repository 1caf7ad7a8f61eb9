from __future__ import annotations

from fedfew.methods import FedAvg
from tests.methods.small import (
    FULL_BATCH,
    assert_close,
    clients_of,
    descend,
    federation,
    initial,
    linear,
    mean_by_samples,
    theta,
    train,
)


def test_two_rounds_by_hand() -> None:
    data = federation()
    w = theta(initial(linear))
    for _ in range(2):
        w = mean_by_samples([descend(w, x, y) for x, y in clients_of(data)], data)
    run = train(FedAvg(), data, **FULL_BATCH)
    assert_close(theta(run.models[0].state_dict()), w)
    assert_close(theta(run.model_of(3).state_dict()), w)
