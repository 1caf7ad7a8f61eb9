"""A client's private state on the site's disk: one file per round, kept until the server no longer needs an older one.

A round may fail after a site has trained: its reply may be lost, late or refused. The server therefore says in which round a
client's reply was last used, and the site starts from its state after that round. Later states are ignored.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedfew.stack import Tree, from_named, named_leaves


class ClientStates:
    """The states of one client in one run, by round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rounds(self) -> list[int]:
        """The rounds after which a state was written, ascending."""
        found = (re.fullmatch(r"own-(\d+)\.safetensors", path.name) for path in self.folder.glob("own-*"))
        return sorted(int(match[1]) for match in found if match)

    def read(self, round: int) -> Tree | None:
        """The state after a round; None where there is none or it is damaged."""
        try:
            with safe_open(self._path(round), "pt") as file:
                names = json.loads(file.metadata()["names"])
                return from_named({name: file.get_tensor(name) for name in names})
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            return None

    def write(self, round: int, state: Tree, keep_from: int) -> None:
        """Write a state atomically and delete those of rounds before ``keep_from``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {path: t.detach().cpu().contiguous() for path, t in named_leaves(state)}
        partial = self.folder / f".partial-{os.getpid()}-{uuid.uuid4().hex}"
        with open(partial, "wb") as file:
            file.write(save(tensors, {"names": json.dumps(list(tensors))}))  # safetensors sorts names; this keeps their order
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self._path(round))
        for old in self.rounds():
            if old < keep_from:
                self._path(old).unlink(missing_ok=True)
        for leftover in self.folder.glob(".partial-*"):
            leftover.unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self.folder / f"own-{round:06d}.safetensors"
