"""The maximum over time and its gradient against PyTorch's own, which go through all answers."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedfew.models.max_over_time import max_over_time


def convolutions(words: int = 6, sizes: tuple[tuple[int, int], ...] = ((4, 1), (3, 2), (5, 4))) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Conv1d(words, filters, width) for filters, width in sizes).double()


def plain(vectors: Tensor, layers: nn.ModuleList) -> Tensor:
    return torch.cat([F.conv1d(vectors.mT, layer.weight, layer.bias).amax(-1) for layer in layers], 1)


class Layers(nn.Module):
    def __init__(self, layers: nn.ModuleList, answers) -> None:
        super().__init__()
        self.layers, self.answers = layers, answers

    def forward(self, vectors: Tensor) -> Tensor:
        return self.answers(vectors, self.layers)


def gradients(answers, vectors: Tensor, layers: nn.ModuleList, upstream: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad((answers(vectors, layers) * upstream).sum(), [vectors, *layers.parameters()]))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=3), st.integers(1, 4), st.integers(5, 8))
@settings(max_examples=30)
def test_values_and_gradients_are_those_of_all_answers(sizes, texts, length):
    layers = convolutions(3, tuple(sizes))
    vectors = torch.randn(texts, length, 3, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(texts, sum(filters for filters, _ in sizes), dtype=torch.float64)
    torch.testing.assert_close(max_over_time(vectors, layers), plain(vectors, layers))
    for own, all_answers in zip(*(gradients(f, vectors, layers, upstream) for f in (max_over_time, plain)), strict=True):
        torch.testing.assert_close(own, all_answers)


@pytest.mark.parametrize("shared", [False, True], ids=["own texts", "the same texts"])
def test_replicas_have_gradients_of_their_own(shared):
    """Taken within vmap, and taken around it, as the stacked engine does."""
    layers = convolutions()
    weights = {f"layers.{name}": torch.randn(3, *p.shape).double() for name, p in layers.named_parameters()}
    vectors = torch.randn(7, 9, 6).double() if shared else torch.randn(3, 7, 9, 6).double()
    upstream = torch.randn(7, 12).double()
    found = []
    for answers in (max_over_time, plain):
        module = Layers(layers, answers)

        def loss(weights, vectors, module=module):
            return (functional_call(module, weights, (vectors,)) * upstream).sum()

        axes = (0, None if shared else 0)
        found.append(vmap(grad(loss, argnums=(0, 1)), in_dims=axes)(weights, vectors))
        leaves = [t.clone().requires_grad_() for t in (*weights.values(), vectors)]
        total = vmap(loss, in_dims=axes)(dict(zip(weights, leaves, strict=False)), leaves[-1]).sum()
        found.append(torch.autograd.grad(total, leaves))
    (own, of_vectors), own_around, (other, of_their_vectors), other_around = found
    torch.testing.assert_close(own, other)
    torch.testing.assert_close(of_vectors, of_their_vectors)
    for one, another in zip(own_around, other_around, strict=True):
        torch.testing.assert_close(one, another)


def test_words_that_are_not_trained_have_no_gradient():
    layers, vectors = convolutions(), torch.randn(4, 9, 6).double()
    total = {answers: answers(vectors, layers).sum() for answers in (max_over_time, plain)}
    for own, other in zip(*(torch.autograd.grad(t, list(layers.parameters())) for t in total.values()), strict=True):
        torch.testing.assert_close(own, other)


def test_of_equal_windows_it_does_not_matter_which_counts():
    """In filled-up texts many windows are all padding, and PyTorch's gradient is shared out among them."""
    layers, table = convolutions(), torch.randn(5, 6).double().requires_grad_()
    tokens = torch.tensor([[1, 2, 1, 2, 1, 2, 1, 2], [3, 0, 0, 0, 0, 0, 0, 0], [4, 4, 4, 4, 4, 4, 4, 4]])
    found = [
        torch.autograd.grad(answers(table[tokens], layers).sum(), [table, *layers.parameters()])
        for answers in (max_over_time, plain)
    ]
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)


def test_layers_that_are_more_than_a_convolution_are_called():
    layers = convolutions()
    vectors, called = torch.randn(2, 9, 6).double(), []
    hook = layers[1].register_forward_hook(lambda *_: called.append(1))
    torch.testing.assert_close(max_over_time(vectors, layers), plain(vectors, layers))
    hook.remove()
    assert called
    layers[0] = nn.utils.parametrizations.weight_norm(layers[0])
    torch.testing.assert_close(max_over_time(vectors, layers), plain(vectors, layers))


@pytest.mark.parametrize("other", [{"stride": 2}, {"padding": 1}, {"dilation": 2}, {"groups": 2}, {"bias": False}], ids=str)
def test_other_convolutions_are_called_too(other):
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Conv1d(6, 4, 3, **other), nn.Conv1d(6, 2, 2)])
    vectors = torch.randn(5, 9, 6)
    torch.testing.assert_close(max_over_time(vectors, layers), torch.cat([layer(vectors.mT).amax(-1) for layer in layers], 1))


def test_it_can_be_traced():
    layers = convolutions()
    module = Layers(layers, max_over_time).eval()
    program = torch.jit.trace(module, torch.randn(2, 9, 6).double())
    vectors = torch.randn(2, 9, 6).double()
    torch.testing.assert_close(program(vectors), plain(vectors, layers))


def test_second_derivatives_are_refused():
    layers = convolutions()
    vectors = torch.randn(2, 9, 6, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(max_over_time(vectors, layers).square().sum(), vectors, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        first.sum().backward()
