"""Kernels that are only compiled while a step is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from fedfew.engines.stacked.kernels import compiling, triton_convolution, triton_row_gather
from fedfew.engines.stacked.kernels.compiling import compiled_only, start
from fedfew.engines.stacked.kernels.convolution import convolution
from fedfew.engines.stacked.kernels.operation import operation
from fedfew.engines.stacked.kernels.row_gather import add_rows
from fedfew.engines.stacked.recording import record, without_kernels

interpreted = pytest.mark.skipif(not os.environ.get("TRITON_INTERPRET"), reason="kernels are compiled here")


class Kernel:
    """Writes down what is done to it, as the mode does in which it is compiled."""

    def __init__(self, done):
        self.done = done

    def warmup(self, *args, grid, **options):
        from triton.runtime._async_compile import active_mode

        assert active_mode.get() is not None
        self.done.append(("compiled", args, grid, options))

    def __getitem__(self, grid):
        return lambda *args, **options: self.done.append(("started", args, grid, options))


@pytest.fixture
def done(monkeypatch):
    done = []
    mode = SimpleNamespace(__exit__=lambda *_: done.append("waited"))
    monkeypatch.setattr(compiling, "_compiling", {})
    monkeypatch.setattr(compiling, "_mode", lambda kernel: compiling._compiling.setdefault(kernel, mode))
    return done


def test_a_kernel_is_compiled_where_it_is_not_to_be_started_and_waited_for_once_where_it_is(done):
    kernel, other = Kernel(done), Kernel(done)
    with compiled_only() as kernels:
        start(kernel, (2, 3), 7, size=4)
    assert kernels == [kernel]
    start(other, (1,), 0)
    start(kernel, (2, 3), 7, size=4)
    start(kernel, (2, 3), 8, size=4)
    assert done == [
        ("compiled", (7,), (2, 3), {"size": 4}),
        ("started", (0,), (1,), {}),
        "waited",
        ("started", (7,), (2, 3), {"size": 4}),
        ("started", (8,), (2, 3), {"size": 4}),
    ]


@interpreted
def test_in_an_interpreter_kernels_are_started():
    table, at = torch.zeros(3, 4), torch.tensor([1])
    with compiled_only() as kernels:
        start(triton_row_gather.add_rows, (1, 1), table, at, torch.ones(1, 4), 2.0, 4, 4)
    assert kernels == []
    assert table.tolist() == [[0.0] * 4, [2.0] * 4, [0.0] * 4]


@interpreted
def test_what_was_not_computed_is_zero_while_it_is_recorded(done, monkeypatch):
    class Leftover(Kernel):
        def warmup(self, *args, **options):
            super().warmup(*args, **options)
            args[3].fill_(7.0)  # the output's memory holds what was there before

    monkeypatch.setattr(triton_convolution, "forward", Leftover(done))
    seen = []

    def function(x, weight):
        out = convolution(x, weight, None)
        seen.append(out.clone())
        return out * 2

    graph, _ = record(function, (torch.ones(2, 1, 1, 3, 3), torch.ones(2, 4, 1, 2, 2)))
    assert [what[0] for what in done] == ["compiled"]
    assert seen[0].shape == (2, 1, 4, 2, 2)
    assert not seen[0].any()
    assert any("fedfew.convolution" in str(node.target) for node in graph.nodes)


def test_all_kernels_are_waited_for(done):
    with compiled_only():
        start(Kernel(done), (1,))
        start(Kernel(done), (1,))
    compiling.finish_compiling()
    compiling.finish_compiling()
    assert [what[0] for what in done] == ["compiled", "compiled", *"w" * 2]


@interpreted
def test_without_kernels_shapes_are_as_with_them(done, monkeypatch):
    monkeypatch.setattr(triton_convolution, "forward", Kernel(done))
    x, weight = torch.ones(2, 1, 1, 3, 3), torch.ones(2, 4, 1, 2, 2)
    assert without_kernels(lambda: convolution(x, weight, None).shape) == (2, 1, 4, 2, 2)
    assert [what[0] for what in done] == ["compiled"]
    assert without_kernels(lambda: x.sum().item()) == 18, "what cannot be recorded is run"


def test_an_operation_counts_what_it_changes():
    table = torch.zeros(3, 2)
    before = table._version
    add_rows(table, torch.tensor([1]), torch.ones(1, 2), 3.0)
    assert table._version > before
    with torch.inference_mode():
        table = torch.zeros(3, 2)
        add_rows(table, torch.tensor([1]), torch.ones(1, 2), 3.0)  # these have no version
    assert table.tolist() == [[0, 0], [3, 3], [0, 0]]


def test_an_operation_that_returns_nothing(done):
    kernel = Kernel(done)

    @operation("only_in_tests", mutates=("into",))
    def write(into: torch.Tensor) -> None:
        start(kernel, (1,), into)

    with compiled_only() as kernels:
        write(torch.ones(2))
    assert kernels == [kernel]
    write(torch.ones(2))
    assert [what[0] for what in done] == ["compiled", "w", "started"]


COMPILED = """
import sys
import numpy, torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Target:  # a driver of a GPU that is not there: kernels can be compiled for it
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)

driver.set_active(Target())
from fedfew.engines import LocalTraining, Stacked
from fedfew.engines.stacked import kernels
asked = kernels.usable
for module in list(sys.modules.values()):
    if vars(module).get("usable") is asked:
        module.usable = lambda device: True
from fedfew.engines.stacked.captured import CapturedTraining
from fedfew.engines.stacked.kernels import compiling
from fedfew.federation import Federation
from fedfew.local import cross_entropy
from fedfew.stack import tree_map
from torch import nn

data = [(numpy.zeros((20, 3, 16, 16), numpy.uint8), numpy.zeros(20, int))]
samples = Federation.from_arrays(data, data).train
cnn = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 10))
engine = Stacked(cnn, LocalTraining(lr=0.1, batch_size=10), 0)
params = tree_map(lambda t: t.expand(1, 2, *t.shape), dict(engine.module.state_dict()))
training = CapturedTraining(engine, lambda work: work)
training._compile(training._new_space(params, {}, samples, 1, 2, 2), 2, cross_entropy, None, False)
submitted = {kernel: len(mode.raw_futures) for kernel, mode in compiling._compiling.items()}
compiling.finish_compiling()
for kernel, number in submitted.items():
    compiled = kernel.device_caches[0][0].values()
    assert len(compiled) == number and all(".target sm_90" in of.asm["ptx"] for of in compiled), kernel
print(*sorted(kernel.fn.__name__ for kernel in submitted))
"""


@pytest.mark.slow
def test_all_kernels_of_a_step_are_compiled_in_threads_for_a_gpu_that_is_not_there(tmp_path):
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, check=False)
    names = set(done.stdout.split())
    assert {"read", "forward", "weight_gradient", "cross_entropy", "descend", "add_losses"} <= names, done.stderr
