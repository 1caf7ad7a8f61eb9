"""Values of a message are checked when they are read."""

import pytest

from fedfew.flower.messages import RefusedError, SiteMessage


def test_wrong_values_are_refused():
    message = SiteMessage("train", {"n": 3, "yes": True, "nan": float("nan"), "few": [1.0], "word": "x"})
    assert message.integer("n", 1, 3) == 3
    assert message.number("n") == 3.0
    assert message.number("few") == 1.0
    assert message.text("word") == "x"
    assert message.flag("yes")
    assert not message.flag("n")
    for ask in (
        lambda: message.integer("n", 4),
        lambda: message.integer("n", 0, 2),
        lambda: message.integer("yes"),
        lambda: message.number("nan"),
        lambda: message.number("yes"),
        lambda: message.number("absent"),
        lambda: message.numbers("few", 2),
        lambda: message.text("n"),
    ):
        with pytest.raises(RefusedError):
            ask()
