"""Weights of masked aggregation: the masked sum is the weighted mean of plain aggregation, with or without drop-outs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

from fedfew import methods
from fedfew.flower.secure.fixed_point import FixedPoint
from fedfew.flower.secure.weighting import Weights, check_method, numbers_in, scaled
from fedfew.methods import IFCA, FedAMP, FedAvg, FedFew, FedProx, LocalOnly, Method, Reply
from fedfew.methods.local_norm import LocalNorm
from fedfew.stack import Tree, leaves, named_leaves, take, tree_map
from fedfew.weighted_mean import WeightedMean
from tests.flower.secure.rounds import Round

CLIENTS, MODELS = 6, 3
FIXED_POINT = FixedPoint(64.0, CLIENTS)


def replies(models_sent: int, seed: int = 0) -> Reply:
    draw = torch.Generator().manual_seed(seed)
    update: Tree = {
        "w": torch.randn(CLIENTS, models_sent, 4, 2, generator=draw),
        "batches": torch.randint(1, 50, (CLIENTS, models_sent), generator=draw),
    }
    losses = 0.5 + torch.rand(CLIENTS, MODELS, generator=draw)
    return Reply(update, losses, torch.tensor([10, 20, 30, 40, 50, 60]))


def masked(method: Method, reply: Reply, absent: dict[int, str]) -> tuple[WeightedMean, list[int]]:
    """The mean as it comes out of a whole round under masks."""
    share = reply.samples / reply.samples.sum()
    joined = [client for client in range(CLIENTS) if absent.get(client) != "share_keys"]
    models = reply.losses.shape[1]
    weights = Weights.of(method, joined, reply.losses[joined], reply.samples[joined], share[joined], take(reply.update, 0))
    like = take(reply.update, 0)
    columns = weights.log.shape[1]
    row = dict(zip(joined, weights.normalised.tolist(), strict=True))
    values = {c: FIXED_POINT.encode(scaled(take(reply.update, c), row.get(c, [0.0] * columns), models)) for c in range(CLIENTS)}
    assert len(values[0]) == numbers_in(like, models)
    round = Round(values, absent)
    total = FIXED_POINT.decode(round.run())
    return weights.mean(total, round.server.survivors, like, FIXED_POINT)


def plain(method: Method, reply: Reply, who: list[int]) -> WeightedMean:
    at = torch.tensor(who)
    share = reply.samples / reply.samples.sum()
    mean = WeightedMean(reply.losses.shape[1])
    some = Reply(take(reply.update, at), reply.losses[at], reply.samples[at])
    mean.add(method.log_weights(some, share[at], at), tree_map(lambda t: t.double(), some.update))
    return mean


@pytest.mark.parametrize("absent", [{}, {1: "share_keys"}, {4: "mask"}, {0: "reveal"}, {1: "mask"}])
@pytest.mark.parametrize("method", [FedFew(mu=0.1), IFCA(), FedAvg(), FedProx()], ids=lambda m: m.name)
def test_the_mean_is_that_of_plain_aggregation_over_those_who_remain(method: Method, absent: dict[int, str]) -> None:
    models = getattr(method, "models", 1)
    reply = replies(1 if method.name == "ifca" else models)
    reply.losses = reply.losses[:, :models]
    mean, lost = masked(method, reply, absent)
    who = [client for client in range(CLIENTS) if absent.get(client) not in ("share_keys", "mask")]
    expected = plain(method, reply, who)
    assert lost == []
    torch.testing.assert_close(mean.log_total, expected.log_total)
    for (path, a), (_, b) in zip(named_leaves(mean.mean()), named_leaves(expected.mean()), strict=True):
        assert a.dtype == (torch.float32 if path == "w" else torch.float64)
        torch.testing.assert_close(a.double(), b, rtol=1e-6, atol=1e-6)


def test_the_error_is_within_the_rings_bound_divided_by_the_weight_that_is_left() -> None:
    method, reply = FedFew(mu=0.1), replies(MODELS)
    reply.update = tree_map(lambda t: t.double(), reply.update)
    mean, _ = masked(method, reply, {4: "mask"})
    expected = plain(method, reply, [0, 1, 2, 3, 5])
    share = reply.samples / reply.samples.sum()
    left = (
        Weights.of(method, list(range(CLIENTS)), reply.losses, reply.samples, share, take(reply.update, 0))
        .normalised[[0, 1, 2, 3, 5]]
        .sum(0)
    )
    for a, b in zip(leaves(mean.mean()), leaves(expected.mean()), strict=True):
        off = (a - b).reshape(MODELS, -1).abs().amax(1)
        assert (off > 0).any()
        assert (off <= FIXED_POINT.error / left + 1e-13).all()


def test_a_model_that_nobody_gives_weight_to_stays() -> None:
    reply = replies(1)
    reply.losses[:, 2] = 9.0  # nobody joins the third cluster
    mean, lost = masked(IFCA(), reply, {})
    assert lost == []
    assert mean.log_total[2] == -torch.inf
    assert not any(t[2].any() for t in leaves(mean.mean()))


@pytest.mark.parametrize("little", [-40.0, -4000.0])
def test_a_model_whose_weight_has_dropped_out_stays_and_is_named(little: float) -> None:
    """Client 0 has all but e⁻⁴⁰ of the third model's weight, and drops out: what is left is finer than the rounding, or zero."""
    weights = Weights(list(range(3)), torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, little], [0.0, 0.0, little]]).double(), 3)
    like: Tree = {"w": torch.ones(MODELS, 2)}
    total = sum(scaled(like, row, MODELS) for row in weights.normalised.tolist()[1:])
    mean, lost = weights.mean(np.asarray(total), {1, 2}, like, FixedPoint(64.0, 3))
    assert lost == [2]
    torch.testing.assert_close(mean.mean()["w"], torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]))
    assert mean.log_total.tolist() == pytest.approx([np.log(2), np.log(2), -np.inf])


def test_normalised_weights_sum_to_one_over_clients() -> None:
    weights = Weights([0, 1], torch.tensor([[1e3, -torch.inf, -1e3], [1e3, -torch.inf, -2e3]]).double(), 3)
    torch.testing.assert_close(weights.normalised, torch.tensor([[0.5, 0.0, 1.0], [0.5, 0.0, 0.0]]).double())


@pytest.mark.parametrize("method", [FedAMP(), LocalNorm(FedAMP(), ())], ids=["fedamp", "wrapped"])
def test_methods_that_keep_single_updates_are_refused(method: Method) -> None:
    with pytest.raises(ValueError, match="aggregation = 'masked' cannot be used with fedamp: its server uses every client"):
        check_method(method)


@pytest.mark.parametrize("method", [LocalOnly(), LocalNorm(LocalOnly(), ())], ids=["local", "wrapped"])
def test_a_method_without_updates_is_refused(method: Method) -> None:
    with pytest.raises(ValueError, match=r"cannot be used with local: its server uses no updates, .* Use aggregation = 'plain'"):
        check_method(method)


@pytest.mark.parametrize("name", [name for name, cls in methods.METHODS.items() if not cls().absorbs and cls().aggregates])
def test_all_others_are_not(name: str) -> None:
    check_method(methods.make(name))


def test_the_server_cannot_solve_for_the_body_that_models_have_in_common() -> None:
    """Four models with one body, three clients. If the body were uploaded once per model, the server would have four sums of the
    three bodies by weights that it knows, and could solve for each. It is uploaded once, so there is one sum."""
    method = FedFew(models=4, mu=0.1, share="body")
    draw = torch.Generator().manual_seed(0)
    update: Tree = {"body": torch.randn(3, 1, 5, generator=draw), "heads": torch.randn(3, 4, 2, generator=draw)}
    losses, samples = 0.5 + torch.rand(3, 4, generator=draw), torch.tensor([10, 20, 30])
    like = take(update, 0)
    weights = Weights.of(method, [0, 1, 2], losses, samples, samples / samples.sum(), like)
    omega, bodies = weights.normalised, update["body"][:, 0].double()
    assert omega.shape == (3, 5)  # four models, and the body
    total = sum(scaled(take(update, client), omega[client].tolist(), 4) for client in range(3))
    assert len(total) == numbers_in(like, 4) == 5 + 4 * 2

    def solved(columns: list[int]) -> torch.Tensor:
        sums = omega[:, columns].T @ bodies
        return torch.linalg.lstsq(omega[:, columns].T, sums).solution

    torch.testing.assert_close(solved([0, 1, 2, 3]), bodies)  # what K uploads would give away
    np.testing.assert_allclose(total[:5], (omega[:, 4] @ bodies).numpy())  # all that the server learns of the bodies
    assert (solved([4]) - bodies).norm() > 0.5 * bodies.norm()
