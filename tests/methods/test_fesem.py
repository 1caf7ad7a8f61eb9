from __future__ import annotations

import torch

from fedfew.methods import FedAvg, FeSEM
from fedfew.methods.k_means import spread
from fedfew.stack import Tree, branch, tensor
from tests.methods.small import PLAIN, assert_same, federation, served, train


def test_k_means_begins_with_points_far_from_each_other() -> None:
    """The mean is at 4: 10 is farthest from it, 0 from 10, and 5 from both."""
    assert spread(torch.tensor([[0.0], [1.0], [4.0], [5.0], [10.0]], dtype=torch.float64), 3).tolist() == [4, 0, 3]


def test_samples_decide_where_a_centre_is() -> None:
    """Models 0, 3, 5.2 and 10; centres 10 and 0 at first. 5.2 joins 10. With 100 samples at 10 their mean is 9.95, and 5.2 leaves
    for the mean of 0 and 3; with one sample each it is 7.6, and 5.2 stays."""
    for samples, cluster, centres in (((1, 1, 1, 100), [1, 1, 1, 0], (10.0, 8.2 / 3)), ((1, 1, 1, 1), [1, 1, 0, 0], (7.6, 1.5))):
        updates: Tree = {"parameters": {"w": torch.tensor([[0.0], [3.0], [5.2], [10.0]])}, "buffers": {}}
        none = torch.zeros(4, dtype=torch.int64)
        server: Tree = {"models": {"w": torch.zeros(2, 1)}, "cluster": none, "updates": updates, "answered": none}
        after = FeSEM(models=2).reclustered(server | {"samples": torch.tensor(samples)})
        assert tensor(after, "cluster").tolist() == cluster
        torch.testing.assert_close(branch(after, "models")["w"], torch.tensor(centres)[:, None])


def test_one_centre_is_fedavg_where_all_take_part() -> None:
    run, fedavg = train(FeSEM(models=1), participation=1.0), train(FedAvg(), participation=1.0)
    assert_same(dict(run.models[0].state_dict()), dict(fedavg.models[0].state_dict()), 2e-6)


def test_absent_clients_count_with_their_last_model() -> None:
    """The mean of one centre is over all clients that have ever answered."""
    data = federation((8,) * 6)
    runs = [train(FeSEM(models=1), data, participation=0.5, rounds=rounds) for rounds in (1, 2)]
    kept = [run.state.server["updates"]["parameters"]["0.weight"] for run in runs]
    seen = [run.state.server["samples"] > 0 for run in runs]
    assert int(seen[0].sum()) < int(seen[1].sum())
    for run, models, who in zip(runs, kept, seen, strict=True):
        torch.testing.assert_close(run.models[0].state_dict()["0.weight"], models[who].mean(0), rtol=1e-5, atol=1e-6)
    stayed = seen[0] & ~torch.from_numpy(~(runs[1].history["losses"][1] != runs[1].history["losses"][1]).all(1))
    assert bool(stayed.any())
    assert torch.equal(kept[0][stayed], kept[1][stayed])


def test_groups_are_found() -> None:
    """Clients 0 and 3, 1 and 4, 2 and 5 see the same blobs; those of a group are served the same model."""
    data = federation((40,) * 6)
    settings = PLAIN | {"rounds": 6, "score_every": 6, "engine": "stacked", "batch_size": 40, "lr": 0.5, "local_epochs": 10}
    run = train(FeSEM(models=3), data, **settings)
    cluster = run.state.server["cluster"].tolist()
    assert cluster[:3] == cluster[3:]
    assert len(set(cluster)) == 3
    models = served(run)
    assert_same(models[0], models[3])
    assert not torch.equal(models[0]["0.weight"], models[1]["0.weight"])
