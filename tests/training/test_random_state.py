"""What the user draws from the global random generators does not depend on what fedfew did before."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedfew
from tests.methods.small import CLASSES, FEATURES, mlp, train


def states() -> tuple[list[int], list[int], Any]:
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]


def assert_untouched(work: Callable[[], Any]) -> Any:
    before = states()
    result = work()
    assert states() == before
    return result


class Drawing(nn.Module):
    """A user's own module that draws when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.shift = float(torch.rand(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.shift  # type: ignore[no-any-return]


@pytest.mark.parametrize("engine", ["sequential", "threaded", "stacked", "auto"])
def test_training_draws_nothing(engine: str) -> None:
    assert_untouched(lambda: train(fedfew.FedFew(), rounds=1, engine=engine))


@pytest.mark.parametrize("settings", [{"model": "mlp", "adapters": "lora:rank=2"}, {"freeze": "body"}, {"model": Drawing}])
def test_nor_does_making_modules(settings: dict[str, Any]) -> None:
    run = assert_untouched(lambda: train(fedfew.FedAvg(), rounds=1, **settings))
    assert_untouched(lambda: (run.models, run.model_of(0), run.new_module()))


def test_nor_do_a_folder_and_an_export(tmp_path: Path) -> None:
    run = train(fedfew.FedAvg(), model="mlp", rounds=1)
    run.save(tmp_path / "run")
    assert_untouched(lambda: fedfew.load(tmp_path / "run").models)
    assert_untouched(lambda: fedfew.export.write(run, tmp_path / "export"))
    assert_untouched(lambda: fedfew.export.read(tmp_path / "export").models)


def test_initial_weights_still_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = train(fedfew.FedAvg(), model=mlp, rounds=1)
    torch.manual_seed(2)
    other = train(fedfew.FedAvg(), model=mlp, rounds=1)
    for a, b in zip(one.models[0].parameters(), other.models[0].parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_imports_draw_nothing() -> None:
    """In a process of its own, for modules are imported once."""
    script = (
        "import random; before = random.getstate(); import fedfew; fedfew.data.load('digits', clients=4); "
        "assert random.getstate() == before"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_data_draw_nothing() -> None:
    assert_untouched(lambda: fedfew.data.load("digits", clients=4))
