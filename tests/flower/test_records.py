"""Messages through Flower's records: what comes out is what went in, and nothing that should not come in does."""

import io
import pickle
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedfew.flower.messages import RefusedError, SiteMessage, specs
from fedfew.flower.records import ARRAYS, NUMBERS, TEXTS, from_records, to_records
from fedfew.stack import named_leaves

TREE = {
    "body": {"weight": torch.arange(6.0).reshape(1, 2, 3)},
    "count": torch.tensor([[3]]),
    "half": torch.ones(2, dtype=torch.float16),
    "mask": torch.tensor([True, False]),
}
VALUES = {"round": 3, "share": 0.1, "losses": [0.5, 0.25], "scored": True, "run": "abc", "shape": [1, 8, 8]}


def test_a_message_comes_out_as_it_went_in():
    message = from_records(to_records(SiteMessage("train", VALUES, TREE)), specs(TREE))
    assert message.kind == "train"
    assert message.values == VALUES
    assert [name for name, _ in named_leaves(message.tree)] == [name for name, _ in named_leaves(TREE)]
    for (_, a), (_, b) in zip(named_leaves(message.tree), named_leaves(TREE), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert message.bytes == 6 * 4 + 8 + 4 + 2


def test_losses_keep_every_bit():
    losses = torch.rand(7).tolist()
    assert from_records(to_records(SiteMessage("train", {"losses": losses}))).values["losses"] == losses


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


def array(data: bytes, name: str = "numpy.ndarray") -> RecordDict:
    record = to_records(SiteMessage("train", {}, {"x": torch.ones(2)}))
    record[ARRAYS] = ArrayRecord({"x": Array("float32", (2,), name, data)})
    return record


def saved(value, **options) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Bomb()),
        saved(np.array([Bomb(), 1], dtype=object), allow_pickle=True),
        saved(np.ones(2, dtype=">f4")),
        saved(np.array(["ab", "cd"])),
        saved(np.ones(2, dtype=np.complex64)),
        saved(np.ones(2, dtype=np.float32))[:-1],
        saved(np.ones(2, dtype=np.float32)) + b"more",
        saved(np.ones(2, dtype=np.float32)).replace(b"(2,)", b"(9,)"),
        saved(np.ones(2, dtype=np.float32)).replace(b"(2,)", b"(-2,)".ljust(4)),
        b"\x93NUMPY\x01\x00\xff\xff",
        b"PK\x03\x04",
        b"",
    ],
)
def test_what_is_no_plain_array_is_refused_and_never_unpickled(data):
    with pytest.raises(RefusedError, match="x cannot be read as an array"):
        from_records(array(data))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r.pop(TEXTS), "not one of fedfew's messages"),
        (lambda r: r.update({TEXTS: MetricRecord({})}), "not one of fedfew's messages"),
        (lambda r: r.update({TEXTS: ConfigRecord({})}), "not one of fedfew's messages"),
        (lambda r: r.update({NUMBERS: MetricRecord({"losses": [0.0] * 1001})}), "not one of fedfew's messages"),
    ],
)
def test_other_messages_are_refused(change, reason):
    record = to_records(SiteMessage("train", VALUES, TREE))
    change(record)
    with pytest.raises(RefusedError, match=reason):
        from_records(record)


def test_size_is_looked_at_before_anything_is_read():
    expected = specs({"x": torch.ones(2)})
    with pytest.raises(RefusedError, match="x is larger than it should be"):
        from_records(array(b"\0" * 10_000), expected)
    with pytest.raises(RefusedError, match="x has shape"):
        from_records(array(saved(np.ones((2, 1), dtype=np.float32))), expected)
    with pytest.raises(RefusedError, match="1 tensors are missing, the first is y"):
        from_records(array(saved(np.ones(2, dtype=np.float32))), expected | {"y": replace(expected["x"])})


def mutated(header: bytes, draw: random.Random) -> bytes:
    """An array's header with characters replaced, removed, inserted or repeated, or with deep nesting."""
    at = draw.randrange(10, len(header))
    piece = bytes(draw.choices(b"(){}[]'\"\\,:0123456789-+eEjJ_#lL <>|fiub\n\x00", k=draw.randrange(1, 6)))
    return draw.choice(
        [
            header[:at] + piece + header[at + len(piece) :],
            header[:at] + header[at + draw.randrange(1, 6) :],
            header[:at] + piece + header[at:],
            header[:at] + draw.choice(b"([{-").to_bytes(1) * draw.randrange(1, 2000) + header[at:],
        ]
    )


@pytest.mark.slow
def test_no_array_header_raises_anything_but_a_refusal():
    """numpy parses the header as a Python literal, which may raise TokenError, RecursionError, TypeError and more."""
    draw, whole, refused = random.Random(0), saved(np.ones(2, dtype=np.float32)), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3_000):
            header = mutated(whole[:-8], draw)
            length = (len(header) - 10).to_bytes(2, "little")
            try:
                from_records(array(header[:8] + length + header[10:] + whole[-8:]))
            except RefusedError:
                refused += 1
    assert refused > 1_000


@pytest.mark.parametrize(
    "header", [b"{'descr': '<f4', 'shape': (2,", b"(" * 900 + b"2" + b")" * 900, b"{'a': 1}", b"{[]: 1}", b"1_j"]
)
def test_hostile_array_headers_are_refused(header):
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)
    with pytest.raises(RefusedError, match="x cannot be read as an array"):
        from_records(array(data))
