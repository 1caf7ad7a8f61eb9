"""What ends a run early: numbers that are not finite any more, or Ctrl-C."""

from __future__ import annotations

from fedfew.training.run import Run


class DivergedError(RuntimeError):
    """No client's numbers are finite any more; ``run`` is the last good state."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C; ``run`` is the state after the last complete round."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"stopped after round {run.round}")
        self.run = run
