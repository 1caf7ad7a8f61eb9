"""A round of the protocol: the sum is the plain sum, drop-outs or not, and nothing else comes out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

pytest.importorskip("cryptography")

from fedfew.flower.secure import TooFewError, keys, mask_stream, shamir
from fedfew.flower.secure.client import MaskingClient, usual_threshold
from fedfew.flower.secure.fixed_point import FixedPoint
from tests.flower.secure.rounds import STEPS, Round, plain_sum, random_values


@pytest.mark.parametrize("clients", [3, 4, 7])
def test_the_sum_is_the_plain_sum(clients: int) -> None:
    values = random_values(clients, 50)
    np.testing.assert_array_equal(Round(values).run(), plain_sum(values, list(values)))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(clients=st.integers(4, 9), data=st.data())
def test_the_sum_is_that_of_those_who_uploaded_whoever_drops_out_when(clients: int, data: st.DataObject) -> None:
    most = clients - usual_threshold(clients)
    gone = data.draw(st.dictionaries(st.integers(0, clients - 1), st.sampled_from(STEPS), max_size=most))
    values = random_values(clients, 5, seed=clients)
    uploaded = [client for client in values if gone.get(client) not in ("share_keys", "mask")]
    np.testing.assert_array_equal(Round(values, gone).run(), plain_sum(values, uploaded))


@pytest.mark.parametrize("step", STEPS)
def test_one_drop_out_too_many_loses_the_round_and_unmasks_nothing(step: str) -> None:
    """Seven clients, five are needed: three are gone at this step."""
    round = Round(random_values(7, 5), {0: step, 3: step, 6: step})
    with pytest.raises(TooFewError, match=r"4 of 7 clients .*, but 5 are needed: nothing is unmasked"):
        round.run()
    with pytest.raises(TooFewError):
        round.server.unmask()


def test_two_clients_are_too_few() -> None:
    with pytest.raises(TooFewError, match="at least 3 clients in a round, 2 replied"):
        Round(random_values(2, 5)).begin()
    clients = {number: MaskingClient.begin(number, b"s" * 16) for number in range(2)}
    with pytest.raises(TooFewError, match="2 clients are too few to hide among"):
        clients[0].share_keys({number: client.public for number, client in clients.items()}, 2)


def uniform(upload: np.ndarray) -> float:
    """The least p-value of: all values (KS), and each of their eight bytes (χ² over 256 values), under uniformity."""
    by_byte = upload.view(np.uint8).reshape(-1, 8)
    chi = [stats.chisquare(np.bincount(by_byte[:, b], minlength=256)).pvalue for b in range(8)]
    return float(min(stats.kstest(upload / 2**64, "uniform").pvalue, *chi))


def test_a_single_upload_of_a_constant_update_looks_uniform() -> None:
    """A billionth: so seldom does a uniform one fail by chance; the update itself has a p-value of 0."""
    update = FixedPoint(1.0, 4).encode(np.full(100_000, 0.25))
    assert uniform(update) == 0.0
    round = Round(dict.fromkeys(range(4), update), {3: "mask"})
    total = round.run()
    assert all(uniform(upload) > 1e-9 for upload in round.uploads.values())
    np.testing.assert_array_equal(FixedPoint(1.0, 4).decode(total), 0.75)


def test_uploads_of_the_same_update_have_nothing_in_common() -> None:
    update = FixedPoint(1.0, 3).encode(np.full(100_000, 0.25))
    first, second = Round(dict.fromkeys(range(3), update)), Round(dict.fromkeys(range(3), update))
    first.run()
    second.run()
    for a, b in [(first.uploads[0], first.uploads[1]), (first.uploads[0], second.uploads[0])]:
        assert uniform(a - b) > 1e-9


def test_partial_sums_look_uniform_too() -> None:
    """Own masks: even without the masks of pairs, which cancel in the sum over all, nothing can be read."""
    update = FixedPoint(1.0, 3).encode(np.full(100_000, 0.25))
    round = Round(dict.fromkeys(range(3), update))
    round.run()
    assert uniform(round.uploads[0] + round.uploads[1] + round.uploads[2]) > 1e-9


def test_an_upload_that_comes_late_stays_masked_though_its_mask_key_is_known() -> None:
    """Client 3 counts as dropped out, so the server learns its mask key; then its upload arrives after all."""
    update = FixedPoint(1.0, 4).encode(np.full(100_000, 0.25))
    round = Round(dict.fromkeys(range(4), update), {3: "mask"})
    round.run()
    late = round.client(3).mask(update, round.server.forwarded_shares()[3], [0.25])
    private = shamir.combine({by: shares[3] for by, shares in round.server._revealed.items()}, round.server.threshold)
    assert keys.public(private) == round.server.participants[3].mask
    for other in range(3):
        mask_stream.add(
            late, keys.pair_seed(private, round.server.participants[other].mask, round.server.session), subtract=other > 3
        )
    assert uniform(late) > 1e-9
    mask_stream.add(late, round.client(3).seed, subtract=True)  # what only client 3 knows
    np.testing.assert_array_equal(late, update)


# -- what the server refuses ---------------------------------------------------------------------------------------------------
