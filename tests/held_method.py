"""A method that waits in its fourth round until a file is there: what a test does meanwhile is in the middle of the run, however
fast or busy the machine is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import fedfew

ROOT = Path(__file__).parents[1]
SPEC = "tests.held_method:Held"
ROUND = 4
GO_ON = "FEDFEW_TEST_GO_ON"


@dataclass(frozen=True)
class Held(fedfew.FedFew):
    name: ClassVar[str] = "held"

    def client(self, received: Any, own: Any, local: Any) -> Any:
        _wait(local.round)
        return super().client(received, own, local)


def hold_fedfew() -> None:
    """FedFew itself waits in this process, so that its runs are those of the command line."""
    original = fedfew.FedFew.client

    def client(self: fedfew.FedFew, received: Any, own: Any, local: Any) -> Any:
        _wait(local.round)
        return original(self, received, own, local)

    fedfew.FedFew.client = client  # type: ignore[method-assign]  # a process of the tests


def _wait(round: int) -> None:
    if round == ROUND and (file := os.environ.get(GO_ON)):
        Path(f"{file}.reached").touch()
        while not Path(file).exists():
            time.sleep(0.01)


def until(condition: Callable[[], Any], seconds: float = 600.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


class Hold:
    """A run that is started with this environment waits in its fourth round, until ``go_on``."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "go-on"
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {GO_ON: str(self.file), "PYTHONPATH": path}

    def wait(self) -> None:
        """Until the run is there."""
        until(Path(f"{self.file}.reached").exists)

    def go_on(self) -> None:
        self.file.touch()
