"""Training from buffers and captured steps, without a GPU: a captured step is then the step itself, run again."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from fedfew.engines import LocalTraining, Stacked
from fedfew.engines.stacked import captured as module_under_test
from fedfew.engines.stacked.captured import CapturedTraining
from fedfew.federation import Federation
from fedfew.local import LocalEpochs, cross_entropy
from fedfew.stack import named_leaves, squared_distance, tree_map
from tests.engines.small import SIZES, Normalised, images


class Small(nn.Module):
    """In double precision, so that only mistakes are seen, no rounding."""

    def __init__(self):
        super().__init__()
        self.conv, self.drop, self.out = nn.Conv2d(2, 3, 3), nn.Dropout(0.3), nn.Linear(48, 3)
        self.double()

    def forward(self, x):
        return self.out(self.drop(self.conv(x.double()).relu().flatten(1)))


def proximal(loss, params, context):
    value = loss(params)
    return value + 0.3 * squared_distance(params, context), value.detach()


def clip(params):
    for _, t in named_leaves(params):
        t.clamp_(-0.2, 0.2)


class CapturedStack(Stacked):
    """The stacked engine as it is on a GPU."""

    def __init__(self, *args):
        super().__init__(*args)
        self.captures = 0

        def capture(work):
            self.captures += 1
            return work

        self._captured = CapturedTraining(self, capture)

    def _capturing(self, samples):
        return self._captured


def both(data, factory=Small, objective=cross_entropy, rounds=3, epochs=1, project=None, clients=None, **training):
    """Some rounds on both engines, each from where the last one ended."""
    torch.manual_seed(0)
    module = factory()
    settings = LocalTraining(**({"lr": 0.1, "batch_size": 5} | training))
    engines = [cls(module, settings, 3) for cls in (Stacked, CapturedStack)]
    for engine in engines:
        params = tree_map(lambda t: t.expand(len(data), 2, *t.shape), dict(module.state_dict()))
        for number in range(rounds):
            at = torch.arange(len(data)) if clients is None else torch.tensor(clients[number])
            context = {} if objective is cross_entropy else tree_map(lambda t, at=at: t[at] + 0.1, params)
            some = tree_map(lambda t, at=at: t[at], params)
            trained, loss = engine.train(
                LocalEpochs(some, data.train.take(at), data.ids[at], number, objective, context, epochs, 0, project)
            )
            params = tree_map(lambda t, new, at=at: t.index_copy(0, at, new), params, trained)
        yield engine, params, loss


def assert_same(first, second):
    for (path, a), (_, b) in zip(named_leaves(first[1]), named_leaves(second[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, msg=lambda text, path=path: f"{path}: {text}")
    torch.testing.assert_close(first[2], second[2], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"epochs": 2},
        {"momentum": 0.9, "epochs": 2},
        {"weight_decay": 0.1},
        {"augment": "crop-flip"},
        {"objective": proximal},
        {"project": clip},
        {"batch_size": 64},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_the_same_as_step_by_step(settings):
    plain, captured = both(images(), **settings)
    assert_same(plain, captured)
    assert captured[0].captures > 0


def test_batch_norm_buffers_move_as_they_should():
    plain, captured = both(images(), Normalised)
    assert_same(plain, captured)


def test_a_step_is_captured_once_for_each_number_of_clients():
    *_, (engine, _, _) = both(images(), rounds=4)
    steps = -(-max(SIZES) // 5)
    assert engine.captures == len({sum(size > step * 5 for size in SIZES) for step in range(steps)})


def test_other_clients_every_round_and_buffers_that_grow():
    clients = [[2], [0, 2], [3, 1, 0], [2], [1, 2, 3, 0], [0, 2]]
    plain, captured = both(images(), rounds=len(clients), clients=clients)
    assert_same(plain, captured)


def test_graphs_are_bounded(monkeypatch):
    monkeypatch.setattr(module_under_test, "KEPT", 1)
    plain, captured = both(images(), rounds=4)
    assert_same(plain, captured)
    (space,) = captured[0]._captured._spaces.values()
    assert len(space.graphs) == 1


def test_filters_lie_channels_last_in_the_buffers():
    *_, (engine, _, _) = both(images(), rounds=1)
    (space,) = engine._captured._spaces.values()
    assert space.weights["conv.weight"].permute(0, 1, 3, 4, 2).is_contiguous()
    assert space.weights["out.weight"].is_contiguous()


@pytest.mark.parametrize("training", [{"loss": "mse", "mixup": 0.3}, {"loss": "huber", "optimizer": "adam"}])
def test_numbers_as_targets(training):
    pictures = images()
    targets = [(x, torch.stack([y, y + 1, -y], 1) / 3) for x, y in map(pictures.train.of, range(len(pictures)))]
    data = Federation.from_arrays(targets, targets, task="regression")
    plain, captured = both(data, **training)
    assert_same(plain, captured)
    assert captured[0].captures > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_graphs_are_captured_after_all_others_are_gone():
    """As when clients come that the buffers are too small for: with the last of its graphs a pool is lost."""
    number, capture = torch.zeros(1, device="cuda"), module_under_test.CudaGraphs()
    for _ in range(3):
        replay = capture(lambda: number.add_(torch.ones(1000, device="cuda").sum()))
        replay()
        del replay
    assert number.item() == 3000


def test_kernels_are_compiled_in_buffers_of_their_own_once(monkeypatch):
    """The step in which they are changes nothing that training sees."""
    compiled, works, plain_work = [], [], CapturedTraining._work

    @contextmanager
    def compiled_only():
        compiled.append(len(works))
        yield

    def work(self, space, active, *rest):
        works.append((active, space.clients, len(self._spaces), space in self._spaces.values()))
        return plain_work(self, space, active, *rest)

    monkeypatch.setattr(module_under_test, "compiled_only", compiled_only)
    monkeypatch.setattr(CapturedTraining, "_work", work)
    plain, captured = both(images(), momentum=0.9, objective=proximal)
    assert_same(plain, captured)
    assert compiled == [0], "before the first step, and once"
    assert works[0] == (1, 1, 1, False)
    assert all(known for *_, known in works[1:])
