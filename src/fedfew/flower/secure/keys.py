"""What two clients agree on without the server: seeds of masks, and letters only the other can open.

X25519 and HKDF-SHA256; letters are sealed by ChaCha20-Poly1305. Every key is bound to the session and to its purpose.
"""

from __future__ import annotations

import secrets
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedfew.flower.secure import ProtocolError

KEY, NONCE, TAG = 32, 12, 16  # bytes


def fresh() -> bytes:
    """32 random bytes: a private key, or a seed."""
    return secrets.token_bytes(KEY)


def public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def commitment(seed: bytes, session: bytes) -> bytes:
    """Says nothing of a random seed, but only that seed fits it."""
    return sha256(b"fedfew commitment" + session + seed).digest()


def seed_of_pair(private: bytes, peer: bytes, session: bytes) -> bytes:
    """The seed of the mask that two clients share: the same from either's private and the other's public key."""
    return _agreed(private, peer, b"fedfew mask" + session)


def seal(private: bytes, peer: bytes, session: bytes, sender: int, receiver: int, text: bytes) -> bytes:
    """A text that only the receiver can read, who will notice a change or another sender."""
    nonce = secrets.token_bytes(NONCE)
    box = ChaCha20Poly1305(_agreed(private, peer, b"fedfew channel" + session))
    return nonce + box.encrypt(nonce, text, _address(sender, receiver))


def unseal(private: bytes, peer: bytes, session: bytes, sender: int, receiver: int, sealed: bytes) -> bytes:
    box = ChaCha20Poly1305(_agreed(private, peer, b"fedfew channel" + session))
    try:
        return box.decrypt(sealed[:NONCE], sealed[NONCE:], _address(sender, receiver))
    except (InvalidTag, ValueError):
        raise ProtocolError(f"the sealed shares of client {sender} are damaged, or not meant for client {receiver}") from None


def _address(sender: int, receiver: int) -> bytes:
    return sender.to_bytes(8) + receiver.to_bytes(8)


def _agreed(private: bytes, peer: bytes, purpose: bytes) -> bytes:
    try:
        common = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:  # too short, or a point of small order, with which everybody would agree on zero
        raise ProtocolError("a public key is none") from None
    return HKDF(SHA256(), KEY, salt=None, info=purpose).derive(common)
