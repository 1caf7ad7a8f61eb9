"""The primitives: masks, shares, keys and sealed letters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from fedfew.flower.secure import ProtocolError, keys, mask_stream, shamir

SESSION = b"s" * 16


def drawn(seed: bytes, size: int) -> np.ndarray:
    target = np.zeros(size, np.uint64)
    mask_stream.add(target, seed)
    return target


def test_a_mask_is_the_chacha20_key_stream_of_rfc_8439() -> None:
    """RFC 8439, appendix A.1, test vector 1: key, nonce and counter all zero."""
    first = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert drawn(bytes(32), 4).tobytes() == first


def test_a_mask_goes_on_over_pieces_and_is_taken_away_again() -> None:
    seed, size = keys.fresh(), 2 * mask_stream.PIECE + 17
    whole = drawn(seed, size)
    np.testing.assert_array_equal(drawn(seed, mask_stream.PIECE + 3), whole[: mask_stream.PIECE + 3])
    assert len(np.unique(whole)) == size  # pieces do not repeat
    mask_stream.add(whole, seed, subtract=True)
    assert not whole.any()


def test_masks_of_a_wrong_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="a seed has 32 bytes, not 31"):
        mask_stream.add(np.zeros(3, np.uint64), bytes(31))
    with pytest.raises(ValueError, match="one axis"):
        mask_stream.add(np.zeros((3, 3), np.uint64), bytes(32))


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
    assert shamir.combine({0: shares[0], 1: shares[1], 2: made_up.to_bytes(shamir.SHARE)}, 3) == other


def test_shares_of_one_secret_differ_from_call_to_call_and_from_each_other() -> None:
    many = [share for _ in range(4) for share in shamir.split(bytes(32), range(5), 2).values()]
    assert len(set(many)) == 20


def test_shares_that_are_too_few_or_do_not_belong_together_are_refused() -> None:
    a, b = shamir.split(bytes(32), range(3), 2), shamir.split(bytes(32), range(3), 2)
    with pytest.raises(ValueError, match="1 shares, but 2 are needed"):
        shamir.combine({0: a[0]}, 2)
    with pytest.raises(ValueError, match="do not belong together"):
        shamir.combine({0: a[0], 1: b[1]}, 2)
    with pytest.raises(ValueError, match="a secret has 32 bytes"):
        shamir.split(bytes(31), range(3), 2)
    with pytest.raises(ValueError, match="threshold must be from 1 to the number of clients"):
        shamir.split(bytes(32), range(3), 4)


def test_two_clients_agree_and_a_third_or_another_session_does_not() -> None:
    private = [keys.fresh() for _ in range(3)]
    seeds = {
        (i, j): keys.seed_of_pair(private[i], keys.public(private[j]), SESSION) for i, j in itertools.permutations(range(3), 2)
    }
    assert all(seeds[i, j] == seeds[j, i] for i, j in seeds)
    assert len(set(seeds.values())) == 3
    assert keys.seed_of_pair(private[0], keys.public(private[1]), b"t" * 16) != seeds[0, 1]


def test_a_sealed_letter_opens_for_its_receiver_alone_and_unchanged_alone() -> None:
    ann, bob, eve = (keys.fresh() for _ in range(3))
    sealed = keys.seal(ann, keys.public(bob), SESSION, 1, 2, b"share")
    assert keys.unseal(bob, keys.public(ann), SESSION, 1, 2, sealed) == b"share"
    assert keys.seal(ann, keys.public(bob), SESSION, 1, 2, b"share") != sealed
    for private, session, sender, receiver in [
        (eve, SESSION, 1, 2),
        (bob, b"t" * 16, 1, 2),
        (bob, SESSION, 2, 1),
        (bob, SESSION, 1, 3),
    ]:
        with pytest.raises(ProtocolError, match="damaged"):
            keys.unseal(private, keys.public(ann), session, sender, receiver, sealed)
    for position in (0, 12, len(sealed) - 1):  # nonce, text, tag
        changed = bytearray(sealed)
        changed[position] ^= 1
        with pytest.raises(ProtocolError, match="the sealed shares of client 1 are damaged"):
            keys.unseal(bob, keys.public(ann), SESSION, 1, 2, bytes(changed))
    with pytest.raises(ProtocolError, match="damaged"):
        keys.unseal(bob, keys.public(ann), SESSION, 1, 2, b"")


@pytest.mark.parametrize("peer", [bytes(32), b"short"])
def test_a_public_key_that_would_make_everybody_agree_is_refused(peer: bytes) -> None:
    with pytest.raises(ProtocolError, match="a public key is none"):
        keys.seed_of_pair(keys.fresh(), peer, SESSION)


def test_a_commitment_fits_its_seed_and_session_only() -> None:
    seed = keys.fresh()
    assert keys.commitment(seed, SESSION) == keys.commitment(seed, SESSION)
    assert keys.commitment(seed, SESSION) != keys.commitment(seed, b"t" * 16) != keys.commitment(keys.fresh(), SESSION)
