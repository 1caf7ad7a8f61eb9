"""TensorBoard: event files in a folder. The optional extra ``tensorboard``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


class Tensorboard:
    """target: where event files go, in a folder of the run's name, for TensorBoard takes all files of a folder for one run;
    unless given, ``tensorboard`` in the run's folder. A continued run adds a file there."""

    def __init__(self, target: str, folder: Path | None) -> None:
        if not target and folder is None:
            raise ValueError("track is 'tensorboard' and there is no folder of the run: name one, as tensorboard:FOLDER")
        self.target, self.folder = target, folder

    def begin(self, settings: Mapping[str, Any], name: str, known: str | None) -> str | None:
        place = Path(known or Path(self.target, name)) if self.target else Path(self.folder or ".") / "tensorboard"
        self.writer = SummaryWriter(str(place))
        if known is None:
            rows = "\n".join(f"| {key} | {value} |" for key, value in settings.items())
            self._add("text", "settings", f"| setting | value |\n|---|---|\n{rows}", 0)
        return str(place)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.step = step
        for name, value in values.items():
            self._add("scalar", name, value, step)
        self.writer.flush()  # so that a run that is killed has shown what it did

    def end(self, finished: bool, files: Iterable[Path]) -> None:
        for path in files:
            if path.suffix == ".png":
                self._add("image", path.stem, _pixels(path), self.step, dataformats="HWC")
        self.writer.close()

    def _add(self, kind: str, *values: Any, **more: Any) -> None:
        getattr(self.writer, f"add_{kind}")(*values, **more)


def _pixels(path: Path) -> Any:
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(path).convert("RGB"))
