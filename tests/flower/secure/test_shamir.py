"""Shamir's secret sharing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")
from fedfew.flower.secure import keys, shamir


@settings(max_examples=30, deadline=None)
@given(
    secret=st.binary(min_size=32, max_size=32), clients=st.sets(st.integers(0, 10_000), min_size=1, max_size=9), data=st.data()
)
def test_any_threshold_of_shares_gives_the_secret_back(secret: bytes, clients: set[int], data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, len(clients)))
    shares = shamir.split(secret, clients, threshold)
    chosen = data.draw(st.permutations(sorted(clients)))[: data.draw(st.integers(threshold, len(clients)))]
    assert shamir.combine({client: shares[client] for client in chosen}, threshold) == secret


def test_fewer_shares_fit_every_secret_equally_well() -> None:
    """Two of three shares, with a third made up so that another secret comes out: nothing in the two speaks against it."""
    secret, other = keys.fresh(), keys.fresh()
    shares = shamir.split(secret, range(3), 3)
    p = shamir.PRIME
    # f(0) = 3 f(1) − 3 f(2) + f(3) for a polynomial of degree 2, so f(3) follows from any wanted f(0).
    made_up = (int.from_bytes(other) - 3 * int.from_bytes(shares[0]) + 3 * int.from_bytes(shares[1])) % p
    assert shamir.combine({0: shares[0], 1: shares[1], 2: made_up.to_bytes(shamir.SHARE_BYTES)}, 3) == other


def test_shares_of_one_secret_differ_from_call_to_call_and_from_each_other() -> None:
    many = [share for _ in range(4) for share in shamir.split(bytes(32), range(5), 2).values()]
    assert len(set(many)) == 20


def test_shares_that_are_too_few_or_do_not_belong_together_are_refused() -> None:
    a, b = shamir.split(bytes(32), range(3), 2), shamir.split(bytes(32), range(3), 2)
    with pytest.raises(ValueError, match="1 shares, but 2 are needed"):
        shamir.combine({0: a[0]}, 2)
    with pytest.raises(ValueError, match="do not fit together"):
        shamir.combine({0: a[0], 1: b[1]}, 2)
    with pytest.raises(ValueError, match="a secret has 32 bytes"):
        shamir.split(bytes(31), range(3), 2)
    with pytest.raises(ValueError, match="threshold must be from 1 to the number of clients"):
        shamir.split(bytes(32), range(3), 4)
