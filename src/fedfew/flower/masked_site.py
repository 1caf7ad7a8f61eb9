"""A site's half of a round under masks: its update stays at home until it is masked (:mod:`fedfew.flower.secure`). Experimental.

    train   the update is put aside; public keys go out in its place
    share   the site's secrets go out in shares, sealed for each of the other sites
    mask    the update goes out, scaled by the weights that came and under masks
    reveal  one share of a secret of each site goes out, and all that was put aside is deleted

RUN/masked/party.json and RUN/masked/update.safetensors hold it from one letter to the next: each may come to another process.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedfew.flower.checks import norm
from fedfew.flower.messages import MASK, SHARE, Letter, RefusedError
from fedfew.flower.secure.client import Party, PublicKeys
from fedfew.flower.secure.fixed_point import Ring
from fedfew.flower.secure.weighting import scaled
from fedfew.stack import Tree, from_named, leaves, named_leaves, tree_map
from fedfew.util.files import folder_locked


class Aside:
    """What a site has put aside for the rest of a round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "masked"

    def begin(self, client: int, session: str, update: Tree, longest: float) -> str:
        """Put an update aside, shortened to a norm (0: as it is); the keys that go out for it. What was here is deleted."""
        if not all(bool(t.isfinite().all()) for t in leaves(update)):
            raise ValueError("the update is not finite: it would spoil the sum, and nobody could tell whose it was")
        length = norm(update)
        if 0 < longest < length:
            update = tree_map(lambda t: t * (longest / length) if t.is_floating_point() else t, update)
        party = Party.begin(client, bytes.fromhex(session))
        with folder_locked(self.folder.parent):
            self._delete()
            self.folder.mkdir(mode=0o700)
            self._write("update.safetensors", save({path: t.contiguous() for path, t in named_leaves(update)}))
            self._keep(party)
        return party.public.dumps().hex()

    def answer(self, letter: Letter, most_weight: float) -> Tree:
        """What goes out for a letter of a later step; noted down before, so that no other process takes the step again."""
        with folder_locked(self.folder.parent):
            try:
                party = Party.loads((self.folder / "party.json").read_text())
            except FileNotFoundError:
                raise RefusedError("nothing is put aside here") from None
            if letter.text("session") != party.session.hex():
                raise RefusedError("another session's update is put aside here")
            if letter.kind == SHARE:
                return self._share(party, letter)
            if letter.kind == MASK:
                return self._mask(party, letter, most_weight)
            return self._reveal(party, letter)

    def _share(self, party: Party, letter: Letter) -> Tree:
        known = dict(zip(_clients(letter), _rows(letter, "keys"), strict=True))
        sealed = party.share({c: PublicKeys.loads(row) for c, row in known.items()}, letter.whole("threshold"))
        self._keep(party)
        return {"sealed": as_tensor([sealed[client] for client in sorted(sealed)])}

    def _mask(self, party: Party, letter: Letter, most_weight: float) -> Tree:
        update = from_named(load((self.folder / "update.safetensors").read_bytes()))
        weights = letter.numbers("weights", letter.whole("models", 1))
        if not all(0 <= weight <= most_weight for weight in weights):
            raise RefusedError(f"a weight of this site is not from 0 to {most_weight:g}, the most it allows")
        ring = Ring(letter.number("clip"), len(party.roster))
        row = scaled(update, weights)
        if cut := ring.clipped(row):
            print(
                f"{cut} of {len(row)} numbers of this site's update are beyond ±{ring.clip:g} and were cut: raise mask-clip",
                flush=True,
            )
        sealed = dict(zip(_clients(letter), _rows(letter, "sealed"), strict=True))
        masked = party.mask(ring.encode(row), sealed)
        self._keep(party)
        return {"masked": torch.from_numpy(masked.view(np.int64))}

    def _reveal(self, party: Party, letter: Letter) -> Tree:
        shares = party.reveal(set(_clients(letter)))
        self._delete()
        return {"shares": as_tensor([shares[client] for client in sorted(shares)])}

    def _keep(self, party: Party) -> None:
        self._write("party.json", party.dumps().encode())

    def _write(self, name: str, data: bytes) -> None:
        partial = self.folder / f".{name}-{uuid.uuid4().hex}"
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.folder / name)

    def _delete(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def as_tensor(rows: list[bytes]) -> Tensor:
    """Rows of equally many bytes."""
    return torch.from_numpy(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1).copy())


def as_rows(rows: Tensor) -> list[bytes]:
    return [row.tobytes() for row in rows.numpy()]


def _rows(letter: Letter, name: str) -> list[bytes]:
    found = dict(named_leaves(letter.tree)).get(name)
    if found is None or found.dtype != torch.uint8 or found.ndim != 2:
        raise RefusedError(f"{name} are not rows of bytes")
    return as_rows(found)


def _clients(letter: Letter) -> list[int]:
    values = letter.values.get("clients")
    if not isinstance(values, list) or not all(isinstance(c, int) and c >= 0 for c in values) or len(set(values)) < len(values):
        raise RefusedError("clients is not a list of different clients")
    return [int(client) for client in values]
