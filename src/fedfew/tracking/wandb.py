"""Weights & Biases: its server or, with WANDB_MODE=offline, files to send later. The optional extra ``wandb``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import wandb

PROJECT = "fedfew"
PATIENCE = 30.0  # seconds for its server to reply


class WandB:
    """target: project, or entity/project; unless given $WANDB_PROJECT, else "fedfew"."""

    def __init__(self, target: str, folder: Path | None) -> None:
        entity, _, project = target.rpartition("/")
        self.entity = entity or None
        self.project = project or os.environ.get("WANDB_PROJECT", PROJECT)
        self.folder = folder

    def begin(self, settings: Mapping[str, Any], name: str, known: str | None) -> str | None:
        place = self.folder if self.folder is not None and self.folder.is_dir() else Path()
        self.run = wandb.init(
            entity=self.entity,
            project=self.project,
            name=name,
            id=known,
            resume="allow" if known else None,
            config=dict(settings),
            dir=str(place),
            settings=wandb.Settings(silent=True, init_timeout=PATIENCE),
        )
        return str(self.run.id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def end(self, finished: bool, files: Iterable[Path]) -> None:
        for path in files:
            shutil.copy(path, self.run.dir)  # files in this folder are uploaded at the end
        self.run.finish(exit_code=0 if finished else 1)
