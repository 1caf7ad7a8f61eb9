"""A site by itself: its data, its configuration, its state on disk, and what it says when it fails."""

import json
from types import SimpleNamespace

import pytest
import torch
from flwr.app import RecordDict
from torch import nn
from torch.utils.checkpoint import checkpoint

from fedfew.flower import client, records
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.messages import FAILED, JOIN, TRAIN, SiteMessage
from fedfew.flower.site_errors import CATEGORIES
from fedfew.stack import named_leaves
from tests.flower.support import SETTINGS, site, tiny


def asked(message: SiteMessage, tmp_path, model=tiny, **node):
    """The client app's answer to a message."""
    message = SimpleNamespace(content=records.to_records(message))
    context = SimpleNamespace(
        node_config={"client": 1, "data": "tests.flower.support:make", "state": str(tmp_path)} | node, run_config={"model": "mlp"}
    )
    return client.handle(message, context, model)


def training(**changes) -> SiteMessage:
    data = {"shape": [5], "classes": 3, "vocabulary": None}
    settings = json.dumps(DeploymentConfig(**(SETTINGS | {"method": "fedavg"})).for_sites() | data)
    values = {
        "run": "0" * 32,
        "round": 1,
        "last": 0,
        "keep": 0,
        "sample_share": 0.5,
        "scored": False,
        "settings": settings,
    } | changes
    return SiteMessage(TRAIN, values, {name: t[None] for name, t in tiny().state_dict().items()})


def test_an_answer_through_the_client_app(tmp_path):
    assert asked(SiteMessage(JOIN), tmp_path).values["samples"] == 40
    assert asked(training(), tmp_path).kind == TRAIN
    assert asked(SiteMessage(JOIN), tmp_path, model=None).values["client"] == 1


def secret():
    raise RuntimeError("patient 4711")


def leaving():
    raise SystemExit("patient 4711")


@pytest.mark.parametrize(
    ("message", "changes", "word"),
    [
        (SiteMessage(JOIN), {"client": "patient 4711"}, "configuration"),
        (SiteMessage(JOIN), {"data": "/patient 4711.npz"}, "data"),
        (SiteMessage("patient 4711"), {}, "request"),
        (training(settings='{"patient": 4711}'), {}, "settings"),
        (training(run="../../patient-4711"), {}, "settings"),
        (training(sample_share=float("nan")), {}, "training"),
        (training(), {"model": secret}, "settings"),
        (training(), {"model": leaving}, "request"),
    ],
)
def test_only_the_category_of_an_error_leaves_the_site(message, changes, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reply = asked(message, tmp_path / "state", **changes)
    assert (reply.kind, reply.values, reply.tree) == (FAILED, {"error": word}, {})
    assert word in CATEGORIES
    logs = [path for path in tmp_path.rglob("errors.log") if "Error" in path.read_text() or "SystemExit" in path.read_text()]
    assert len(logs) == 1
    assert json.loads((logs[0].parent / "audit.jsonl").read_text())["values"] == {"error": word}


class Recomputing(nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x.requires_grad_(), use_reentrant=False) if self.training else super().forward(x)


@pytest.mark.parametrize(
    ("model", "method", "why"),
    [
        (lambda: Recomputing(*tiny()), "fedavg", "runs Linear a second time when gradients are computed"),
        (lambda: nn.Sequential(*tiny(), nn.Tanh()), "fedrod", "fedrod: the head of Sequential is taken to be '2', whose outputs"),
        (lambda: nn.Linear(5, 4), "fedavg", "its last layer must have 3 outputs"),
    ],
)
def test_a_model_that_the_simulator_refuses_is_refused_before_a_clients_first_round(model, method, why, tmp_path):
    settings = json.loads(training().values["settings"]) | {"method": {"name": method}}
    assert asked(training(settings=json.dumps(settings)), tmp_path, model).values == {"error": "settings"}
    (log,) = tmp_path.rglob("errors.log")
    assert why in log.read_text()


def test_a_message_that_is_not_one_of_ours(tmp_path):
    message = SimpleNamespace(content=RecordDict())
    context = SimpleNamespace(
        node_config={"client": 1, "data": "tests.flower.support:make", "state": str(tmp_path)}, run_config={}
    )
    assert client.handle(message, context, tiny).values == {"error": "request"}


def test_a_state_that_cannot_be_written_fails_the_round(tmp_path):
    (tmp_path / "client-1").write_text("a file where a folder should be")
    assert asked(training(), tmp_path).values == {"error": "state"}


def test_a_round_that_is_asked_for_twice_gives_the_same_answer(tmp_path):
    here = site(tmp_path, 1)
    message = training(settings=json.dumps(json.loads(training().values["settings"]) | {"method": {"name": "ditto"}}))
    first, second = here.handle(message), here.handle(message)
    assert first.values == second.values
    for (_, a), (_, b) in zip(named_leaves(first.tree), named_leaves(second.tree), strict=True):
        assert torch.equal(a, b)
