from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import nn

from fedfew.methods import PACFL, FedAvg
from fedfew.methods.pacfl import linear_layer, merged, principal_angles, subspace
from tests.methods.small import PLAIN, assert_same, federation, initial, mlp, train


def test_subspaces_and_angles_by_hand() -> None:
    """Data along e₁ and (e₁ + √3·e₂)/2: 60°. A second vector along e₃ is common to both: 0° and 60°."""
    along = [torch.tensor([[2.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]), torch.tensor([[1.0, 3.0**0.5, 0.0]])]
    u = torch.stack([subspace(x, 1) for x in along]).double()
    torch.testing.assert_close(u[0].abs(), torch.tensor([[1.0, 0.0, 0.0]]).double())
    torch.testing.assert_close(principal_angles(u)[0, 1], torch.tensor([60.0]).double(), atol=1e-4, rtol=0)
    both = torch.stack([subspace(torch.cat([x, torch.tensor([[0.0, 0.0, 0.5]])]), 2) for x in along]).double()
    torch.testing.assert_close(principal_angles(both)[0, 1], torch.tensor([0.0, 60.0]).double(), atol=0.05, rtol=0)


@pytest.mark.parametrize("copies", [1, 3])
def test_a_client_with_too_few_samples_sends_fewer_vectors(copies: int) -> None:
    u = subspace(torch.tensor([[0.0, 3.0, 4.0]] * copies), 2)
    torch.testing.assert_close(u.abs(), torch.tensor([[0.0, 0.6, 0.8], [0.0, 0.0, 0.0]]))


def test_the_sum_is_of_the_angles_there_are() -> None:
    """e₁ alone, e₁ and e₂, (e₁ + √3·e₂)/2 and e₃: two clients with the same sample are not apart."""
    one, two = torch.tensor([[1.0, 0, 0]]), torch.tensor([[2.0, 0, 0], [0, 1, 0]])
    turned = torch.tensor([[1.0, 3.0**0.5, 0], [0, 0, 1]])
    u = torch.stack([subspace(x, 2) for x in (one, one, two, turned)])
    expected = torch.tensor([[0.0, 0, 0, 120], [0, 0, 0, 120], [0, 0, 0, 90], [120, 120, 90, 0]]).double()
    torch.testing.assert_close(PACFL(measure="sum").angles(u), expected, atol=0.05, rtol=0)


@pytest.mark.parametrize("seed", range(10))
def test_clusters_are_those_of_complete_linkage(seed: int) -> None:
    points = torch.randn(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    distance = torch.cdist(points, points)
    tree = linkage(squareform(distance.numpy(), checks=False), "complete")
    for most, beta in ((3, 0.0), (1, 0.0), (9, 0.0), (9, 1.0), (4, 1.5)):
        cut = fcluster(tree, beta, "distance")
        expected = cut if len(set(cut)) <= most else fcluster(tree, most, "maxclust")
        found = merged(distance, most, beta)
        assert torch.equal(found[:, None] == found, torch.from_numpy(expected[:, None] == expected))
        assert sorted(set(found.tolist())) == list(range(len(set(expected))))


def test_one_cluster_is_fedavg() -> None:
    fedavg = train(FedAvg(), participation=1.0)
    for method in (PACFL(models=1), PACFL(beta=90.0), PACFL(measure="sum", beta=180.0)):
        run = train(method, participation=1.0)
        assert len(run.models) == 1
        assert_same(dict(run.models[0].state_dict()), dict(fedavg.models[0].state_dict()), 2e-6)


def test_groups_are_found_in_one_round() -> None:
    """Clients 0 and 3, 1 and 4, 2 and 5 see the same blobs, turned."""
    run = train(PACFL(models=3), federation((40,) * 6), **(PLAIN | {"rounds": 1}))
    cluster = run.state.server["cluster"].tolist()
    assert cluster[:3] == cluster[3:]
    assert len(set(cluster)) == 3


def test_a_client_that_comes_later_joins_those_that_are_like_it_and_counts_from_its_second_round() -> None:
    data = federation((40,) * 6)
    few = PLAIN | {"participation": 0.67, "batch_size": 40, "model": mlp}
    runs = [train(PACFL(models=3), data, **(few | {"rounds": rounds})) for rounds in range(1, 6)]
    clusters = [run.state.server["cluster"] for run in runs]
    assert int((clusters[0] < 0).sum()) == 2
    assert clusters[-1][:3].tolist() == clusters[-1][3:].tolist()
    start = initial(mlp)
    unknown = int((clusters[0] < 0).nonzero()[0])
    assert_same(dict(runs[0].model_of(unknown).state_dict()), {n: t for n, t in start.items() if isinstance(t, torch.Tensor)})
    for earlier, later in pairwise(runs):  # a cluster whose members are absent or new stays as it was
        answered = ~torch.from_numpy(later.history.last("losses")).isnan().all(1)
        known = earlier.state.server["cluster"]
        for k in range(3):
            a, b = (run.state.server["models"]["0.weight"][k] for run in (earlier, later))
            assert torch.equal(a, b) != bool((answered & (known == k)).any())


def test_vectors_are_sent_once() -> None:
    run = train(PACFL(), rounds=1, participation=1.0)
    dispatched = run.method.dispatch(run.state.server, torch.arange(6))
    assert dispatched["placed"].all()
    assert not train(PACFL(), rounds=1, participation=0.5).state.server["cluster"].ge(0).all()


def test_the_layer_is_the_first_linear_one_with_a_bias() -> None:
    text = nn.Sequential(nn.Embedding(9, 4), nn.Conv1d(4, 4, 1), nn.Linear(4, 3), nn.Linear(3, 2))
    state = dict(text.state_dict())
    assert linear_layer(state, None) == "2"
    assert linear_layer(state, "3") == "3"
    assert linear_layer(dict(nn.Linear(3, 2).state_dict()), None) == ""
    with pytest.raises(ValueError, match=r"pacfl: layer must be a linear layer of the model \(0, 2, 3\), not '1'"):
        linear_layer(state, "1")
    with pytest.raises(ValueError, match="it has none"):
        linear_layer({"0.weight": torch.zeros(2, 2, 3, 3)}, None)
