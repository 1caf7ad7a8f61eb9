"""What a client refuses in masked aggregation."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")
from fedfew.flower.secure import ProtocolError, TooFewError, keys
from fedfew.flower.secure.client import MaskingClient, usual_threshold
from tests.flower.secure.rounds import Round, after, random_values


def test_thresholds() -> None:
    assert [usual_threshold(n) for n in (3, 4, 5, 6, 9, 10)] == [3, 3, 4, 5, 7, 7]


def test_both_secrets_of_a_client_are_never_revealed() -> None:
    round = after("mask")
    client = round.client(0)
    first = client.reveal({0, 1, 2, 3})
    assert first[1] == client.shares[1][0]
    with pytest.raises(ProtocolError, match="the server asks for 'reveal', but this client's next step is 'nothing'"):
        client.reveal({0, 2, 3})
    again = MaskingClient.loads(client.dumps())  # the next process knows it as well
    with pytest.raises(ProtocolError, match="each is taken once"):
        again.reveal({0, 1, 2, 3})
    other = round.client(0)
    revealed = other.reveal({0, 2, 3})
    assert revealed[1] == other.shares[1][1]
    assert revealed[2] == other.shares[2][0]


@pytest.mark.parametrize("survivors", [{1, 2, 3}, {0, 1, 2, 3, 4}])
def test_survivors_that_cannot_be_are_refused(survivors: set[int]) -> None:
    with pytest.raises(ProtocolError, match="the survivors are not this client and others"):
        after("mask").client(0).reveal(survivors)


def test_a_sum_of_too_few_is_not_unmasked_by_a_client() -> None:
    with pytest.raises(TooFewError, match="2 clients have uploaded, 3 are needed"):
        after("mask").client(0).reveal({0, 1})


def test_an_update_is_masked_once_only() -> None:
    """Twice under the same masks, with other weights: the difference would be the bare update."""
    round = after("share_keys")
    client, texts = round.client(0), round.server.forwarded_shares()[0]
    client.mask(round.values[0], texts)
    with pytest.raises(ProtocolError, match="the server asks for 'mask', but this client's next step is 'reveal'"):
        client.mask(round.values[0], texts)


def test_secrets_are_shared_once_only_and_steps_have_an_order() -> None:
    round = after("share_keys")
    with pytest.raises(ProtocolError, match="the server asks for 'share_keys', but this client's next step is 'mask'"):
        round.client(0).share_keys(round.server.participants, 3)
    with pytest.raises(ProtocolError, match="the server asks for 'reveal', but this client's next step is 'mask'"):
        round.client(0).reveal({0, 1, 2})


@pytest.mark.parametrize(("threshold", "allowed"), [(1, False), (2, False), (3, True), (4, True), (5, False)])
def test_a_threshold_of_half_or_less_is_refused(threshold: int, allowed: bool) -> None:
    round = Round(random_values(4, 5))
    round.begin()
    if allowed:
        assert len(round.client(0).share_keys(round.server.participants, threshold)) == 3
    else:
        with pytest.raises(ProtocolError, match=f"the threshold of {threshold} of 4 clients"):
            round.client(0).share_keys(round.server.participants, threshold)


def test_participants_with_changed_or_doubled_keys_is_refused() -> None:
    round = Round(random_values(4, 5))
    round.begin()
    stranger = MaskingClient.begin(0, round.server.session).public
    with pytest.raises(ProtocolError, match="do not contain this client's own"):
        round.client(0).share_keys(round.server.participants | {0: stranger}, 3)
    doubled = round.server.participants | {1: replace(round.server.participants[1], mask=round.server.participants[2].mask)}
    with pytest.raises(ProtocolError, match="two of the participants' keys are the same"):
        round.client(0).share_keys(doubled, 3)


def test_damaged_or_misdirected_shares_are_refused() -> None:
    round = after("share_keys")
    texts = round.server.forwarded_shares()
    changed = texts[0] | {1: texts[0][1][:-1] + bytes([texts[0][1][-1] ^ 1])}
    swapped = texts[0] | {1: texts[0][2]}
    for wrong in (changed, swapped, texts[0] | {1: texts[2][1]}):
        with pytest.raises(ProtocolError, match="the encrypted shares of client 1 are damaged"):
            round.client(0).mask(round.values[0], wrong)
    with pytest.raises(ProtocolError, match="that do not participate"):
        round.client(0).mask(round.values[0], texts[0] | {7: texts[0][1]})
    with pytest.raises(TooFewError, match="2 of 4 clients have shared their secrets, 3 are needed"):
        round.client(0).mask(round.values[0], {1: texts[0][1]})


def test_sealed_shares_of_another_size_are_refused() -> None:
    round = after("share_keys")
    one, texts = round.client(1), round.server.forwarded_shares()[0]
    peer = round.server.participants[0].channel
    texts[1] = keys.seal(one.channel_key, peer, round.server.session, 1, 0, b"short")
    with pytest.raises(ProtocolError, match="the encrypted shares of client 1 are damaged"):
        round.client(0).mask(round.values[0], texts)


def test_a_client_read_back_is_the_same_client() -> None:
    client = after("mask").client(2)
    assert MaskingClient.loads(client.dumps()) == client
    assert client.step == "reveal"
