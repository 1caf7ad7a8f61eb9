"""What two clients agree on without the server: seeds of masks, and encryption that only the other can open.

X25519 and HKDF-SHA256; encryption is ChaCha20-Poly1305. Every key is bound to the session and to its purpose.
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

KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16


def fresh() -> bytes:
    """32 random bytes: a private key, or a seed."""
    return secrets.token_bytes(KEY_BYTES)


def public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def commitment(seed: bytes, session: bytes) -> bytes:
    """A hash that reveals nothing about a random seed, and that no other seed matches."""
    return sha256(b"fedfew commitment" + session + seed).digest()


def pair_seed(private: bytes, peer: bytes, session: bytes) -> bytes:
    """The seed of the mask of a pair of clients: the same from either's private and the other's public key."""
    return _agree(private, peer, b"fedfew mask" + session)


def seal(private: bytes, peer: bytes, session: bytes, sender: int, receiver: int, text: bytes) -> bytes:
    """Encrypt a text for the receiver, who will notice a change or another sender."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    cipher = ChaCha20Poly1305(_agree(private, peer, b"fedfew channel" + session))
    return nonce + cipher.encrypt(nonce, text, _associated_data(sender, receiver))


def unseal(private: bytes, peer: bytes, session: bytes, sender: int, receiver: int, sealed: bytes) -> bytes:
    cipher = ChaCha20Poly1305(_agree(private, peer, b"fedfew channel" + session))
    try:
        return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _associated_data(sender, receiver))
    except (InvalidTag, ValueError):
        raise ProtocolError(f"the encrypted shares of client {sender} are damaged, or not meant for client {receiver}") from None


def _associated_data(sender: int, receiver: int) -> bytes:
    return sender.to_bytes(8) + receiver.to_bytes(8)


def _agree(private: bytes, peer: bytes, purpose: bytes) -> bytes:
    try:
        common = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:  # wrong length, or a point of small order, with which everybody would agree on zero
        raise ProtocolError("a public key is not a valid X25519 key") from None
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(common)
