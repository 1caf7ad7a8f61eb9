"""What a client refuses in masked aggregation."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")
from fedfew.flower.secure import ProtocolError, TooFewError, WeightError, keys
from fedfew.flower.secure.client import MaskingClient, usual_threshold
from tests.flower.secure.rounds import Round, after, equal, plain_sum, random_values


def test_thresholds() -> None:
    assert [usual_threshold(n) for n in (3, 4, 5, 6, 9, 10)] == [3, 3, 4, 5, 7, 7]


def test_both_secrets_of_a_client_are_never_revealed() -> None:
    round = after("mask")
    client = round.client(0)
    first = client.reveal(equal({0, 1, 2, 3}))
    assert first[1] == client.shares[1][0]
    with pytest.raises(ProtocolError, match="the server asks for 'reveal', but this client's next step is 'nothing'"):
        client.reveal(equal({0, 2, 3}))
    again = MaskingClient.loads(client.dumps())  # the next process knows it as well
    with pytest.raises(ProtocolError, match="each is taken once"):
        again.reveal(equal({0, 1, 2, 3}))
    other = round.client(0)
    revealed = other.reveal(equal({0, 2, 3}))
    assert revealed[1] == other.shares[1][1]
    assert revealed[2] == other.shares[2][0]


@pytest.mark.parametrize("survivors", [{1, 2, 3}, {0, 1, 2, 3, 4}])
def test_survivors_that_cannot_be_are_refused(survivors: set[int]) -> None:
    with pytest.raises(ProtocolError, match="the survivors are not this client and others"):
        after("mask").client(0).reveal(equal(survivors))


def test_a_sum_of_too_few_is_not_unmasked_by_a_client() -> None:
    with pytest.raises(TooFewError, match="2 clients have uploaded, 3 are needed"):
        after("mask").client(0).reveal(equal({0, 1}))


def test_an_update_is_masked_once_only() -> None:
    """Twice under the same masks, with other weights: the difference would be the bare update."""
    round = after("share_keys")
    client, texts = round.client(0), round.server.forwarded_shares()[0]
    client.mask(round.values[0], texts, [0.25])
    with pytest.raises(ProtocolError, match="the server asks for 'mask', but this client's next step is 'reveal'"):
        client.mask(round.values[0], texts, [0.25])


def test_secrets_are_shared_once_only_and_steps_have_an_order() -> None:
    round = after("share_keys")
    with pytest.raises(ProtocolError, match="the server asks for 'share_keys', but this client's next step is 'mask'"):
        round.client(0).share_keys(round.server.participants, 3)
    with pytest.raises(ProtocolError, match="the server asks for 'reveal', but this client's next step is 'mask'"):
        round.client(0).reveal(equal({0, 1, 2}))


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
            round.client(0).mask(round.values[0], wrong, [0.25])
    with pytest.raises(ProtocolError, match="that do not participate"):
        round.client(0).mask(round.values[0], texts[0] | {7: texts[0][1]}, [0.25])
    with pytest.raises(TooFewError, match="2 of 4 clients have shared their secrets, 3 are needed"):
        round.client(0).mask(round.values[0], {1: texts[0][1]}, [0.25])


def test_sealed_shares_of_another_size_are_refused() -> None:
    round = after("share_keys")
    one, texts = round.client(1), round.server.forwarded_shares()[0]
    peer = round.server.participants[0].channel
    texts[1] = keys.seal(one.channel_key, peer, round.server.session, 1, 0, b"short")
    with pytest.raises(ProtocolError, match="the encrypted shares of client 1 are damaged"):
        round.client(0).mask(round.values[0], texts, [0.25])


def test_a_client_read_back_is_the_same_client() -> None:
    client = after("mask").client(2)
    assert MaskingClient.loads(client.dumps()) == client
    assert client.step == "reveal"


def test_clients_refuse_to_unmask_a_sum_in_which_one_would_be_more_than_it_allows() -> None:
    """Four clients, of which client 1 allows 0.3 of a sum. It has 0.25, but when client 3 drops out it would be 1/3 of the rest.

    Any three clients can unmask the sum, so it does not help client 1 if it alone refuses: the others must.
    """
    round = Round(random_values(4, 5), absent={3: "mask"}, most_weight={1: 0.3})
    round.begin()
    round.share_keys()
    round.mask()
    for number in (0, 1, 2):
        with pytest.raises(WeightError, match=r"client 1 would be 0\.333 of the sum of model 0, but allows 0\.3"):
            round.client(number).reveal(equal({0, 1, 2}))
    whole = Round(random_values(4, 5), most_weight={1: 0.3})
    assert (whole.run() == plain_sum(whole.values, [0, 1, 2, 3])).all()


def test_a_client_checks_that_the_weights_it_is_sent_are_its_own() -> None:
    """A server that reports a smaller weight than it handed out would slip past the limits."""
    with pytest.raises(ProtocolError, match="do not contain those by which this client scaled its upload"):
        after("mask").client(0).reveal(equal({0, 1, 2, 3}) | {0: [0.1]})


@pytest.mark.parametrize(
    ("weights", "allowed"), [([1.1, 0.0], 1.0), ([-0.1, 0.0], 1.0), ([0.6, 0.1], 0.5), ([float("nan")], 1.0)]
)
def test_a_client_refuses_weights_beyond_what_it_allows(weights: list[float], allowed: float) -> None:
    round = Round(random_values(4, 5), most_weight={0: allowed})
    round.begin()
    round.share_keys()
    with pytest.raises(WeightError, match=f"a weight of this client is not from 0 to {allowed:g}"):
        round.client(0).mask(round.values[0], round.server.forwarded_shares()[0], weights)
