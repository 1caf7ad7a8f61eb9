"""A method whose clients send compressed updates."""

from __future__ import annotations

import pytest
import torch
from benchmarks.compressed_updates import WithCompression

import fedfew
from fedfew.stack import branch, count_bytes, leaves, tensor
from tests.helpers import difference, federation, same_run

METHOD = fedfew.FedFew(models=2)


def run(method: fedfew.Method, rounds: int = 3, model: str = "linear", **more: object) -> fedfew.Run:
    return fedfew.train(federation(), model, method, rounds=rounds, lr=0.1, engine="stacked", **more)  # type: ignore[arg-type]


def test_none_changes_nothing() -> None:
    plain, wrapped = run(METHOD), run(WithCompression(METHOD, "none"))
    for one, other in zip(leaves(plain.state.server), leaves(wrapped.state.server), strict=True):
        assert torch.equal(one, other)
    assert (plain.history.bytes_up == wrapped.history.bytes_up).all()


@pytest.mark.parametrize("method", [METHOD, fedfew.FedAvg(), fedfew.FedFew(models=2, share="body")])
@pytest.mark.parametrize("way", ["bf16", "int8"])
def test_one_round_differs_by_no_more_than_the_rounding(method: fedfew.Method, way: str) -> None:
    """The server adds a weighted mean of updates, each off by at most 2⁻⁸ of itself, or half its tensor's scale."""
    plain, wrapped = run(method, 1, "mlp"), run(WithCompression(method, way), 1, "mlp")  # type: ignore[arg-type]
    largest = max(float(t.abs().max()) for t in leaves(branch(wrapped.state.own, "lost")))
    for one, other in zip(leaves(plain.state.server), leaves(wrapped.state.server), strict=True):
        assert 0 < float((one - other).abs().max()) <= largest + 1e-6


def test_bytes_up_are_those_that_travel() -> None:
    """18 numbers per model, two tensors, and a loss of 4 bytes each: for four clients."""
    up = {way: run(WithCompression(METHOD, way), 1).history.bytes_up.tolist() for way in ("none", "bf16", "int8")}  # type: ignore[arg-type]
    assert up == {"none": [4 * 2 * (72 + 4)], "bf16": [4 * 2 * (36 + 4)], "int8": [4 * 2 * (18 + 2 * 4 + 4)]}


def test_a_client_left_out_is_not_counted_and_leaves_no_trace() -> None:
    """Client 2's samples are not finite, and so its update is not."""
    whole = federation()
    whole.train.x[whole.train.rows(2)] = float("inf")
    left = fedfew.train(whole, "linear", WithCompression(METHOD, "int8"), rounds=2, lr=0.1, engine="stacked")
    assert left.history.left_out.tolist() == [1, 1]
    assert left.history.bytes_up.tolist() == [3 * 2 * (18 + 2 * 4 + 4)] * 2
    assert float(tensor(branch(left.state.own, "lost"), "1.weight")[2].abs().max()) == 0


def test_what_was_lost_is_kept_per_client_and_changes_the_next_round() -> None:
    kept = run(WithCompression(METHOD, "int8"))
    lost = branch(kept.state.own, "lost")
    assert tensor(lost, "1.weight").shape == (4, 2, 3, 5)
    assert float(tensor(lost, "1.weight").abs().min(0).values.max()) > 0
    forgotten = run(WithCompression(METHOD, "int8", feedback=False))
    assert count_bytes(branch(forgotten.state.own, "lost")) == 0
    one, other = (torch.cat([t.flatten() for t in leaves(r.state.server)]) for r in (kept, forgotten))
    assert not torch.equal(one, other)


def test_chunks_and_an_interrupted_run_make_no_difference(tmp_path) -> None:
    method = WithCompression(METHOD, "int8")
    assert difference(run(method), run(method, chunk=1)) < 1e-5
    whole = run(method, 4, folder=tmp_path / "whole")
    run(method, 2, folder=tmp_path / "r")
    same_run(whole, run(method, 4, folder=tmp_path / "r", resume=True))


def test_updates_that_look_like_something_else_need_feedback_off() -> None:
    with pytest.raises(ValueError, match="feedback must be off for ifca"):
        run(WithCompression(fedfew.IFCA(models=2), "int8"), 1)
    run(WithCompression(fedfew.IFCA(models=2), "int8", feedback=False), 1)


def test_models_and_settings_are_the_methods() -> None:
    done = run(WithCompression(METHOD, "bf16"), 1)
    assert len(done.models) == 2
    assert done.settings["method"] == METHOD.settings()
    assert {"alpha", "w", "g"} <= set(done.history.columns)
    with pytest.raises(ValueError, match="at most the number of clients"):
        WithCompression(fedfew.FedFew(models=9), "bf16").check_against(4)
