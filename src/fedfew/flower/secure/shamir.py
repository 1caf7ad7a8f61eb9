"""Shamir's secret sharing: 32 bytes in n shares; any t of them reconstruct the secret, fewer reveal nothing about it.

The secret is the value at 0 of a random polynomial of degree t − 1 over the integers modulo the Mersenne prime 2⁵²¹ − 1; a share
is its value at the client's number + 1.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping

PRIME = 2**521 - 1
SECRET_BYTES, SHARE_BYTES = 32, 66


def split(secret: bytes, clients: Collection[int], threshold: int) -> dict[int, bytes]:
    """A share per client (numbers ≥ 0); ``threshold`` of them reconstruct the secret."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= len(set(clients)) == len(clients):
        raise ValueError(f"threshold must be from 1 to the number of clients ({len(set(clients))}), not {threshold}")
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {client: _value(coefficients, client + 1).to_bytes(SHARE_BYTES) for client in clients}


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from ``threshold`` or more shares by client."""
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares, but {threshold} are needed")
    chosen = sorted(shares)[:threshold]
    secret = 0
    for i in chosen:
        numerator, denominator = 1, 1
        for j in chosen:
            if j != i:
                numerator = numerator * (j + 1) % PRIME
                denominator = denominator * (j - i) % PRIME
        secret += int.from_bytes(shares[i]) * numerator * pow(denominator, -1, PRIME)
    secret %= PRIME
    if secret >= 2 ** (8 * SECRET_BYTES):
        raise ValueError("the shares do not fit together")
    return secret.to_bytes(SECRET_BYTES)


def _value(coefficients: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value
