"""Graphs of operations: who uses what, what may be dropped, and what is computed."""

import gc
import math
import weakref

import pytest
import torch
from torch import Tensor

from fedfew.engines.stacked import traced
from fedfew.engines.stacked.graph import Graph, as_function, nodes_in
from fedfew.engines.stacked.traced import Traced, recorded

aten = torch.ops.aten


def same(target):
    return target


def test_users_follow_the_arguments():
    graph = Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    total = graph.call_function(aten.cat.default, ([a, b, a],), {"dim": 0})
    output = graph.output({"total": total})
    assert list(a.users) == list(b.users) == [total]
    total.args = ([b],)
    assert list(a.users) == []
    b.replace_all_uses_with(a)
    assert (list(a.users), list(b.users), total.args) == ([total], [], ([a],))
    total.replace_all_uses_with(a)
    assert output.args == ({"total": a},)
    assert list(nodes_in(output.args)) == [a]


def test_operations_come_before_the_output():
    graph = Graph()
    a = graph.placeholder("a")
    output = graph.output(a)
    doubled = graph.call_function(aten.add.Tensor, (a, a))
    assert graph.nodes == [a, doubled, output]
    assert graph.output_node() is output


def test_what_only_unused_operations_use_is_dropped_but_not_what_writes_or_draws():
    def function(x: Tensor) -> Tensor:
        (x * 2).exp().sum()  # used by nobody
        x.add_(1)
        torch.rand(2)  # moves the generator on
        return x + 0.5

    called = [node.target for node in recorded(function, (torch.zeros(3),)).graph.nodes if node.op == "call_function"]
    assert called == [aten.add_.Tensor, aten.rand.default, aten.add.Tensor]


@pytest.mark.parametrize("number", [2.5, -math.inf, math.nan, 3])
def test_functions_know_all_kinds_of_arguments(number):
    graph = Graph()
    x, fixed = graph.placeholder("x"), graph.get_attr("fixed")
    filled = graph.call_function(aten.full_like.default, (x, number), {"dtype": torch.float64})
    graph.output({"all": [filled, (fixed,), None]})
    found = as_function(graph, {"fixed": torch.tensor(7)}, same)(torch.zeros(2))
    assert found["all"][0].dtype == torch.float64
    assert found["all"][0].tolist() == pytest.approx([number, number], nan_ok=True)
    assert (found["all"][1][0], found["all"][2]) == (7, None)


def test_functions_forget_values_after_their_last_use():
    alive: list[weakref.ref] = []

    def seen(target):
        def call(*given):
            result = target(*given)
            gc.collect()
            alive.append(weakref.ref(result))
            return result

        return call

    def last(x: Tensor) -> Tensor:
        assert [one() is not None for one in alive] == [False, True]  # x + 1 is gone, its double is the argument
        return x.sum()

    graph = Graph()
    x = graph.placeholder("x")
    more = graph.call_function(aten.add.Tensor, (x, 1))
    double = graph.call_function(aten.mul.Tensor, (more, 2))
    graph.output(graph.call_function(last, (double,)))
    assert as_function(graph, {}, lambda target: target if target is last else seen(target))(torch.ones(2)) == 8


def test_a_recording_within_a_recording_is_copied_not_run_again():
    runs = []
    inner, outer = Traced(), Traced()
    elsewhere = torch.tensor([1.0, 2.0])

    def step(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        runs.append(1)
        w += x * elsewhere
        return w.sum(), x.max(0).values

    def both(x: Tensor, w: Tensor) -> list[Tensor]:
        first, _ = inner("step", step, x, w)
        second, most = inner("step", step, 2 * x, w)
        return [first, second + most]

    def by_hand(x: Tensor, w: Tensor) -> tuple[list[Tensor], Tensor]:
        once, twice = w + x * elsewhere, w + 3 * x * elsewhere
        return [once.sum(), twice.sum() + 2 * x.max()], twice

    for x in (torch.tensor([1.0, 5.0]), torch.tensor([-2.0, 3.0])):
        w = torch.tensor([10.0, 20.0])
        expected, moved = by_hand(x, w)
        assert torch.equal(torch.stack(outer("both", both, x, w)), torch.stack(expected))
        assert torch.equal(w, moved)
    assert len(runs) == 1
    assert traced.Recorder.current() is None
