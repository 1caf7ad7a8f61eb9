"""FedBABU: what moves and what does not. A float64 reference is in personal_references.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.compressed_updates import WithCompression
from torch import Tensor

from fedfew.engines.sequential import Sequential
from fedfew.local import Local, LocalEpochs
from fedfew.methods import FedBABU, Method
from fedfew.stack import Tree, branch, named_leaves
from tests.methods.small import FEATURES, SIZES, assert_same, federation, initial, normalised, served, tensors, train


def test_the_head_is_never_trained_in_rounds_and_never_travels() -> None:
    run = train(FedBABU(finetune="body", finetune_epochs=1), participation=1.0)
    start = initial()
    for state in served(run):
        assert torch.equal(state["2.weight"], start["2.weight"])
        assert not torch.equal(state["0.weight"], start["0.weight"])
    body, losses = 4 * (FEATURES * 5 + 5), 4
    assert run.history.bytes_down[0] == len(federation()) * body
    assert run.history.bytes_up[0] == len(federation()) * (body + losses)
    assert run.models == []


@pytest.mark.parametrize("finetune", ["head", "whole"])
def test_the_bodies_sent_do_not_depend_on_fine_tuning(finetune: str) -> None:
    one, other = train(FedBABU(finetune="body", finetune_epochs=1)), train(FedBABU(finetune=finetune, finetune_epochs=1))  # type: ignore[arg-type]
    assert_same(dict(one.state.server), dict(other.state.server))


def test_fine_tuning_the_head_keeps_the_body_as_received() -> None:
    """After round 2 clients hold the body that round 1 ended with."""
    before = train(FedBABU(finetune="head", finetune_epochs=1), rounds=1, participation=1.0).state.server
    after = train(FedBABU(finetune="head", finetune_epochs=1), rounds=2, participation=1.0)
    for state in served(after):
        assert torch.equal(state["0.weight"], before["0.weight"][0])
    assert len({float(state["2.bias"][0]) for state in served(after)}) == len(federation())
    assert torch.equal(branch(after.state.own, "head")["2.bias"][3], initial()["2.bias"])


LATER: dict[str, Any] = {"rounds": 6, "score_every": 6}  # some clients take part in the last round, others in an earlier one last


@pytest.mark.parametrize("finetune", ["whole", "head", "body"])
def test_a_round_that_is_not_scored_is_not_fine_tuned(finetune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six rounds of two epochs for six clients, scored twice: 72 epochs, and fine-tuning of four epochs twice: 48."""
    epochs: list[int] = []
    original = Sequential.train

    def counting(engine: Sequential, work: LocalEpochs) -> Any:
        epochs.append(work.epochs * len(work.clients))
        return original(engine, work)

    monkeypatch.setattr(Sequential, "train", counting)
    train(FedBABU(finetune=finetune, finetune_epochs=4), rounds=6, score_every=3, participation=1.0)
    assert sum(epochs) == 6 * 2 * 6 + 2 * 4 * 6


@pytest.mark.parametrize("engine", ["sequential", "stacked", "threaded"])
@pytest.mark.parametrize("finetune", ["whole", "head"])
def test_what_is_served_does_not_depend_on_when_it_was_fine_tuned(engine: str, finetune: Any) -> None:
    method = FedBABU(finetune=finetune, finetune_epochs=3)
    often, late = (train(method, engine=engine, rounds=6, score_every=every, schedule="cosine") for every in (1, 6))
    assert_same(dict(named_leaves(often.state.own)), dict(named_leaves(late.state.own)), 0.0 if engine == "sequential" else 1e-6)
    assert late.history.last("served_loss") == pytest.approx(often.history.last("served_loss"), rel=1e-5)
    assert late.history.last("adapted_loss") == pytest.approx(often.history.last("adapted_loss"), rel=1e-5, nan_ok=True)


@pytest.mark.parametrize("chunk", [2, 6])
def test_a_run_stopped_between_scored_rounds_serves_fine_tuned_models_and_is_resumed(chunk: int, tmp_path: Path) -> None:
    method = FedBABU(finetune_epochs=3)
    stopped = train(method, **LATER, chunk=chunk, folder=tmp_path, on_round=lambda p: "stop" if p.round == 4 else None)
    assert_same(dict(named_leaves(stopped.state.own)), dict(named_leaves(train(method, rounds=4, chunk=chunk).state.own)))
    resumed = train(method, **LATER, chunk=chunk, folder=tmp_path, resume=True)
    assert_same(tensors(resumed), tensors(train(method, **LATER, chunk=chunk)))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (WithCompression(FedBABU(finetune_epochs=2), "int8", feedback=True), {}),
        (FedBABU(finetune_epochs=2), {"batch_norm": "local", "model": normalised, "batch_size": 9}),
        (FedBABU(finetune_epochs=2), {"attack": "sign-flip", "attackers": 1}),
    ],
    ids=["compressed", "local BatchNorm", "attacked"],
)
def test_a_method_around_it_has_it_fine_tune(method: Method, settings: dict[str, Any]) -> None:
    often, late = (train(method, rounds=4, score_every=every, **settings) for every in (1, 4))
    assert_same(dict(named_leaves(often.state.own)), dict(named_leaves(late.state.own)))


def test_a_client_whose_fine_tuning_diverges_keeps_the_model_that_it_started_from() -> None:
    class Diverging:
        engine = SimpleNamespace(local_epochs=1)

        def train(self, params: Tree, *_: Any, **__: Any) -> tuple[Tree, None]:
            bad = torch.tensor([0.0, torch.inf])
            return {name: t + 1 + bad.reshape(2, *[1] * (t.ndim - 1)) for name, t in params.items()}, None

    model: Tree = {"0.weight": torch.arange(4.0).reshape(2, 2), "2.weight": torch.ones(2, 3)}
    own: Tree = {"head": {"2.weight": torch.ones(2, 3)}, "model": model, "untuned": torch.tensor([7, 7])}
    found, good = FedBABU(finetune="head").fine_tuned(own, Diverging())  # type: ignore[arg-type]
    assert good.tolist() == [True, False]
    assert torch.equal(found["0.weight"], torch.arange(4.0).reshape(2, 2))
    assert torch.equal(found["2.weight"], torch.tensor([[2.0] * 3, [1.0] * 3]))


@pytest.mark.parametrize("batch_norm", ["average", "local"])
def test_diverged_fine_tuning_is_reported_once(batch_norm: str, tmp_path: Path) -> None:
    """Of client 4, which has 16 samples; models are needed in rounds 2 and 3."""

    class Diverging(FedBABU):
        def fine_tuned(self, own: Tree, local: Local) -> tuple[Tree, Tensor]:
            model, good = super().fine_tuned(own, local)
            return model, good & (local.counts != SIZES[4])

    changes: dict[str, Any] = {"participation": 1.0, "folder": tmp_path, "batch_norm": batch_norm, "model": normalised}
    data = federation((7, 12, 6, 10, SIZES[4], 8))  # no batch of one
    run = train(Diverging(finetune_epochs=1), data, rounds=2, score_every=2, **changes)
    lines = [event for event in run.state.events if "fine-tuning diverged" in event]
    why = "fine-tuning diverged (lower lr): these clients keep the model that they started from: 4"
    assert lines == [f"round 2: {why}"]
    diverged = run.method.diverged(run.state.own)
    assert diverged is not None
    assert diverged.tolist() == [0, 0, 0, 0, 2, 0]
    resumed = train(Diverging(finetune_epochs=1), data, rounds=3, score_every=2, resume=True, **changes)
    assert [event for event in resumed.state.events if "fine-tuning diverged" in event] == [*lines, f"round 3: {why}"]
