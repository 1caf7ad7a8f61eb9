"""Losses, scores and mixtures of every task, by hand; and which task targets show."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, r2_score
from torch import Tensor, tensor
from torch.func import vmap

from fedfew import targets, tasks
from fedfew.federation import Federation
from fedfew.tasks import TASKS, Criterion, chosen, criterion


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("mse", [(1 + 4) / 2, 9 / 2]), ("mae", [(1 + 2) / 2, 3 / 2]), ("huber", [(0.5 + 1.5) / 2, 2.5 / 2])],
)
def test_losses_of_numbers_are_means_over_targets(loss: str, expected: list[float]) -> None:
    outputs, y = tensor([[1.0, 2.0], [0.0, 5.0]]), tensor([[0.0, 0.0], [0.0, 2.0]])
    assert criterion(loss).losses(outputs, y).tolist() == expected
    assert criterion(loss).total(outputs, y).item() == sum(expected)


def test_bce_is_the_mean_over_labels() -> None:
    losses = criterion("bce").losses(tensor([[0.0, math.log(3)]]), tensor([[1.0, 0.0]]))
    assert losses.item() == pytest.approx((math.log(2) + math.log(4)) / 2)  # σ(0) = 1/2, 1 − σ(log 3) = 1/4


def test_a_loss_of_ones_own_may_give_one_value_per_sample_or_per_target() -> None:
    outputs, y = tensor([[1.0, 2.0], [0.0, 4.0]]), torch.zeros(2, 2)
    per_target = chosen(lambda o, t: (o - t).abs(), "regression")
    per_sample = chosen(lambda o, t: (o - t).abs().sum(1), "regression")
    assert per_target.losses(outputs, y).tolist() == [1.5, 2.0]
    assert per_sample.losses(outputs, y).tolist() == [3.0, 4.0]
    for wrong in (lambda o, t: (o - t).mean(), lambda o, t: torch.zeros(5)):
        with pytest.raises(ValueError, match=r"must return one value per sample, here of shape \[2\].*reduction='none'"):
            chosen(wrong, "regression").losses(outputs, y)


@pytest.mark.parametrize("loss", ["mse", "mae", "huber", "bce"])
def test_losses_of_numbers_under_vmap_within_vmap_are_those_of_each(loss: str) -> None:
    outputs, y = torch.randn(3, 2, 5, 4), torch.rand(3, 5, 4)
    of = criterion(loss).losses
    nested = vmap(lambda o, y: vmap(lambda head: of(head, y))(o))(outputs, y)
    assert torch.allclose(nested, torch.stack([torch.stack([of(head, y[c]) for head in outputs[c]]) for c in range(3)]))


def means(of: Criterion, outputs: Tensor, y: Tensor) -> Tensor:
    return torch.stack([term.double().mean(-1) for term in of.terms(outputs, y)])


def test_r2_by_hand_and_as_scikit_learn_has_it() -> None:
    y, outputs = tensor([[0.0], [2.0]]), tensor([[1.0], [2.0]])
    loss, score = criterion("mse").scores(means(criterion("mse"), outputs, y))
    assert (loss.item(), score.item()) == (0.5, 0.5)  # errors 1 and 0; the variance of 0 and 2 is 1
    draw = torch.Generator().manual_seed(0)
    y, outputs = torch.randn(20, 3, generator=draw) + 1000, torch.randn(20, 3, generator=draw) + 1000
    _, score = criterion("mae").scores(means(criterion("mae"), outputs, y))
    assert score.item() == pytest.approx(r2_score(y.double(), outputs.double()), rel=1e-6)


def test_r2_of_equal_targets_is_not_a_number() -> None:
    assert criterion("mse").scores(means(criterion("mse"), torch.zeros(3, 1), torch.full((3, 1), 0.1)))[1].isnan()


def test_micro_f1_by_hand_and_as_scikit_learn_has_it() -> None:
    y, outputs = tensor([[1.0, 0.0], [1.0, 1.0]]), tensor([[1.0, 1.0], [-1.0, 1.0]])
    assert criterion("bce").scores(means(criterion("bce"), outputs, y))[1].item() == pytest.approx(2 * 2 / (3 + 3))
    draw = torch.Generator().manual_seed(0)
    y, outputs = (torch.rand(20, 4, generator=draw) > 0.5).float(), torch.randn(20, 4, generator=draw)
    score = criterion("bce").scores(means(criterion("bce"), outputs, y))[1].item()
    assert score == pytest.approx(f1_score(y, outputs > 0, average="micro"))
    none = torch.zeros(2, 3)
    assert criterion("bce").scores(means(criterion("bce"), none - 1, none))[1].item() == 1.0


def test_mixtures_by_hand() -> None:
    log_weights = tensor([0.25, 0.75]).log().reshape(2, 1, 1)
    assert TASKS["regression"].mixed(tensor([[[2.0]], [[6.0]]]), log_weights).item() == pytest.approx(5.0)
    odds = tensor([[[0.0]], [[math.log(3.0)]]])  # probabilities 1/2 and 3/4; their mean is 11/16
    assert TASKS["multi-label"].mixed(odds, log_weights).item() == pytest.approx(math.log(11 / 5))
    assert TASKS["classification"].mixed(torch.zeros(2, 1, 4), log_weights).tolist() == [pytest.approx([-math.log(4)] * 4)]


def test_which_loss_goes_with_which_task() -> None:
    assert [chosen("auto", task).name for task in TASKS] == ["cross-entropy", "mse", "bce", "next-token"]
    assert chosen("mae", "regression").task is TASKS["regression"]
    with pytest.raises(
        ValueError, match="loss is 'mse', which is for regression, but the task of these targets is classification"
    ):
        chosen("mse", "classification")
    with pytest.raises(ValueError, match="loss is 'mine:loss', which is not known by name: give the function itself"):
        chosen("mine:loss", "regression")
    assert [tasks.task_of_loss(loss) for loss in ("mse", "auto", print)] == ["regression", None, None]


@pytest.mark.parametrize(
    ("y", "task"),
    [
        ([0, 1, 2], "classification"),
        ([0.0, 1.0, 2.0], "classification"),
        (["a", "b", "a"], "classification"),
        ([0.5, 1.0, np.nan], "regression"),
        (np.eye(3), "classification"),
        ([[1, 1], [0, 1], [0, 0]], "multi-label"),
        ([[0.5, 1], [2, 3], [4, 5]], "regression"),
    ],
)
def test_the_task_that_targets_show(y: object, task: str) -> None:
    assert targets.detected([np.asarray(y)]) == task


def test_rows_of_whole_numbers_show_no_task() -> None:
    with pytest.raises(ValueError, match="2 whole numbers per sample, which may be amounts or classes: give task='regression'"):
        targets.detected([np.array([[1, 2], [3, 4]])])


def pair(y: object) -> list[tuple[np.ndarray, object]]:
    return [(np.zeros((len(y), 2), np.float32), y)]  # type: ignore[arg-type]  # it has a length


def test_a_federation_of_numbers() -> None:
    here = Federation.from_arrays(pair([0.5, 1.5, 2.0]), pair([1.0]))
    assert (here.task, here.classes, here.train.y.dtype, here.train.y.tolist()) == (
        "regression",
        1,
        torch.float32,
        [[0.5], [1.5], [2.0]],
    )
    assert "1 target (regression)" in repr(here)
    whole = Federation.from_arrays(pair([3, 1, 2]), pair([1]), task="regression")
    assert (whole.task, whole.train.y.tolist()) == ("regression", [[3.0], [1.0], [2.0]])
    assert whole.fingerprint() != Federation.from_arrays(pair([3, 1, 2]), pair([1])).fingerprint()


def test_a_federation_of_several_labels_keeps_rows_that_are_one_hot_by_chance() -> None:
    here = Federation.from_arrays(pair([[1, 1], [0, 1]]), pair([[1, 0]]))
    assert (here.task, here.classes, here.test.y.tolist()) == ("multi-label", 2, [[1.0, 0.0]])
    assert "2 labels (multi-label)" in repr(here)


@pytest.mark.parametrize(
    ("train", "test", "more", "message"),
    [
        ([0.5, math.inf], [0.5], {}, "client 0: train target of sample 1 is NaN or infinite"),
        ([0.5, 1.5], [1.5], {"task": "classification"}, "client 0: train labels must be whole numbers; for numbers of any kind"),
        ([0.0, math.nan], [1.0], {}, r"client 0: train label of sample 1 is missing \(NaN\): leave the sample out"),
        ([0, 10**9], [1], {}, "labels run up to 1000000000, which would be 1,000,000,001 classes: number them from 0, or for"),
        ([[0, 2]], [[1, 0]], {"task": "multi-label"}, "client 0: train targets must be 0 or 1"),
        ([[0.5, 2]], [[1.0, 0, 3]], {"task": "regression"}, "client 0: test samples have 3 targets each, but 2 are needed"),
        (np.zeros((2, 1, 1)), [0.5], {"task": "regression"}, r"targets of shape \[2, 1, 1\]; \[2\] or \[2, d\] is needed"),
        ([0, 1], [1], {"task": "ranking"}, "regression, multi-label or language-modelling, not 'ranking'"),
    ],
)
def test_targets_that_do_not_fit_are_refused(train: object, test: object, more: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Federation.from_arrays(pair(train), pair(test), **more)  # type: ignore[arg-type]  # one of them is wrong on purpose


def test_the_loss_of_a_language_model_is_of_the_next_token_and_leaves_padding_out() -> None:
    """Two tokens, p = (1/4, 3/4) at every place. Of [0, 1, 0] the next are 1 and 0; of [1, 1, −100] the next is 1."""
    outputs, tokens = tensor([0.0, math.log(3)]).expand(2, 3, 2), tensor([[0, 1, 0], [1, 1, tasks.IGNORED]])
    of = criterion("next-token")
    first, second = (math.log(4 / 3) + math.log(4)) / 2, math.log(4 / 3)
    assert of.losses(outputs, tokens).tolist() == pytest.approx([first, second])
    assert of.losses(outputs[None].expand(4, -1, -1, -1), tokens.expand(4, -1, -1)).shape == (4, 2)
    loss, score = of.scores(means(of, outputs, tokens))
    assert loss.item() == pytest.approx((first + second) / 2)
    assert 1 / score.item() == pytest.approx((4 / 3 * 4 * 4 / 3) ** (1 / 3))  # perplexity: over three tokens, not two sequences
    assert of.losses(outputs[:1], torch.full((1, 3), tasks.IGNORED)).tolist() == [0.0]


def test_what_a_place_gives_is_compared_with_the_token_after_it() -> None:
    """A model that knows the next token has a perplexity of one; one that repeats the token has not."""
    tokens = tensor([[2, 0, 1, 1]])
    sure = 50 * torch.nn.functional.one_hot(tokens, 3).float()
    knows, repeats = (criterion("next-token").losses(o, tokens).item() for o in (sure.roll(-1, 1), sure))
    assert knows == pytest.approx(0, abs=1e-6)
    assert repeats > 30


def test_language_models_are_mixed_token_by_token() -> None:
    log_weights = tensor([0.25, 0.75]).log()
    outputs = tensor([[[0.0, 0.0], [0.0, 0.0]], [[0.0, math.log(3)], [math.log(3), 0.0]]])[
        :, None
    ]  # 2 models, 1 sequence, 2 tokens
    for shape in ((2, 1), (2, 1, 1), (2, 1, 1, 1)):
        mixed = TASKS["language-modelling"].mixed(outputs, log_weights.reshape(shape)).exp()
        assert mixed[0].tolist() == [pytest.approx([5 / 16, 11 / 16]), pytest.approx([11 / 16, 5 / 16])]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([[0.5, 1.0]], r"targets of shape \[1, 2\] of float32; token ids \[1, tokens\] are needed"),
        ([1], r"targets of shape \[1\] of int64"),
        ([[1, -1]], "targets must be token ids, from 0, or -100"),
        ([[1, -100]], "has no token to predict"),
        ([[1, 1, 1]], r"targets are \[1, 3\] with token ids up to 1, but must have the shape of the samples, \[1, 2\]"),
        ([[1, 5]], "token ids up to 5.*be below 3"),
    ],
)
def test_targets_that_are_no_tokens_are_refused(y: list[object], message: str) -> None:
    given = [(np.array([[0, 1]]), np.array(y, dtype=np.float32 if "float32" in message else None))]
    with pytest.raises(ValueError, match=message):
        Federation.from_arrays(given, given, classes=3, task="language-modelling")


def test_files_hold_no_targets_of_a_language_model() -> None:
    with pytest.raises(ValueError, match=r"fedfew\.data\.load\(…, tokenizer=…\)\), a \.fed file .*Federation\.from_arrays"):
        targets.check_task_of_files("language-modelling")
