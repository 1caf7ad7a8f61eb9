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


def main() -> None:
    """The command line, in which FedFew and local training wait: they are called as ever."""
    from fedfew.cli import main

    for cls in (fedfew.FedFew, fedfew.LocalOnly):
        cls.client = _held(cls.client)  # type: ignore[attr-defined]  # both have it
    main()


def _held(original: Callable[..., Any]) -> Callable[..., Any]:
    def client(self: Any, received: Any, own: Any, local: Any) -> Any:
        _wait(local.round)
        return original(self, received, own, local)

    return client


def _wait(round: int) -> None:
    if round == ROUND and (file := os.environ.get(GO_ON)):
        Path(f"{file}.reached-{os.getpid()}").touch()
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

    def wait(self, processes: int = 1) -> None:
        """Until so many processes are there."""
        until(lambda: len(list(self.file.parent.glob(f"{self.file.name}.reached-*"))) >= processes)

    def go_on(self) -> None:
        self.file.touch()


if __name__ == "__main__":
    main()
