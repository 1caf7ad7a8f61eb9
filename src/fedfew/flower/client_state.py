"""A client's private state on the site's disk: one file per round, kept until the server no longer needs an older one.

A round may fail after a site has trained: its reply may be lost, late or refused. The server therefore says in which round a
client's reply was last used, and the site starts from its state after that round. Later states are ignored.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from safetensors.torch import load, save

from fedfew.flower import private_files
from fedfew.stack import Tree, from_named, named_leaves
from fedfew.util.files import DamagedFileError, remove_unfinished


class ClientStates:
    """The states of one client in one run, by round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rounds(self) -> list[int]:
        """The rounds after which a state was written, ascending."""
        found = (re.fullmatch(r"own-(\d+)", path.name) for path in self.folder.glob("own-*"))
        return sorted(int(match[1]) for match in found if match)

    def read(self, round: int) -> Tree | None:
        """The state after a round; None where there is none or it is damaged."""
        try:
            names, _, data = private_files.read(self._path(round)).partition(b"\n")
            tensors = load(data)
            return from_named({name: tensors[name] for name in json.loads(names)})  # safetensors does not keep their order
        except (OSError, DamagedFileError):
            return None

    def write(self, round: int, state: Tree, keep_from: int) -> None:
        """Write a state atomically and delete those of rounds before ``keep_from``."""
        private_files.make_folder(self.folder)
        tensors = {path: t.detach().cpu().contiguous() for path, t in named_leaves(state)}
        private_files.write(self._path(round), json.dumps(list(tensors)).encode() + b"\n" + save(tensors))
        for old in self.rounds():
            if old < keep_from:
                self._path(old).unlink(missing_ok=True)
        remove_unfinished(self.folder)

    def _path(self, round: int) -> Path:
        return self.folder / f"own-{round:06d}"
