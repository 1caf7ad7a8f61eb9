"""Robust aggregation against values computed by hand, by numpy or scipy, and by brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean
from torch import Tensor

import fedfew
from fedfew.config import TrainConfig
from fedfew.methods import FedAvg, FedFew, Method
from fedfew.methods.attacks import Attacked
from fedfew.stack import named_leaves
from fedfew.training.robust import centre, geometric_median, squared_distances
from fedfew.training.round_mean import RoundMean
from tests.helpers import federation
from tests.training.small import train

RULES = ("median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "norm-bound")


def drawn(clients: int = 7, models: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """Updates in two parts."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {"a": (clients, models, 3), "b": (clients, models, 2, 2)}
    return {name: torch.randn(shape, generator=draw, dtype=torch.float64) for name, shape in shapes.items()}


def vectors(update: dict[str, Tensor], model: int) -> np.ndarray:
    return torch.cat([t[:, model].flatten(1) for t in update.values()], 1).numpy()


def found(rule: str, update: dict[str, Tensor], log_weights: Tensor, **changes) -> list[np.ndarray]:
    """The centre of each model as one vector."""
    result = centre(TrainConfig(aggregator=rule, **changes), log_weights, update)  # type: ignore[arg-type]
    return [torch.cat([t[k].flatten() for t in result.values()]).numpy() for k in range(log_weights.shape[1])]


EQUAL = torch.zeros(7, 2)


@pytest.mark.parametrize("clients", [6, 7])
def test_the_median_of_equal_weights_is_numpy_s(clients: int):
    update = drawn(clients)
    for k, value in enumerate(found("median", update, torch.zeros(clients, 2))):
        np.testing.assert_allclose(value, np.median(vectors(update, k), 0))


def test_a_weighted_median_is_the_median_of_repeated_values():
    update, counts = drawn(4), torch.tensor([1, 3, 2, 1])
    for k, value in enumerate(found("median", update, counts.double().log()[:, None].expand(4, 2))):
        np.testing.assert_allclose(value, np.median(np.repeat(vectors(update, k), counts, 0), 0))


@pytest.mark.parametrize(("clients", "trim"), [(5, 0.2), (10, 0.3), (4, 0.0)])
def test_the_trimmed_mean_of_equal_weights_is_scipy_s(clients: int, trim: float):
    update = drawn(clients)
    for k, value in enumerate(found("trimmed-mean", update, torch.zeros(clients, 2), trim=trim)):
        np.testing.assert_allclose(value, trim_mean(vectors(update, k), trim))


def test_a_weighted_trimmed_mean_counts_a_value_at_the_edge_in_part():
    update = {"x": torch.tensor([[[1.0]], [[2.0]], [[4.0]], [[9.0]]])}
    weights = torch.tensor([0.1, 0.4, 0.3, 0.2])[:, None]
    # [0.25, 0.75] of the weight: 0.25 of the second, 0.25 of the third
    assert found("trimmed-mean", update, weights.log(), trim=0.25)[0] == pytest.approx((0.25 * 2 + 0.25 * 4) / 0.5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 8))
@example(13161, 4)
def test_the_geometric_median_meets_its_condition_of_optimality(seed: int, clients: int):
    """At the optimum the weighted unit vectors to all points sum to zero; or it is a point x_j with ‖Σ_{i≠j}‖ ≤ ω_j."""
    update = drawn(clients, seed=seed)
    weights = torch.rand(clients, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    for k, z in enumerate(found("geometric-median", update, weights.log())):
        x, omega = vectors(update, k), (weights[:, k] / weights[:, k].sum()).numpy()
        away = np.linalg.norm(x - z, axis=1)
        at = away < 1e-6
        pull = (omega[~at, None] * (x[~at] - z) / away[~at, None]).sum(0)
        rounded = 1e-7 * np.linalg.norm(x, axis=1).max() / away[~at].min()  # z is float32: the nearest unit vector turns by that
        assert np.linalg.norm(pull) <= omega[at].sum() + 1e-5 + rounded


def test_the_geometric_median_at_the_edge_of_a_point():
    """Seen from the origin two points are 120° apart: their unit vectors add up to length 1, as much as holds the origin."""
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-0.5, 0.75**0.5]], dtype=torch.float64)
    omega = torch.tensor([1 + 1e-9, 1.0, 1.0], dtype=torch.float64) / 3
    assert geometric_median(squared_distances([x]), omega).tolist() == [1.0, 0.0, 0.0]


def test_the_geometric_median_of_equal_points_is_that_point():
    update = {"x": torch.ones(3, 1, 2)}
    assert found("geometric-median", update, torch.zeros(3, 1))[0].tolist() == [1.0, 1.0]


def brute_force_krum(x: np.ndarray, attackers: int) -> list[int]:
    """Clients by score: the least sum over any n − f − 2 others of squared distances."""
    n = len(x)
    scores = []
    for i in range(n):
        others = [float(((x[i] - x[j]) ** 2).sum()) for j in range(n) if j != i]
        scores.append(min(sum(chosen) for chosen in itertools.combinations(others, n - attackers - 2)))
    return sorted(range(n), key=lambda i: scores[i])


@pytest.mark.parametrize("attackers", [0, 1, 2])
def test_krum_and_multi_krum_choose_as_brute_force_does(attackers: int):
    update = drawn()
    weights = torch.tensor([0.1, 0.2, 0.1, 0.15, 0.15, 0.2, 0.1])
    logs = weights.log()[:, None].expand(7, 2)
    single, several = (found(rule, update, logs, assumed_attackers=attackers) for rule in ("krum", "multi-krum"))
    for k in range(2):
        x = vectors(update, k)
        order = brute_force_krum(x, attackers)
        np.testing.assert_allclose(single[k], x[order[0]])
        best = order[: 7 - attackers]
        np.testing.assert_allclose(several[k], np.average(x[best], 0, weights[best]), rtol=1e-6)


def test_of_two_clients_nearest_to_each_other_krum_takes_the_first():
    """Of four clients with one assumed attacker only the distance to the nearest one counts, which both have. Rounding made the
    two differ in half of all cases, so that engines chose otherwise."""
    for seed in range(50):
        x = torch.randn(4, 37, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        away = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf)
        (value,) = found("krum", {"x": x[:, None]}, torch.zeros(4, 1), assumed_attackers=1)
        assert value.tolist() == x[int(away.amin(1).argmin())].tolist()


def test_krum_chooses_among_the_clients_of_a_model():
    """Three clients that hardly count for the model are alike, and would be chosen without regard to weights."""
    update = {"x": torch.tensor([[[0.0]], [[0.0]], [[0.0]], [[5.0]], [[6.0]], [[8.0]]])}
    logs = torch.tensor([1e-6, 1e-6, 1e-6, 1.0, 1.0, 1.0]).log()[:, None]
    assert found("krum", update, logs, assumed_attackers=0)[0].tolist() == [5.0]  # 5 and 6 are as near each other: the first
    assert found("krum", {"x": torch.full((1, 1, 1), 3.0)}, torch.zeros(1, 1))[0].tolist() == [3.0]


def test_exactly_half_an_even_share_is_enough_to_be_among_the_clients_of_a_model():
    """14 of 84 samples among three clients. Rounding of the logarithm brought it just below, and the median length was 3."""
    share = torch.tensor([14, 25, 45], dtype=torch.float64) / 84
    assert share.log()[:, None].softmax(0)[0, 0] < 0.5 / 3
    update = {"x": torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)[:, None, None]}
    (value,) = found("norm-bound", update, share.log()[:, None])
    assert value.tolist() == pytest.approx([(14 * 1 + 25 * 2 + 45 * 2) / 84])


def test_norm_bound_shortens_long_updates_to_a_multiple_of_the_median():
    update = {"x": torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]], [[0.0, 20.0]]])}  # lengths 5, 1, 20
    logs = torch.zeros(3, 1)
    assert found("norm-bound", update, logs, norm_bound=1.0)[0] == pytest.approx([1.0, 10 / 3])
    assert found("norm-bound", update, logs, norm_bound=2.0)[0] == pytest.approx([1.0, 5.0])


@pytest.mark.parametrize("rule", RULES)
def test_one_update_for_all_models_and_a_model_without_clients(rule: str):
    """IFCA's clients train one model each: [C, 1, …] counts for the cluster that they joined. Nobody joined the last."""
    update = {"x": torch.randn(6, 1, 4, generator=torch.Generator().manual_seed(1)), "n": torch.arange(6)[:, None]}
    joined = torch.tensor([0, 0, 1, 1, 1, 0])
    logs = torch.full((6, 3), -torch.inf).scatter(1, joined[:, None], 0.0)
    result = centre(TrainConfig(aggregator=rule, assumed_attackers=0), logs, update)  # type: ignore[arg-type]
    assert result["x"].shape == (3, 4)
    assert result["x"][2].tolist() == [0.0] * 4
    for k in range(2):
        own = {name: t[joined == k] for name, t in update.items()}
        alone = centre(TrainConfig(aggregator=rule, assumed_attackers=0), torch.zeros(3, 1), own)  # type: ignore[arg-type]
        for name in own:
            torch.testing.assert_close(result[name][k], alone[name][0])


def test_distances_keep_their_digits_far_from_the_origin():
    x = torch.tensor([[1e6, 0.0], [1e6 + 0.25, 0.5], [1e6, 3.0]], dtype=torch.float64)
    expected = torch.tensor([[0.0, 0.3125, 9.0], [0.3125, 0.0, 6.3125], [9.0, 6.3125, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(squared_distances([x[:, :1], x[:, 1:]]), expected)


@pytest.mark.parametrize("rule", RULES)
def test_chunks_and_processes_do_not_change_a_centre_and_weights_sum_as_before(rule: str):
    config = TrainConfig(aggregator=rule)  # type: ignore[arg-type]
    update, logs = drawn(), torch.randn(7, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    whole, mean = RoundMean(2, None, config), RoundMean(2)
    for one in (whole, mean):
        one.add(torch.arange(7), logs, None, dict(update))
    first, second = RoundMean(2, None, config), RoundMean(2, None, config)
    for part, rows in ((second, torch.tensor([3])), (first, torch.tensor([5, 0])), (second, torch.tensor([6, 1, 2, 4]))):
        part.add(rows, logs[rows], None, {name: t[rows] for name, t in update.items()})
    joined = RoundMean(2, None, config)
    for part in (first, second):
        joined.merge(part.parts())
    for name in update:
        torch.testing.assert_close(joined.combine().mean()[name], whole.combine().mean()[name])
        assert not torch.allclose(whole.combine().mean()[name], mean.combine().mean()[name])
    torch.testing.assert_close(whole.combine().log_total, mean.combine().log_total)
    torch.testing.assert_close(whole.combine().shares, mean.combine().shares)


def test_a_weight_by_losses_does_not_count_among_clients():
    """A client that has nearly all weight of both models, and three others: the centre is that of sample counts."""
    update = drawn(4)
    share = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
    alpha = torch.tensor([1e6, 1.0, 1.0, 1.0], dtype=torch.float64)
    w = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], dtype=torch.float64)
    config = TrainConfig(aggregator="geometric-median")
    mean = RoundMean(2, None, config, share)
    mean.add(torch.arange(4), (alpha[:, None] * w).log(), alpha.log(), dict(update))
    expected = centre(config, (share[:, None] * w).log(), update)
    for name in update:
        torch.testing.assert_close(mean.combine().mean()[name], expected[name])


DATA = federation((9, 12, 7, 11, 10, 8, 14, 9))


def state(run: fedfew.Run) -> Tensor:
    return torch.cat([t.double().flatten() for _, t in named_leaves(run.state.server)])


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_changes_the_outcome_the_same_way_on_every_engine_and_after_a_resume(rule: str, tmp_path):
    options = {"data": DATA, "aggregator": rule}
    run = train(FedFew(models=2), **options)
    assert not torch.allclose(state(run), state(train(FedFew(models=2), data=DATA)))
    torch.testing.assert_close(state(train(FedFew(models=2), engine="sequential", chunk=3, **options)), state(run))
    train(FedFew(models=2), rounds=2, folder=tmp_path, **options)
    torch.testing.assert_close(state(train(FedFew(models=2), folder=tmp_path, resume=True, **options)), state(run))


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("trimmed-mean", {"trim": 0.4}),
        ("multi-krum", {"assumed_attackers": 2}),
        ("norm-bound", {"norm_bound": 0.5}),
    ],
)
def test_the_settings_of_a_rule_change_the_outcome(rule: str, change: dict):
    runs = [train(FedAvg(), data=DATA, aggregator=rule, **settings) for settings in ({}, change)]
    assert not torch.allclose(*(state(run) for run in runs))


@pytest.fixture(scope="module")
def digits() -> fedfew.Federation:
    return fedfew.data.load("digits", clients=10, partition="iid", seed=0, sample=600)


def accuracy_of_eight(data: fedfew.Federation, method: Method, **changes) -> float:
    options = {"rounds": 20, "lr": 0.3, "batch_size": 10, "engine": "stacked", "score_every": 20} | changes
    run = fedfew.train(data, "linear", method, **options)
    return float(np.delete(run.history.served_accuracy[-1], [3, 8]).mean())


def test_false_updates_move_a_robust_centre_little(digits):
    """Two of ten clients send −5 times their updates: FedAvg learns nothing."""
    attacked = Attacked(FedAvg(), "sign-flip", (3, 8))
    assert accuracy_of_eight(digits, FedAvg()) > 0.85
    assert accuracy_of_eight(digits, attacked) < 0.2
    for rule in RULES:
        assert accuracy_of_eight(digits, attacked, aggregator=rule, assumed_attackers=2, trim=0.25) > 0.75, rule


def test_what_has_no_effect_or_cannot_work_is_named():
    lines: list[str] = []
    train("local", data=DATA, rounds=1, aggregator="median", trim=0.1, on_round=lambda p: lines.extend(p.events))
    assert "aggregator is median, but local averages no updates: it has no effect" in lines
    assert "trim is 0.1, but the aggregator is median: it has no effect" in lines
    with pytest.raises(ValueError, match="is 3, for which krum needs at least 9 clients per round, but there are 8"):
        train(FedAvg(), data=DATA, aggregator="krum", assumed_attackers=3)
    with pytest.raises(ValueError, match=r"trim must be in \[0, 0.5\), not 0.5"):
        TrainConfig(trim=0.5)


@pytest.mark.parametrize("rule", RULES)
def test_a_parameter_without_axes_is_a_number_like_any_other(rule: str):
    update = drawn()
    apart = update | {"b": update["b"].flatten(2)[..., :3], "scalar": update["b"][:, :, 1, 1]}
    for together, found_apart in zip(found(rule, update, EQUAL), found(rule, apart, EQUAL), strict=True):
        np.testing.assert_allclose(found_apart, together)
