"""Linear layers in the stack: what nn.Linear does, with the gradient in the layout of the weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from fedfew.engines.stacked.linear import StackedLinear, _Linear, make_linear

X, W, B = torch.randn(6, 4, 5, dtype=torch.float64), torch.randn(6, 3, 5, dtype=torch.float64), torch.randn(6, 3).double()


LAYERS = {bias: make_linear(nn.Linear(5, 3, bias=bias)) for bias in (True, False)}


def stacked(x, w, b):
    named = {"weight": w} if b is None else {"weight": w, "bias": b}
    return torch.func.functional_call(LAYERS[b is not None], named, (x,))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 5), (5,), (2, 4, 5)])
def test_it_is_a_linear_layer(shape, bias):
    """Output, gradient, and the gradient of a gradient, against F.linear replica by replica."""
    x = torch.randn(6, *shape, dtype=torch.float64, requires_grad=True)
    w, b = W.clone().requires_grad_(), B.clone().requires_grad_() if bias else None
    inputs = [t for t in (x, w, b) if t is not None]
    results = []
    for layer in (
        lambda: vmap(stacked, in_dims=(0, 0, 0 if bias else None))(x, w, b),
        lambda: torch.stack([F.linear(x[r], w[r], b[r] if bias else None) for r in range(6)]),
    ):
        y = layer()
        gradients = torch.autograd.grad((y**3).sum(), inputs, create_graph=True)
        again = torch.autograd.grad(sum((g**2).sum() for g in gradients), inputs)
        results.append((y, *gradients, *again))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_the_gradient_lies_in_memory_as_the_weights_do():
    w = W.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(vmap(stacked)(X, w, B).sum(), [w])
    assert gradient.is_contiguous()


def test_layers_keep_their_parameters_and_names():
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 3, bias=False)))
    weight = module[0].weight
    changed = make_linear(module)
    assert isinstance(changed[0], StackedLinear)
    assert isinstance(changed[2][0], StackedLinear)
    assert changed[0].weight is weight
    assert list(changed.state_dict()) == ["0.weight", "0.bias", "2.0.weight"]
    assert isinstance(make_linear(nn.Linear(2, 2)), StackedLinear)


def test_a_subclass_is_left_alone():
    class Special(nn.Linear):
        pass

    assert type(make_linear(nn.Sequential(Special(2, 2)))[0]) is Special


@pytest.mark.parametrize("bias", [True, False])
def test_models_that_see_the_same_samples_share_one_product(bias):
    torch.manual_seed(0)
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 3, 2, 6, dtype=torch.float64, requires_grad=True)  # of 3 models of each of 4 clients
    shift = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True) if bias else None
    products = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            products.extend([function.overloadpacket] if "mm" in str(function) else [])
            return function(*args, **(kwargs or {}))

    of_models = vmap(_Linear.apply, in_dims=(None, 0, 0 if bias else None))
    with Counting():
        found = of_models(x, weight[0], None if shift is None else shift[0])
        several = vmap(of_models, in_dims=(None, 0, 0 if bias else None))(x, weight, shift)
    want = torch.einsum("bi,ckoi->ckbo", x, weight) + (0 if shift is None else shift[:, :, None])
    assert products == [torch.ops.aten.addmm if bias else torch.ops.aten.mm] * 2  # one each, of two matrices: not a batch of them
    torch.testing.assert_close(found, want[0])
    torch.testing.assert_close(several, want)
    each = [t for t in (x, weight, shift) if t is not None]
    g = torch.randn_like(want)
    for mine, plain in zip(torch.autograd.grad(several, each, g), torch.autograd.grad(want, each, g), strict=True):
        torch.testing.assert_close(mine, plain)
