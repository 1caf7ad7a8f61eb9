"""A site's side of masked aggregation: its update stays at the site until it is masked (:mod:`fedfew.flower.secure`).
Experimental.

    train       the update is saved here; public keys are sent in its place
    share-keys  the site's secrets are sent in shares, encrypted for each of the other sites
    mask        the update is sent, scaled by the weights received and masked
    reveal      one share of a secret of each site is sent, and everything saved here is deleted

RUN/masked/client and RUN/masked/update hold it between messages, each of which may reach another process. RUN/revealed.json is
the last round for which shares were revealed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedfew.flower import private_files
from fedfew.flower.checks import norm
from fedfew.flower.messages import MASK, SHARE_KEYS, RefusedError, RevealedError, SiteMessage
from fedfew.flower.secure.client import MaskingClient, PublicKeys
from fedfew.flower.secure.fixed_point import FixedPoint
from fedfew.flower.secure.weighting import common_parts, scaled
from fedfew.stack import Tree, from_named, leaves, named_leaves, tree_map
from fedfew.util.files import DamagedFileError, folder_locked


class PendingUpdate:
    """A site's update and secrets between the steps of one round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "masked"
        self._revealed = folder / "revealed.json"

    def check_not_revealed(self, round: int) -> None:
        """Refuse a round for which this site has revealed shares: the difference of two sums is a single update."""
        try:
            revealed = json.loads(private_files.read(self._revealed)) if self._revealed.exists() else 0
        except DamagedFileError as error:  # this round may be the one; the server asks for no round before it
            private_files.write(self._revealed, json.dumps(round).encode())
            raise RevealedError(f"{error}: this site leaves out round {round}, whose shares it may have revealed") from error
        if round <= revealed:
            raise RevealedError(f"round {round} is asked for again, but this site has revealed its shares of round {revealed}")

    def begin(self, client: int, session: str, update: Tree, max_norm: float, most_weight: float) -> str:
        """Save an update, shortened to ``max_norm`` (0: as it is); the public keys to send for it. An older one is deleted."""
        if not all(bool(t.isfinite().all()) for t in leaves(update)):
            raise ValueError("the update is not finite: it would make the sum useless, and the sum does not show whose it was")
        length = norm(update)
        if 0 < max_norm < length:
            update = tree_map(lambda t: t * (max_norm / length) if t.is_floating_point() else t, update)
        masking = MaskingClient.begin(client, bytes.fromhex(session), most_weight)
        with folder_locked(self.folder.parent):
            self._delete()
            private_files.make_folder(self.folder)
            tensors = {path: t.contiguous() for path, t in named_leaves(update)}
            private_files.write(self.folder / "update", save(tensors))
            self._save(masking)
        return masking.public.dumps().hex()

    def handle(self, message: SiteMessage) -> Tree:
        """The arrays to send for a later step. The step is saved first, so that no other process repeats it."""
        with folder_locked(self.folder.parent):
            try:
                masking = MaskingClient.loads(private_files.read(self.folder / "client").decode())
            except FileNotFoundError:
                raise RefusedError("no update is pending here") from None
            if message.text("session") != masking.session.hex():
                raise RefusedError("the update pending here is of another session")
            if message.kind == SHARE_KEYS:
                return self._share_keys(masking, message)
            if message.kind == MASK:
                return self._mask(masking, message)
            return self._reveal(masking, message)

    def _share_keys(self, masking: MaskingClient, message: SiteMessage) -> Tree:
        keys = dict(zip(_clients(message), _rows(message, "keys"), strict=True))
        sealed = masking.share_keys({c: PublicKeys.loads(row) for c, row in keys.items()}, message.integer("threshold"))
        self._save(masking)
        return {"sealed": as_tensor([sealed[client] for client in sorted(sealed)])}

    def _mask(self, masking: MaskingClient, message: SiteMessage) -> Tree:
        update = from_named(load(private_files.read(self.folder / "update")))
        models = message.integer("models", 1)
        weights = message.numbers("weights", models + bool(common_parts(update, models)))
        fixed_point = FixedPoint(message.number("clip"), len(masking.participants))
        row = scaled(update, weights, models)
        if clipped := fixed_point.clipped(row):
            print(
                f"{clipped} of {len(row)} numbers of this site's update are beyond ±{fixed_point.clip:g} and were clipped: "
                "raise mask-clip",
                flush=True,
            )
        sealed = dict(zip(_clients(message), _rows(message, "sealed"), strict=True))
        masked = masking.mask(fixed_point.encode(row), sealed, weights)
        self._save(masking)
        return {"masked": torch.from_numpy(masked.view(np.int64))}

    def _reveal(self, masking: MaskingClient, message: SiteMessage) -> Tree:
        weights = dict(named_leaves(message.tree)).get("weights")
        if weights is None or weights.dtype != torch.float64 or weights.ndim != 2:
            raise RefusedError("weights are not rows of numbers")
        shares = masking.reveal(dict(zip(_clients(message), weights.tolist(), strict=True)))
        private_files.write(self._revealed, json.dumps(message.integer("round", 1)).encode())
        self._delete()
        return {"shares": as_tensor([shares[client] for client in sorted(shares)])}

    def _save(self, masking: MaskingClient) -> None:
        private_files.write(self.folder / "client", masking.dumps().encode())

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
