"""Compression of updates: bounds of its error, by hand and at random."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfew.methods import compression
from fedfew.methods.compression import WAYS, check, decode, encode, with_feedback
from fedfew.stack import Tree, add, count_bytes, named_leaves, tensor

EPS = 2.0**-23  # of float32


def update(seed: int = 0, size: float = 1.0) -> Tree:
    """Two models; one tensor is a thousand times larger than the other, so one scale for both would be wrong."""
    torch.manual_seed(seed)
    return {
        "body": {"a.weight": size * torch.randn(2, 3, 4)},
        "b": 1e3 * size * torch.randn(2, 5),
        "count": torch.tensor([3, 4]),
    }


def arrived(tree: Tree, way: compression.Way, axes: int = 1) -> Tree:
    return decode(encode(tree, way, axes), tree, way)


def test_by_hand() -> None:
    """max |x| = 254 gives the scale 2: 254 → 127, 3 → round(1.5) = 2 (to even), −5 → round(−2.5) = −2."""
    x: Tree = {"x": torch.tensor([[254.0, 3.0, -5.0, 0.0], [0.0, 0.0, 0.0, 0.0]])}
    sent = encode(x, "int8")["x"]
    assert isinstance(sent, dict)
    assert tensor(sent, "int8").tolist() == [[127, 2, -2, 0], [0, 0, 0, 0]]
    assert tensor(sent, "scale").tolist() == [2.0, 0.0]
    assert tensor(arrived(x, "int8"), "x").tolist() == [[254.0, 4.0, -4.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    # 1 + 2⁻⁸ lies half-way between two of bfloat16's numbers and goes to the even one; 1 + 2⁻⁷ is one of them
    y: Tree = {"y": torch.tensor([[1 + 2**-8, 1 + 2**-7, -3.0]])}
    assert tensor(arrived(y, "bf16"), "y").tolist() == [[1.0, 1 + 2**-7, -3.0]]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=30))
def test_bounds_of_the_error(numbers: list[float]) -> None:
    x: Tree = {"x": torch.tensor([numbers])}
    exact = tensor(x, "x").double()
    normal = exact.abs() >= torch.finfo(torch.float32).tiny
    bf16 = (tensor(arrived(x, "bf16"), "x").double() - exact).abs()
    assert bool((bf16 <= 2.0**-8 * exact.abs())[normal].all())
    scale = float(exact.abs().max()) / 127
    int8 = (tensor(arrived(x, "int8"), "x").double() - exact).abs()
    assert bool((int8 <= scale / 2 + 127 * scale * EPS + 2e-43).all())  # the last: where the scale is no normal number


@pytest.mark.parametrize("way", WAYS)
def test_what_arrives_looks_like_what_was_sent(way: compression.Way) -> None:
    x = update()
    y = arrived(x, way)
    assert [(p, t.shape, t.dtype) for p, t in named_leaves(y)] == [(p, t.shape, t.dtype) for p, t in named_leaves(x)]
    assert torch.equal(tensor(y, "count"), tensor(x, "count"))
    check(encode(x, way), x, way)


def test_bytes() -> None:
    """34 numbers of 4 bytes and two of 8; int8 has two models × two scales besides."""
    assert {way: count_bytes(encode(update(), way)) for way in WAYS} == {
        "none": 34 * 4 + 16,
        "bf16": 34 * 2 + 16,
        "int8": 34 + 4 * 4 + 16,
    }


def test_every_tensor_of_every_model_has_a_scale_of_its_own() -> None:
    x = update()
    sent = dict(named_leaves(encode(x, "int8")))
    assert sent["body/a.weight/scale"].shape == sent["b/scale"].shape == (2,)
    assert float(sent["b/scale"].max()) > 100 * float(sent["body/a.weight/scale"].max())
    stacked: Tree = {"x": torch.randn(3, 2, 5)}
    assert dict(named_leaves(encode(stacked, "int8", axes=2)))["x/scale"].shape == (3, 2)


@pytest.mark.parametrize("seed", range(3))
def test_with_feedback_what_the_server_adds_up_stays_near_the_truth(seed: int) -> None:
    """Each error is at most (U + error) / 254, so it never grows beyond U / 253, however many rounds there are."""
    largest = 0.0
    lost: Tree = {}
    truth, added = torch.zeros(1, 50), torch.zeros(1, 50)
    plainly = torch.zeros(1, 50)
    torch.manual_seed(seed)
    drift = 0.003 * torch.rand(1, 50)  # less than half a scale: without feedback it is always rounded away
    for _ in range(300):
        u = drift.clone()
        u[0, 0] = 1.0 if _ % 2 else -1.0  # makes the scale 1/127
        largest = max(largest, float(u.abs().max()))
        sent, lost = with_feedback({"u": u}, lost, "int8")
        truth += u
        added += tensor(decode(sent, {"u": u}, "int8"), "u")
        plainly += tensor(arrived({"u": u}, "int8"), "u")
        assert float((truth - added).abs().max()) <= largest / 253 + 1e-4  # float32 sums of 300 numbers
    assert float((truth - plainly).abs().max()) > 100 * largest / 253


def test_feedback_adds_up_exactly() -> None:
    """What is lost is what was wanted less what arrives."""
    x, before = update(), update(1, size=0.01)
    before["count"] = torch.tensor([0, 0])
    sent, lost = with_feedback(x, before, "int8")
    back = add(decode(sent, x, "int8"), lost)
    for (_, a), (_, b) in zip(named_leaves(back), named_leaves(add(x, before)), strict=True):
        assert torch.allclose(a, b, rtol=1e-6)
    assert with_feedback(x, {}, "none")[1]["count"].tolist() == [0, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize("way", ["bf16", "int8"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_seen_and_not_kept(way: compression.Way, bad: float) -> None:
    x = update()
    tensor(x, "b")[1, 2] = bad
    sent, lost = with_feedback(x, {}, way)
    assert not bool(tensor(decode(sent, x, way), "b")[1].isfinite().all())
    with pytest.raises(ValueError, match="b is not finite"):
        check(sent, x, way)
    assert all(bool(t.isfinite().all()) for _, t in named_leaves(lost))


def test_scales_that_nobody_could_have_sent_are_refused() -> None:
    x = update()
    for scale, answer in ((-1.0, "b/scale is negative"), (float("nan"), "b is not finite"), (3e38, "b is not finite")):
        sent = encode(x, "int8")
        inner = sent["b"]
        assert isinstance(inner, dict)
        inner["scale"] = torch.tensor([1.0, scale])
        with pytest.raises(ValueError, match=answer):
            check(sent, x, "int8")


def test_an_unknown_way() -> None:
    with pytest.raises(ValueError, match="compression must be none, bf16 or int8, not 'zip'"):
        encode(update(), "zip")  # type: ignore[arg-type]
