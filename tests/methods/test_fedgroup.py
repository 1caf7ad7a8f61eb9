from __future__ import annotations

import numpy as np
import torch

from fedfew.methods import FedAvg, FedGroup
from fedfew.methods.fedgroup import decomposed
from tests.methods.small import PLAIN, assert_same, federation, train


def test_cosines_are_those_with_the_singular_vectors() -> None:
    updates = np.random.default_rng(0).normal(size=(5, 12))
    u = np.linalg.svd(updates.T, full_matrices=False)[0][:, :2]
    expected = updates @ u / np.linalg.norm(updates, axis=1, keepdims=True)
    found = decomposed(torch.from_numpy(updates @ updates.T), 2).numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-10)
    np.testing.assert_allclose(found[:, None] @ found[:, :, None], expected[:, None] @ expected[:, :, None], atol=1e-10)


def test_one_group_is_fedavg_where_all_take_part() -> None:
    run, fedavg = train(FedGroup(models=1), participation=1.0), train(FedAvg(), participation=1.0)
    assert_same(dict(run.models[0].state_dict()), dict(fedavg.models[0].state_dict()), 2e-6)


SETTINGS = PLAIN | {"engine": "stacked", "batch_size": 40, "lr": 0.5, "local_epochs": 10}


def test_groups_are_found_in_one_round_and_stay() -> None:
    """Clients 0 and 3, 1 and 4, 2 and 5 see the same blobs."""
    first, later = (train(FedGroup(models=3), federation((40,) * 6), rounds=rounds, **SETTINGS) for rounds in (1, 3))
    cluster = first.state.server["cluster"].tolist()
    assert cluster[:3] == cluster[3:]
    assert len(set(cluster)) == 3
    assert later.state.server["cluster"].tolist() == cluster
    for k in range(3):  # the direction of a group is the mean of its first updates, whatever their sizes
        moved = first.state.server["models"]["0.weight"][k] - first.state.server["start"]["0.weight"][0]
        torch.testing.assert_close(first.state.server["directions"]["0.weight"][k], moved, rtol=1e-4, atol=1e-6)


def test_a_client_that_comes_later_joins_the_group_with_its_direction() -> None:
    data = federation((40,) * 6)
    runs = [train(FedGroup(models=3), data, **(SETTINGS | {"participation": 0.67, "rounds": rounds})) for rounds in (1, 5)]
    before, after = (run.state.server["cluster"] for run in runs)
    assert int((before < 0).sum()) == 2
    assert torch.equal(before[before >= 0], after[before >= 0])
    assert after[:3].tolist() == after[3:].tolist()
    assert torch.equal(runs[0].state.server["directions"]["0.weight"], runs[1].state.server["directions"]["0.weight"])
