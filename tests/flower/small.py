"""A network of sites in this process: letters go through Flower's records and back, but through no wire."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

import fedfew
from fedfew.flower import audit_log, records, site_errors
from fedfew.flower.messages import FAILED, Letter, RefusedError
from fedfew.flower.plan import Plan
from fedfew.flower.server_loop import Course
from fedfew.flower.site import Site
from fedfew.flower.site_data import SiteConfig
from fedfew.flower.site_errors import TroubleError
from tests.helpers import federation

FEDERATION = federation()
PLAN = {
    "model": "tests.flower.small:tiny",
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
    """The data of one site of the small federation: a factory for ``data="tests.flower.small:make"``."""
    return FEDERATION.take([config["client"]])


def site(folder: Path, client: int, **changes) -> Site:
    node = {"client": client, "data": "tests.flower.small:make", "state": str(folder)} | changes
    return Site(SiteConfig.read(node, {}), tiny)


def answer(here: Site, letter: Letter) -> Letter:
    """What the client app does around a site."""
    try:
        reply = here.answer(letter)
    except TroubleError as error:
        site_errors.note(here.folder, error)
        reply = Letter(FAILED, {"why": error.word})
    audit_log.note(here.folder, reply)
    return reply


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Neighbourhood:
    """Sites by node number. ``change(node, letter, reply)`` may alter an answer, or lose it (None)."""

    def __init__(self, sites: dict[int, Site], change: Callable | None = None) -> None:
        self.sites = dict(sites)
        self.change = change or (lambda node, letter, reply: reply)
        self.clock = Clock()
        self.waves: list[tuple[str, list[int]]] = []
        self.answers: dict[str, Letter] = {}
        self.count = 0

    def nodes(self):
        return set(self.sites)

    def send(self, letters, seconds):
        sent = {}
        self.waves.append((next(iter(letters.values())).kind, list(letters)))
        for node, letter in letters.items():
            self.count += 1
            arrived = records.to_letter(records.to_records(letter))
            reply = self.change(node, arrived, answer(self.sites[node], arrived)) if node in self.sites else None
            if reply is not None:
                self.answers[str(self.count)] = records.to_records(reply)
            sent[str(self.count)] = node
        return sent

    def receive(self, waiting):
        came = []
        for number in [n for n in self.answers if n in waiting]:
            try:
                came.append((number, records.to_letter(self.answers.pop(number), waiting[number])))
            except RefusedError as reason:
                came.append((number, reason))
        return came

    def pause(self, waited):
        self.clock.now += 1.0


def neighbourhood(folder: Path, clients: int = 4, change: Callable | None = None) -> Neighbourhood:
    return Neighbourhood({100 + i: site(folder / "sites", i) for i in range(clients)}, change)


def course(folder: Path, network: Neighbourhood, **changes) -> Course:
    return Course(Plan(**(PLAN | {"folder": str(folder / "run")} | changes)), network, lambda data: tiny, network.clock)


def simulated(**changes) -> fedfew.Run:
    """The same run in the simulator."""
    names = ("rounds", "batch_size", "lr", "participation", "local_epochs", "momentum", "weight_decay", "seed", "score_every")
    plan = Plan(**(PLAN | changes))
    settings = {name: getattr(plan, name) for name in names}
    return fedfew.train(FEDERATION, tiny, plan.make_method(), engine="sequential", **settings)
