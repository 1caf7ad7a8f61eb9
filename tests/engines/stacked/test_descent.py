"""SGD within a recording: the same parameters, without gradients that need not be written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedfew import models
from fedfew.engines import LocalTraining, Stacked
from fedfew.engines.precision import products
from fedfew.engines.stacked.descent import descending
from fedfew.engines.stacked.traced import _writes, recorded
from fedfew.local import cross_entropy
from fedfew.stack import squared_distance

LR = 0.1


def proximal(loss, params, context):
    value = loss(params)
    return value + 0.05 * squared_distance(params, context), value.detach()


def mlp():
    return models.build("mlp", (8,), 3), torch.randn(2, 5, 8)


def words():
    module = models.build("textcnn", (6,), 3, 11)
    module.dropout.p = 0.0
    return module, torch.randint(0, 11, (2, 5, 6))


class LowRank(nn.Module):
    """A layer whose weights are a product of two parameters: the gradient of each is a product with the other."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(3, 2))

    def forward(self, x):
        return x @ (self.b @ self.a).mT


def low_rank():
    return LowRank(), torch.randn(2, 5, 8)


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.p, self.q = nn.Linear(8, 3), nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self, x):
        return self.out(x)


def scales():
    return Scales(), torch.randn(2, 5, 8)


def product(loss, params, context):
    """The gradient of each of two parameters is the other."""
    value = loss(params)
    return value + (params["p"] * params["q"]).sum(), value.detach()


@pytest.mark.parametrize(
    ("make", "objective", "operations"),
    [
        (low_rank, cross_entropy, {"aten._foreach_add_.List": 1}),
        (scales, product, {"aten.baddbmm_.default": 1, "aten._foreach_add_.List": 1}),
        (mlp, cross_entropy, {"aten.baddbmm_.default": 2, "aten._foreach_add_.List": 1}),
        (mlp, proximal, {"aten._foreach_add_.List": 1}),
        (words, cross_entropy, {"aten.baddbmm_.default": 1, "fedfew.add_rows.default": 1, "aten._foreach_add_.List": 1}),
        (words, proximal, {"aten._foreach_add_.List": 1}),
    ],
)
def test_parameters_move_by_their_gradients(make, objective, operations):
    torch.manual_seed(0)
    module, x = make()
    engine = Stacked(module, LocalTraining(LR, 5), 0)
    weights = {name: t + 0.1 * torch.randn(2, *t.shape) for name, t in module.state_dict().items()}
    context = {} if objective is not proximal else {name: t + 1 for name, t in weights.items()}
    y, weight = torch.randint(0, 3, (2, 5)), torch.full((2, 5), 0.2)
    function, rest = engine.differentiation.gradients(objective, weights, context, keyed=False)
    tensors = [x, y, weight, *rest]
    gradients, losses = function(*tensors)
    want = [t - LR * g for t, g in zip(weights.values(), gradients, strict=True)]
    step = descending(recorded(function, tuple(tensors)), [3 + i for i in range(len(weights))], LR)
    writes = [str(n.target) for n in step.graph.nodes if n.op == "call_function" and _writes(n)]
    assert {name: writes.count(name) for name in writes} == operations
    torch.testing.assert_close(step.forward(*tensors), losses)
    for moved, right in zip(weights.values(), want, strict=True):
        torch.testing.assert_close(moved, right, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_a_part_of_another_parameter_is_taken_before_that_moves():
    def gradients(whole, half):
        first, second = whole.split(2)
        return [first.square().cumsum(0).repeat(2), second], first.sum()

    whole, half = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([5.0, 6.0])
    step = descending(recorded(gradients, (whole, half)), [0, 1], LR)
    step.forward(whole, half)
    torch.testing.assert_close(half, torch.tensor([5 - 0.3, 6 - 0.4]))
    torch.testing.assert_close(whole, torch.tensor([1 - 0.1, 2 - 0.5, 3 - 0.1, 4 - 0.5]))


def test_a_gradient_that_is_a_sum_of_another_parameter_is_summed_before_that_moves():
    def gradients(whole, sums):
        return [torch.stack([whole, whole, whole]).sum(0), whole.sum(0)], whole.sum()

    whole, sums = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0, 6.0])
    step = descending(recorded(gradients, (whole, sums)), [0, 1], LR, kernels=True)
    step.forward(whole, sums)
    torch.testing.assert_close(sums, torch.tensor([5 - 0.4, 6 - 0.6]))
    torch.testing.assert_close(whole, torch.tensor([[0.7, 1.4], [2.1, 2.8]]))


@pytest.mark.parametrize("padding", [None, 2])
def test_of_an_embedding_the_rows_that_occur_move_but_padding(padding):
    at, upstream = torch.tensor([[0, 2, 4], [4, 2, 1]]), torch.randn(2, 3, 3)

    def gradients(table):
        table = table.detach().requires_grad_()
        total = (torch.nn.functional.embedding(at, table, padding) * upstream).sum()
        return list(torch.autograd.grad(total, [table])), total.detach()

    table = torch.randn(6, 3)
    (gradient,), _ = gradients(table)
    assert gradient[2].any() != (padding == 2)
    want = table - LR * gradient
    step = descending(recorded(gradients, (table,)), [0], LR)
    step.forward(table)
    torch.testing.assert_close(table, want)
    found = [str(node.target) for node in step.graph.nodes]
    assert "fedfew.add_rows.default" in found
    assert "aten.embedding_dense_backward.default" not in found


class Layers(nn.Module):
    """Two layers; the inner one may be read once more, after the gradient of its rows is there."""

    def __init__(self, outputs=40):
        super().__init__()
        self.inner, self.out = nn.Linear(9, 12), nn.Linear(12, outputs)

    def forward(self, x):
        return self.out(self.inner(x).relu())


def rows_of(weight):
    """An objective that reads weights without a gradient, and only once that of everything else is known."""

    class LastOfAll(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, weight):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[1])

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].square().mean(), None

    return LastOfAll.apply(weight["inner.bias"], weight["out.weight"].detach())


def reads_later(loss, params, context):
    value = loss({**params, "inner.bias": rows_of(params)})
    return value, value.detach()


def layers(rows=5, outputs=40, objective=cross_entropy, precision="tf32"):
    """A recorded step on the way to a GPU's: what it writes by, and a check that it moves the weights as the gradients say."""
    torch.manual_seed(0)
    module = Layers(outputs)
    engine = Stacked(module, LocalTraining(LR, rows), 0)
    weights = {name: t + 0.1 * torch.randn(2, *t.shape) for name, t in module.state_dict().items()}
    x, y, weight = torch.randn(2, rows, 9), torch.randint(0, outputs, (2, rows)), torch.full((2, rows), 1 / rows)
    function, rest = engine.differentiation.gradients(objective, weights, {}, keyed=False)
    gradients, losses = function(x, y, weight, *rest)
    want = [t - LR * g for t, g in zip(weights.values(), gradients, strict=True)]
    with products(precision, torch.device("cuda")):
        step = descending(recorded(function, (x, y, weight, *rest)), [3, 4, 5, 6], LR, kernels=True)
    torch.testing.assert_close(step.forward(x, y, weight, *rest), losses)
    torch.testing.assert_close(list(weights.values()), want, rtol=1e-5, atol=1e-6)
    return [str(node.target) for node in step.graph.nodes]


def test_a_layer_moves_on_the_way_back():
    """The last one: of the first nobody needs the gradient of its rows."""
    found = layers()
    assert [found.count(of) for of in ("fedfew.linear_step.default", "aten.baddbmm_.default", "aten.bmm.default")] == [1, 1, 0]


@pytest.mark.parametrize(
    "unlike",
    [{"rows": 65}, {"outputs": 32}, {"precision": "fp32"}, {"objective": reads_later}],
    ids=["many rows", "few outputs", "products in float32", "weights that are read later"],
)
def test_other_layers_move_at_the_end(unlike):
    found = layers(**unlike)
    assert [found.count(of) for of in ("fedfew.linear_step.default", "aten.baddbmm_.default", "aten.bmm.default")] == [0, 2, 1]
