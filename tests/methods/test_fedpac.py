"""FedPAC: head combination and centroids. A float64 reference is in personal_references.py."""

from __future__ import annotations

import torch

import fedfew
from fedfew.methods import FedPAC
from fedfew.methods.fedpac import combination
from fedfew.stack import branch
from tests.methods.small import CLASSES, assert_same, federation, initial, served, train


def test_a_client_alone_keeps_its_head() -> None:
    alpha = combination(torch.rand(1, CLASSES, 4), torch.rand(1))
    assert alpha.tolist() == [[1.0]]


def test_clients_with_the_same_moments_share_heads_by_the_inverse_of_their_variance() -> None:
    """Nothing is lost by mixing, so Σ α²·V is least: α_j ∝ 1/V_j."""
    moments = torch.rand(1, CLASSES, 4).expand(3, CLASSES, 4)
    alpha = combination(moments, torch.tensor([1.0, 2.0, 4.0]))
    torch.testing.assert_close(alpha, (torch.tensor([4.0, 2.0, 1.0]) / 7).double().expand(3, 3))


def test_clients_far_apart_keep_their_heads() -> None:
    moments = 1e4 * torch.eye(3).repeat_interleave(4, 1).reshape(3, CLASSES, 4)
    torch.testing.assert_close(combination(moments, torch.full((3,), 1e-3)), torch.eye(3).double(), rtol=0, atol=1e-9)


def test_centroids_are_class_means_over_all_samples_and_unknown_classes_have_none() -> None:
    whole = federation()
    parts = [(x[y < 2], y[y < 2]) for x, y in (whole.train.of(i) for i in range(len(whole)))]  # nobody has class 2
    data = fedfew.Federation.from_arrays(parts, parts, classes=CLASSES)
    still = train(FedPAC(), data, rounds=1, participation=1.0, lr=1e-30)
    centroids, start = branch(still.state.server, "centroids"), initial()
    x, y = (torch.cat(column) for column in zip(*parts, strict=True))
    features = torch.tanh(x @ start["0.weight"].T + start["0.bias"])
    for c in range(2):
        torch.testing.assert_close(centroids["mean"][0, c], features[y == c].mean(0), rtol=1e-4, atol=1e-6)
    assert centroids["known"].tolist() == [[1.0, 1.0, 0.0]]
    assert centroids["mean"][0, 2].abs().max() == 0


def test_heads_go_to_the_clients_that_they_were_combined_for() -> None:
    """Clients of two kinds, in two orders: what a client is served follows the client."""
    run, turned = train(FedPAC(), participation=1.0), train(FedPAC(), federation().take([5, 4, 3, 2, 1, 0]), participation=1.0)
    for one, other in zip(served(run), reversed(served(turned)), strict=True):
        assert_same(one, other, 2e-5)
    assert len({float(state["2.bias"][0]) for state in served(run)}) == len(federation())


def test_without_alignment_a_client_alone_is_fedrep() -> None:
    one = federation().take([4])
    pac = served(train(FedPAC(lam=0.0), one, participation=1.0))
    rep = served(train(fedfew.methods.FedRep(head_epochs=1), one, participation=1.0))
    assert_same(pac[0], rep[0], 1e-6)
