"""A round of the protocol: the sum is the plain sum, drop-outs or not, and nothing else comes out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

pytest.importorskip("cryptography")

from fedfew.flower.secure import ProtocolError, TooFewError, keys, mask_stream, shamir
from fedfew.flower.secure.client import Party, PublicKeys, usual_threshold
from fedfew.flower.secure.fixed_point import Ring
from fedfew.flower.secure.server import Adder
from tests.flower.secure.rounds import Round, plain_sum, random_values

STEPS = ["share", "mask", "reveal"]


@pytest.mark.parametrize("clients", [3, 4, 7])
def test_the_sum_is_the_plain_sum(clients: int) -> None:
    values = random_values(clients, 50)
    np.testing.assert_array_equal(Round(values).run(), plain_sum(values, list(values)))


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(4, 9), data=st.data())
def test_the_sum_is_that_of_those_who_uploaded_whoever_drops_out_when(clients: int, data: st.DataObject) -> None:
    most = clients - usual_threshold(clients)
    gone = data.draw(st.dictionaries(st.integers(0, clients - 1), st.sampled_from(STEPS), max_size=most))
    values = random_values(clients, 5, seed=clients)
    uploaded = [client for client in values if gone.get(client) not in ("share", "mask")]
    np.testing.assert_array_equal(Round(values, gone).run(), plain_sum(values, uploaded))


@pytest.mark.parametrize("step", STEPS)
def test_one_drop_out_too_many_loses_the_round_and_unmasks_nothing(step: str) -> None:
    """Seven clients, five are needed: three are gone at this step."""
    round = Round(random_values(7, 5), {0: step, 3: step, 6: step})
    with pytest.raises(TooFewError, match=r"4 of 7 clients .*, but 5 are needed: nothing is unmasked"):
        round.run()
    with pytest.raises(TooFewError):
        round.adder.unmask()


def test_two_clients_are_too_few() -> None:
    with pytest.raises(TooFewError, match="at least 3 clients in a round, 2 answered"):
        Round(random_values(2, 5)).begin()
    parties = {client: Party.begin(client, b"s" * 16) for client in range(2)}
    with pytest.raises(TooFewError, match="2 clients are too few to hide among"):
        parties[0].share({client: party.public for client, party in parties.items()}, 2)


def test_thresholds() -> None:
    assert [usual_threshold(n) for n in (3, 4, 5, 6, 9, 10)] == [3, 3, 4, 5, 7, 7]


# -- what the server sees ------------------------------------------------------------------------------------------------------


def uniform(upload: np.ndarray) -> float:
    """The least p-value of: all values (KS), and each of their eight bytes (χ² over 256 values), under uniformity."""
    by_byte = upload.view(np.uint8).reshape(-1, 8)
    chi = [stats.chisquare(np.bincount(by_byte[:, b], minlength=256)).pvalue for b in range(8)]
    return float(min(stats.kstest(upload / 2**64, "uniform").pvalue, *chi))


def test_a_single_upload_of_a_constant_update_looks_uniform() -> None:
    """A billionth: so seldom does a uniform one fail by chance; the update itself has a p-value of 0."""
    update = Ring(1.0, 4).encode(np.full(100_000, 0.25))
    assert uniform(update) == 0.0
    round = Round(dict.fromkeys(range(4), update), {3: "mask"})
    total = round.run()
    assert all(uniform(upload) > 1e-9 for upload in round.uploads.values())
    np.testing.assert_array_equal(Ring(1.0, 4).decode(total), 0.75)


def test_uploads_of_the_same_update_have_nothing_in_common() -> None:
    update = Ring(1.0, 3).encode(np.full(100_000, 0.25))
    first, second = Round(dict.fromkeys(range(3), update)), Round(dict.fromkeys(range(3), update))
    first.run()
    second.run()
    for a, b in [(first.uploads[0], first.uploads[1]), (first.uploads[0], second.uploads[0])]:
        assert uniform(a - b) > 1e-9


def test_partial_sums_look_uniform_too() -> None:
    """Own masks: even without the masks of pairs, which cancel in the sum over all, nothing can be read."""
    update = Ring(1.0, 3).encode(np.full(100_000, 0.25))
    round = Round(dict.fromkeys(range(3), update))
    round.run()
    assert uniform(round.uploads[0] + round.uploads[1] + round.uploads[2]) > 1e-9


def test_an_upload_that_comes_late_stays_masked_though_its_mask_key_is_known() -> None:
    """Client 3 counts as dropped out, so the server learns its mask key; then its upload arrives after all."""
    update = Ring(1.0, 4).encode(np.full(100_000, 0.25))
    round = Round(dict.fromkeys(range(4), update), {3: "mask"})
    round.run()
    late = round.party(3).mask(update, round.adder.pass_on()[3])
    private = shamir.combine({by: shares[3] for by, shares in round.adder._revealed.items()}, round.adder.threshold)
    assert keys.public(private) == round.adder.roster[3].mask
    for other in range(3):
        mask_stream.add(late, keys.seed_of_pair(private, round.adder.roster[other].mask, round.adder.session), subtract=other > 3)
    assert uniform(late) > 1e-9
    mask_stream.add(late, round.party(3).seed, subtract=True)  # what only client 3 knows
    np.testing.assert_array_equal(late, update)


# -- what a client refuses -----------------------------------------------------------------------------------------------------


def after(step: str, clients: int = 4) -> Round:
    round = Round(random_values(clients, 5))
    round.begin()
    for name in ["share", "mask", "reveal"]:
        getattr(round, name)()
        if name == step:
            break
    return round


def test_both_secrets_of_a_client_are_never_revealed() -> None:
    round = after("mask")
    party = round.party(0)
    first = party.reveal({0, 1, 2, 3})
    assert first[1] == party.shares[1][0]
    with pytest.raises(ProtocolError, match="'reveal' was asked for, but this client's next step is 'nothing'"):
        party.reveal({0, 2, 3})
    again = Party.loads(party.dumps())  # the next process knows it as well
    with pytest.raises(ProtocolError, match="each is taken once"):
        again.reveal({0, 1, 2, 3})
    other = round.party(0)
    revealed = other.reveal({0, 2, 3})
    assert revealed[1] == other.shares[1][1]
    assert revealed[2] == other.shares[2][0]


@pytest.mark.parametrize("survivors", [{1, 2, 3}, {0, 1, 2, 3, 4}])
def test_survivors_that_cannot_be_are_refused(survivors: set[int]) -> None:
    with pytest.raises(ProtocolError, match="the survivors are not this client and others"):
        after("mask").party(0).reveal(survivors)


def test_a_sum_of_too_few_is_not_unmasked_by_a_client() -> None:
    with pytest.raises(TooFewError, match="2 clients have uploaded, 3 are needed"):
        after("mask").party(0).reveal({0, 1})


def test_an_update_is_masked_once_only() -> None:
    """Twice under the same masks, with other weights: the difference would be the bare update."""
    round = after("share")
    party, letters = round.party(0), round.adder.pass_on()[0]
    party.mask(round.values[0], letters)
    with pytest.raises(ProtocolError, match="'mask' was asked for, but this client's next step is 'reveal'"):
        party.mask(round.values[0], letters)


def test_secrets_are_shared_once_only_and_steps_have_an_order() -> None:
    round = after("share")
    with pytest.raises(ProtocolError, match="'share' was asked for, but this client's next step is 'mask'"):
        round.party(0).share(round.adder.roster, 3)
    with pytest.raises(ProtocolError, match="'reveal' was asked for, but this client's next step is 'mask'"):
        round.party(0).reveal({0, 1, 2})


@pytest.mark.parametrize(("threshold", "allowed"), [(1, False), (2, False), (3, True), (4, True), (5, False)])
def test_a_threshold_of_half_or_less_is_refused(threshold: int, allowed: bool) -> None:
    round = Round(random_values(4, 5))
    round.begin()
    if allowed:
        assert len(round.party(0).share(round.adder.roster, threshold)) == 3
    else:
        with pytest.raises(ProtocolError, match=f"a threshold of {threshold} of 4 clients"):
            round.party(0).share(round.adder.roster, threshold)


def test_a_roster_with_changed_or_doubled_keys_is_refused() -> None:
    round = Round(random_values(4, 5))
    round.begin()
    stranger = Party.begin(0, round.adder.session).public
    with pytest.raises(ProtocolError, match="other keys of this client than its own"):
        round.party(0).share(round.adder.roster | {0: stranger}, 3)
    doubled = round.adder.roster | {1: replace(round.adder.roster[1], mask=round.adder.roster[2].mask)}
    with pytest.raises(ProtocolError, match="two keys on the roster are the same"):
        round.party(0).share(doubled, 3)


def test_damaged_or_misdirected_shares_are_refused() -> None:
    round = after("share")
    letters = round.adder.pass_on()
    changed = letters[0] | {1: letters[0][1][:-1] + bytes([letters[0][1][-1] ^ 1])}
    swapped = letters[0] | {1: letters[0][2]}
    for wrong in (changed, swapped, letters[0] | {1: letters[2][1]}):
        with pytest.raises(ProtocolError, match="the sealed shares of client 1 are damaged"):
            round.party(0).mask(round.values[0], wrong)
    with pytest.raises(ProtocolError, match="not on the roster"):
        round.party(0).mask(round.values[0], letters[0] | {7: letters[0][1]})
    with pytest.raises(TooFewError, match="2 of 4 clients have shared their secrets, 3 are needed"):
        round.party(0).mask(round.values[0], {1: letters[0][1]})


def test_sealed_shares_of_another_size_are_refused() -> None:
    round = after("share")
    one, letters = round.party(1), round.adder.pass_on()[0]
    peer = round.adder.roster[0].channel
    letters[1] = keys.seal(one.channel_key, peer, round.adder.session, 1, 0, b"short")
    with pytest.raises(ProtocolError, match="the sealed shares of client 1 are damaged"):
        round.party(0).mask(round.values[0], letters)


# -- what the server refuses ---------------------------------------------------------------------------------------------------


def test_shares_of_another_polynomial_are_noticed() -> None:
    round = after("reveal")
    round.adder._revealed[0] = dict(round.adder._revealed[0]) | {1: bytes(shamir.SHARE)}
    with pytest.raises(ProtocolError, match="the shares of client 1's secret do not belong together: nothing is unmasked"):
        round.adder.unmask()


def test_false_shares_are_noticed_before_anything_is_unmasked() -> None:
    for gone, words in (({}, "own mask are wrong|do not belong"), ({3: "mask"}, "mask key are wrong|do not belong")):
        round = Round(random_values(4, 5), gone)
        round.begin()
        round.share()
        round.mask()
        round.reveal()
        liar = dict(round.adder._revealed[0])
        victim = 3 if gone else 1
        liar[victim] = (int.from_bytes(liar[victim]) ^ 1).to_bytes(shamir.SHARE)
        round.adder._revealed[0] = liar
        with pytest.raises(ProtocolError, match=words):
            round.adder.unmask()


def test_the_server_refuses_what_does_not_fit() -> None:
    round = after("mask")
    adder, shares = round.adder, round.party(0).reveal({0, 1, 2, 3})
    with pytest.raises(ProtocolError, match="client 0 has joined already"):
        adder.join(0, adder.roster[0])
    fresh = Party.begin(9, adder.session).public
    for copied in (replace(fresh, mask=adder.roster[0].channel), replace(fresh, channel=fresh.mask)):
        with pytest.raises(ProtocolError, match="its keys are in use already"):
            adder.join(9, copied)
    with pytest.raises(ProtocolError, match="a public key is none"):
        adder.join(9, replace(fresh, mask=bytes(32)))
    with pytest.raises(ProtocolError, match="are not for all others"):
        adder.share(0, {1: b""})
    with pytest.raises(ProtocolError, match="another size"):
        adder.share(0, dict.fromkeys((1, 2, 3), b""))
    with pytest.raises(ProtocolError, match="client 0 has uploaded already"):
        adder.upload(0, round.uploads[0])
    adder.uploaded.discard(0)
    with pytest.raises(ProtocolError, match=r"uploaded uint64 of shape \[4\], not \[5\] of uint64"):
        adder.upload(0, round.uploads[0][:4])
    with pytest.raises(ProtocolError, match="client 0 has revealed already, or has not uploaded"):
        adder.reveal(0, shares)
    adder.uploaded.add(0)
    with pytest.raises(ProtocolError, match="has not revealed a share for each client"):
        adder.reveal(0, {1: shares[1]})
    with pytest.raises(ProtocolError, match="the roster is not closed yet"):
        Adder(5).pass_on()
    with pytest.raises(ProtocolError, match="public keys have 96 bytes, not 3"):
        PublicKeys.loads(b"abc")


def test_a_party_read_back_is_the_same_party() -> None:
    party = after("mask").party(2)
    assert Party.loads(party.dumps()) == party
    assert party.step == "reveal"
