"""A network of sites in this process: messages go through Flower's records and back, but not over a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import torch
from examples.localhost import Deployment
from torch import nn

import fedfew
from fedfew.flower import audit_log, records, site_errors
from fedfew.flower.client_state import ClientStates
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.messages import FAILED, RefusedError, SiteMessage
from fedfew.flower.server_loop import ServerLoop
from fedfew.flower.site import Site
from fedfew.flower.site_data import SiteConfig
from fedfew.flower.site_errors import SiteError
from fedfew.stack import named_leaves, take
from tests.helpers import federation

ROOT = Path(__file__).parents[2]
APP, EXAMPLE = ROOT / "tests" / "flower" / "app", ROOT / "examples" / "flower"
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}  # sites find the tests' data and model
FEDERATION = federation()
NOT_COMPARED = ("seconds", "bytes_up")  # local-only training sends its losses here
LOST = SiteMessage(FAILED, {"error": "state"})


# -- who takes part ----------------------------------------------------------------------------------------------------------
SETTINGS = {
    "model": "tests.flower.support:tiny",
    "rounds": 3,
    "batch_size": 8,
    "lr": 0.1,
    "score_every": 1,
    "clients": 4,
    "gather": 5.0,
    "deadline": 10.0,
}


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def make(config):
    """The data of one site of the small federation: a factory for ``data="tests.flower.support:make"``."""
    return FEDERATION.take([config["client"]])


def node_config(client: int) -> str:
    """The --node-config of a client of the tests' app."""
    return f'client={client} data="tests.flower.support:make"'


def deployment(folder: Path, **options) -> Deployment:
    """Real processes on this machine."""
    return Deployment(folder, ENVIRONMENT, **options)


def site(folder: Path, client: int, **changes) -> Site:
    node = {"client": client, "data": "tests.flower.support:make", "state": str(folder)} | changes
    return Site(SiteConfig.read(node, {}), tiny)


def handle(here: Site, message: SiteMessage) -> SiteMessage:
    """What the client app does around a site."""
    try:
        reply = here.handle(message)
    except SiteError as error:
        site_errors.append(here.folder, error)
        reply = SiteMessage(FAILED, {"error": error.category})
    audit_log.append(here.folder, reply)
    return reply


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeNetwork:
    """Sites by node number. ``change(node, message, reply)`` may alter a reply, or lose it (None)."""

    def __init__(self, sites: dict[int, Site], change: Callable | None = None) -> None:
        self.sites = dict(sites)
        self.change = change or (lambda node, message, reply: reply)
        self.clock = Clock()
        self.names: dict[int, str] = {}
        self.exchanges: list[tuple[str, list[int]]] = []
        self.replies: dict[str, SiteMessage] = {}
        self.count = 0

    def nodes(self):
        return set(self.sites)

    def registered_names(self):
        return self.names

    def send(self, messages, seconds):
        sent = {}
        self.exchanges.append((next(iter(messages.values())).kind, list(messages)))
        for node, message in messages.items():
            self.count += 1
            arrived = records.from_records(records.to_records(message))
            reply = self.change(node, arrived, handle(self.sites[node], arrived)) if node in self.sites else None
            if reply is not None:
                self.replies[str(self.count)] = records.to_records(reply)
            sent[str(self.count)] = node
        return sent

    def receive(self, waiting):
        received = []
        for number in [n for n in self.replies if n in waiting]:
            try:
                received.append((number, records.from_records(self.replies.pop(number), waiting[number])))
            except RefusedError as reason:
                received.append((number, reason))
        return received

    def pause(self, waited):
        self.clock.now += 1.0


def fake_network(folder: Path, clients: int = 4, change: Callable | None = None) -> FakeNetwork:
    return FakeNetwork({100 + i: site(folder / "sites", i) for i in range(clients)}, change)


def server_loop(folder: Path, network: FakeNetwork, **changes) -> ServerLoop:
    return ServerLoop(
        DeploymentConfig(**(SETTINGS | {"folder": str(folder / "run")} | changes)), network, lambda data: tiny, network.clock
    )


def simulated(**changes) -> fedfew.Run:
    """The same run in the simulator."""
    names = ("rounds", "batch_size", "lr", "participation", "local_epochs", "momentum", "weight_decay", "seed", "score_every")
    config = DeploymentConfig(**(SETTINGS | changes))
    settings = {name: getattr(config, name) for name in names}
    return fedfew.train(FEDERATION, tiny, config.make_method(), engine="sequential", **settings)


def same_as_simulated(run, oracle, sites, clients=4, tolerance=1e-5):
    """The server's state, the clients' own and the history, to float tolerance."""
    for (name, a), (other, b) in zip(named_leaves(run.state.server), named_leaves(oracle.state.server), strict=True):
        assert name == other
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    stays = {"mixture", "single_accuracy"} - set(run.history.columns)  # a mixture's weights do not leave the site
    assert run.history.columns == [name for name in oracle.history.columns if name not in stays]
    for name in run.history.columns:
        if name not in NOT_COMPARED:
            np.testing.assert_allclose(run.history[name], oracle.history[name], rtol=1e-4, atol=1e-5, err_msg=name)
    if oracle.state.own:
        for i in range(clients):
            kept = ClientStates(sites / f"client-{i}" / run.state.sites["run"]).read(run.round)
            for name, t in named_leaves(take(oracle.state.own, torch.tensor([i]))):
                torch.testing.assert_close(dict(named_leaves(kept["own"]))[name], t, rtol=tolerance, atol=tolerance)


def losing(*lost):
    """Answers to (client, round) that are lost; the sites have done their work."""

    def change(node, message, reply):
        return LOST if message.kind == "train" and (node - 100, message.values["round"]) in lost else reply

    return change


def audit_log_of(folder, client):
    lines = (folder / "sites" / f"client-{client}" / "audit.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def clock_set(monkeypatch, days: float) -> None:
    """Certificates are checked so many days from now."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=days)

    monkeypatch.setattr("fedfew.flower.certs.datetime", Shifted)
