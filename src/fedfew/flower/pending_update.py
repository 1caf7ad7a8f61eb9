"""A site's side of masked aggregation: its update stays at the site until it is masked (:mod:`fedfew.flower.secure`).
Experimental.

    train       the update is saved here; public keys are sent in its place
    share-keys  the site's secrets are sent in shares, encrypted for each of the other sites
    mask        the update is sent, scaled by the weights received and masked
    reveal      one share of a secret of each site is sent, and everything saved here is deleted

RUN/masked/client.json and RUN/masked/update.safetensors hold it between messages, each of which may reach another process.
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
from fedfew.flower.messages import MASK, SHARE_KEYS, RefusedError, SiteMessage
from fedfew.flower.secure.client import MaskingClient, PublicKeys
from fedfew.flower.secure.fixed_point import FixedPoint
from fedfew.flower.secure.weighting import scaled
from fedfew.stack import Tree, from_named, leaves, named_leaves, tree_map
from fedfew.util.files import folder_locked


class PendingUpdate:
    """A site's update and secrets between the steps of one round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "masked"

    def begin(self, client: int, session: str, update: Tree, max_norm: float) -> str:
        """Save an update, shortened to ``max_norm`` (0: as it is); the public keys to send for it. An older one is deleted."""
        if not all(bool(t.isfinite().all()) for t in leaves(update)):
            raise ValueError("the update is not finite: it would spoil the sum, and nobody could tell whose it was")
        length = norm(update)
        if 0 < max_norm < length:
            update = tree_map(lambda t: t * (max_norm / length) if t.is_floating_point() else t, update)
        masking = MaskingClient.begin(client, bytes.fromhex(session))
        with folder_locked(self.folder.parent):
            self._delete()
            self.folder.mkdir(mode=0o700)
            self._write("update.safetensors", save({path: t.contiguous() for path, t in named_leaves(update)}))
            self._save(masking)
        return masking.public.dumps().hex()

    def handle(self, message: SiteMessage, most_weight: float) -> Tree:
        """The arrays to send for a later step. The step is saved first, so that no other process repeats it."""
        with folder_locked(self.folder.parent):
            try:
                masking = MaskingClient.loads((self.folder / "client.json").read_text())
            except FileNotFoundError:
                raise RefusedError("no update is pending here") from None
            if message.text("session") != masking.session.hex():
                raise RefusedError("the update pending here is of another session")
            if message.kind == SHARE_KEYS:
                return self._share_keys(masking, message)
            if message.kind == MASK:
                return self._mask(masking, message, most_weight)
            return self._reveal(masking, message)

    def _share_keys(self, masking: MaskingClient, message: SiteMessage) -> Tree:
        keys = dict(zip(_clients(message), _rows(message, "keys"), strict=True))
        sealed = masking.share_keys({c: PublicKeys.loads(row) for c, row in keys.items()}, message.integer("threshold"))
        self._save(masking)
        return {"sealed": as_tensor([sealed[client] for client in sorted(sealed)])}

    def _mask(self, masking: MaskingClient, message: SiteMessage, most_weight: float) -> Tree:
        update = from_named(load((self.folder / "update.safetensors").read_bytes()))
        weights = message.numbers("weights", message.integer("models", 1))
        if not all(0 <= weight <= most_weight for weight in weights):
            raise RefusedError(f"a weight of this site is not from 0 to {most_weight:g}, the most it allows")
        fixed_point = FixedPoint(message.number("clip"), len(masking.participants))
        row = scaled(update, weights)
        if clipped := fixed_point.clipped(row):
            print(
                f"{clipped} of {len(row)} numbers of this site's update are beyond ±{fixed_point.clip:g} and were clipped: "
                "raise mask-clip",
                flush=True,
            )
        sealed = dict(zip(_clients(message), _rows(message, "sealed"), strict=True))
        masked = masking.mask(fixed_point.encode(row), sealed)
        self._save(masking)
        return {"masked": torch.from_numpy(masked.view(np.int64))}

    def _reveal(self, masking: MaskingClient, message: SiteMessage) -> Tree:
        shares = masking.reveal(set(_clients(message)))
        self._delete()
        return {"shares": as_tensor([shares[client] for client in sorted(shares)])}

    def _save(self, masking: MaskingClient) -> None:
        self._write("client.json", masking.dumps().encode())

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


def _rows(message: SiteMessage, name: str) -> list[bytes]:
    found = dict(named_leaves(message.tree)).get(name)
    if found is None or found.dtype != torch.uint8 or found.ndim != 2:
        raise RefusedError(f"{name} are not rows of bytes")
    return as_rows(found)


def _clients(message: SiteMessage) -> list[int]:
    values = message.values.get("clients")
    if not isinstance(values, list) or not all(isinstance(c, int) and c >= 0 for c in values) or len(set(values)) < len(values):
        raise RefusedError("clients is not a list of different clients")
    return [int(client) for client in values]
