from __future__ import annotations

import torch

from fedfew.local import best_model
from fedfew.methods import CLoVE, FedAvg
from fedfew.methods.clove import matched
from tests.methods.small import FULL_BATCH, PLAIN, assert_same, federation, train


def test_groups_get_different_models_by_the_least_sum_of_losses() -> None:
    """Model 0 is the best for all. The first two clients lose least (0.2) by taking model 1, so model 0 is for the others."""
    losses = torch.tensor([[1.0, 1.1], [1.1, 1.2], [3.0, 5.0], [3.1, 5.1]])
    assert matched(losses.double()).tolist() == [1, 1, 0, 0]
    assert matched(losses[:1].double()).tolist() == [0]


def test_a_model_that_a_client_cannot_use_counts_as_the_worst() -> None:
    losses = torch.tensor([[1.0, torch.inf], [1.1, 5.0], [4.0, 1.0], [4.1, 1.0]])
    assert matched(losses.double()).tolist() == [0, 0, 1, 1]


def test_one_group_is_fedavg_one_round_late() -> None:
    late, fedavg = train(CLoVE(models=1), **(FULL_BATCH | {"rounds": 3})), train(FedAvg(), **FULL_BATCH)
    assert_same(dict(late.models[0].state_dict()), dict(fedavg.models[0].state_dict()), 2e-6)


def test_the_first_round_only_finds_groups() -> None:
    still, first = (train(CLoVE(), rounds=1, participation=1.0, **changes) for changes in ({"lr": 1e-30}, {}))
    assert torch.equal(still.state.server["models"]["0.weight"], first.state.server["models"]["0.weight"])
    assert len(set(first.state.server["cluster"].tolist())) == 3


def test_groups_are_found() -> None:
    """Clients 0 and 3, 1 and 4, 2 and 5 see the same blobs."""
    data = federation((40,) * 6)
    settings = PLAIN | {"rounds": 8, "score_every": 8, "engine": "stacked", "batch_size": 40, "lr": 0.5}
    cluster = train(CLoVE(), data, **settings).state.server["cluster"].tolist()
    assert cluster[:3] == cluster[3:]
    assert len(set(cluster)) == 3


def test_groups_part_where_one_model_is_the_best_for_all_as_in_ifca_they_do_not() -> None:
    """A model of weights 0 has a lower loss for everybody than one of large random weights, whose losses tell groups apart."""
    first = torch.tensor([[1.1, 3.0], [1.1, 3.1], [1.1, 6.0], [1.1, 6.1]]).double()
    assert set(best_model(first).tolist()) == {0}
    assert matched(first).tolist() == [1, 1, 0, 0]


def test_absent_clients_stay_in_their_group() -> None:
    runs = [train(CLoVE(), rounds=rounds, participation=0.5) for rounds in (1, 2)]
    before, after = (run.state.server["cluster"] for run in runs)
    absent = torch.from_numpy(runs[1].history.last("losses")).isnan().all(1)
    assert torch.equal(before[absent], after[absent])
    assert bool((before[absent] >= 0).any())
    assert bool((after[~absent] >= 0).all())
