"""Recordings do what the function did, whatever it does to its tensors."""

import os
import subprocess
import sys
import weakref

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedfew.engines.stacked.graph import as_function
from fedfew.engines.stacked.recording import record


def replayed(function, *tensors: Tensor):
    """A recording made of copies, so that what the function writes is seen in what it is given later."""
    graph, constants = record(function, tuple(t.clone() for t in tensors))
    return as_function(graph, constants, lambda target: target)


def test_gradients_of_many_replicas_at_once():
    def losses(weights: Tensor, x: Tensor) -> Tensor:
        return vmap(lambda w, rows: (rows @ w).tanh().square().mean())(weights, x)

    def gradients(weights: Tensor, x: Tensor) -> Tensor:
        leaf = weights.detach().requires_grad_()
        return torch.autograd.grad(losses(leaf, x).sum(), leaf)[0]

    weights, x = torch.randn(3, 4), torch.randn(3, 5, 4)
    recording = replayed(gradients, weights, x)
    others = torch.randn(3, 4), torch.randn(3, 5, 4)
    assert torch.equal(recording(*others), gradients(*others))
    answer = (others[1] @ others[0][:, :, None])[..., 0].tanh()
    by_hand = (2 / 5 * answer * (1 - answer**2))[:, None] @ others[1]
    assert torch.allclose(recording(*others), by_hand[:, 0], atol=1e-6)


def test_what_is_written_into_an_argument_or_a_view_of_it():
    def function(x: Tensor) -> Tensor:
        row = x[0]
        row += 1
        return x.sum()

    recording = replayed(function, torch.zeros(2, 3))
    x = torch.arange(6.0).reshape(2, 3)
    assert recording(x) == 18
    assert x.tolist() == [[1, 2, 3], [3, 4, 5]]


def test_several_results_and_none_of_them_a_tensor():
    def function(x: Tensor) -> tuple[list[Tensor | None], int]:
        largest, at = x.max(0)
        return [largest, None, at], 7

    (largest, nothing, at), number = replayed(function, torch.zeros(3))(torch.tensor([1.0, 5.0, 2.0]))
    assert (float(largest), nothing, int(at), number) == (5.0, None, 1, 7)


def test_tensors_from_elsewhere_are_constants():
    elsewhere = torch.tensor([1.0, 2.0])
    recording = replayed(lambda x: x * elsewhere + torch.tensor(3.0), torch.zeros(2))
    assert recording(torch.tensor([10.0, 10.0])).tolist() == [13.0, 23.0]


def test_a_tensor_that_the_function_makes_and_changes_is_made_anew_in_every_replay():
    def function(x):
        factor = torch.tensor([1.0, 2.0])
        factor *= 2
        return x * factor

    recording = replayed(function, torch.zeros(2))
    for _ in range(2):
        assert recording(torch.ones(2)).tolist() == [2.0, 4.0]


def test_shapes_and_types_are_noted():
    graph, _ = record(lambda x: x.double().sum(0), (torch.zeros(2, 3),))
    *_, last, _ = graph.nodes
    assert last.meta["like"] == ((3,), torch.float64)


def test_a_step_that_looks_at_a_number_is_refused():
    with pytest.raises(RuntimeError, match="must not depend on the value"):
        record(lambda x: x * x.sum().item(), (torch.ones(2),))


def test_nothing_is_kept_that_the_function_has_let_go():
    alive: list[weakref.ref] = []

    def function(x: Tensor) -> Tensor:
        alive.append(weakref.ref(between := x + 1))
        del between
        assert alive[0]() is None
        return x * 2

    record(function, (torch.ones(2),))
    assert len(alive) == 1


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_pytorchs_compiler_is_not_loaded(schedule):
    """It takes a second or more, which a site on a network would spend on every message and a GPU would wait for."""
    code = f"""
import sys, numpy, fedfew
client = numpy.arange(12.0, dtype="float32").reshape(6, 2), numpy.arange(6) % 2
data = fedfew.Federation.from_arrays([client] * 2, [client] * 2)
fedfew.train(data, "mlp", rounds=2, schedule={schedule!r}, engine="stacked")
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.slow
def test_neither_is_it_by_operations_of_our_own():
    """As by those of torch.library.custom_op, when first called: on a GPU that was most of the wait for a first round."""
    pytest.importorskip("triton")
    code = """
import sys, torch
torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
from torch.func import vmap
from fedfew.engines.stacked.kernels.convolution import convolution
from fedfew.engines.stacked.kernels.cross_entropy import cross_entropy
from fedfew.engines.stacked.kernels.descend import descend
from fedfew.engines.stacked.kernels.row_gather import add_rows

def loss(weight, x, y):
    return cross_entropy(convolution(x[None], weight[None], None)[0, :, :, 0, 0], y, torch.ones(2))

weights = torch.ones(3, 4, 1, 3, 3, requires_grad=True)
losses = vmap(loss)(weights, torch.ones(3, 2, 1, 3, 3), torch.zeros(3, 2, dtype=torch.int64))
(gradient,) = torch.autograd.grad(losses.sum(), weights)
descend([torch.zeros(4)], [torch.ones(4)], [1], [4], 1.0)
add_rows(torch.zeros(3, 2), torch.tensor([0]), torch.ones(1, 2), 1.0)
print(gradient.shape == weights.shape, "torch._dynamo" in sys.modules)
"""
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "True False\n", done.stderr
