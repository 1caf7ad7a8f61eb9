"""Operations that run beside those after them: what waits for them, and what stays in memory until they are done."""

import gc
import weakref

import pytest
import torch

from fedfew.engines.stacked import beside
from fedfew.engines.stacked.beside import Beside
from fedfew.engines.stacked.graph import Graph, as_function

aten = torch.ops.aten


class Listed(Beside):
    """Lists what happens in place of starting it on a stream."""

    def __init__(self) -> None:
        self.happened: list[str] = []

    def running(self, operation):
        def started(*given):
            self.happened.append("started")
            return operation(*given)

        return started

    def join(self) -> None:
        self.happened.append("joined")


@pytest.fixture
def taken(monkeypatch):
    monkeypatch.setattr(beside, "BESIDE", {aten.neg.default})


def graph_of(last):
    """x + 1, whose negative runs beside: a view of it, something else, what last adds to the graph; then its use."""
    graph = Graph()
    x = graph.placeholder("x")
    more = graph.call_function(aten.add.Tensor, (x, 1))
    negative = graph.call_function(aten.neg.default, (more,))
    view = graph.call_function(aten.view.default, (negative, [-1]))
    other = graph.call_function(aten.exp.default, (x,))
    last(graph, x, more)
    total = graph.call_function(aten.add.Tensor, (view, other))
    graph.output(graph.call_function(aten.sum.default, (total,)))
    return graph, negative


def run(graph, x):
    """What happens, and whether x + 1 is in memory after each operation."""
    streams, alive = Listed(), []
    more = []

    def called(target):
        def call(*given):
            result = target(*given)
            more.append(weakref.ref(result))
            gc.collect()
            streams.happened.append(target._schema.name.removeprefix("aten::"))
            alive.append(more[0]() is not None)
            return result

        return call

    result = as_function(graph, {}, called, streams)(x)
    return result, streams.happened, alive


@pytest.mark.usefixtures("taken")
def test_only_who_uses_the_result_waits_and_what_is_read_stays_until_then():
    x = torch.tensor([0.5, 2.0])
    graph, _ = graph_of(lambda *_: None)
    result, happened, alive = run(graph, x)
    assert result == (-(x + 1) + x.exp()).sum()
    assert happened == ["add", "started", "neg", "view", "exp", "joined", "add", "sum"]
    assert alive == [True, True, True, True, False, False]  # x + 1 has no other reader than its negative


@pytest.mark.usefixtures("taken")
def test_a_second_one_waits_for_the_first():
    graph = Graph()
    x = graph.placeholder("x")
    first, second = (graph.call_function(aten.neg.default, (x,)) for _ in range(2))
    graph.output(graph.call_function(aten.add.Tensor, (first, second)))
    _, happened, _ = run(graph, torch.ones(2))
    assert happened == ["started", "neg", "joined", "started", "neg", "joined", "add"]


@pytest.mark.usefixtures("taken")
def test_what_is_read_may_not_be_written_meanwhile():
    graph, negative = graph_of(lambda graph, x, more: graph.call_function(aten.mul_.Tensor, (more, 0)))
    assert not Beside().takes(graph, negative)
    _, happened, _ = run(graph, torch.ones(2))
    assert "started" not in happened
    graph, negative = graph_of(lambda graph, x, more: graph.call_function(aten.mul_.Tensor, (x, 0)))
    assert Beside().takes(graph, negative)


def test_other_operations_do_not_run_beside():
    graph, negative = graph_of(lambda *_: None)
    assert not Beside().takes(graph, negative)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_computes_the_same_beside(monkeypatch):
    monkeypatch.setattr(beside, "BESIDE", {aten.neg.default})
    graph, _ = graph_of(lambda *_: None)
    x = torch.randn(1 << 24, device="cuda")
    found = [as_function(graph, {}, lambda target: target, Beside())(x) for _ in range(20)]
    want = (-(x + 1) + x.exp()).sum()
    assert all(torch.equal(one, want) for one in found)
