"""The server's post: waves of letters with a deadline, and newcomers welcomed in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from fedfew.flower.messages import JOIN, Letter, RefusedError, Specs
from fedfew.flower.registry import Member, Roster

PATIENCE = 10  # deadlines after which Flower gives a letter up, and a node that has not answered it is asked again


class Network(Protocol):
    """Nodes that letters can be sent to."""

    def nodes(self) -> set[int]:
        """Those that can be reached now."""

    def send(self, letters: Mapping[int, Letter], seconds: float) -> dict[str, int]:
        """Post letters, by node; an answer has so many seconds. Returns the node by the letter's number."""

    def receive(self, waiting: Mapping[str, Specs]) -> list[tuple[str, Letter | RefusedError]]:
        """Answers that have come in to the letters of these numbers; their arrays must look as given."""

    def pause(self, waited: float) -> None:
        """Let some time pass, where so many seconds have been waited already."""


class Post:
    """Sends waves and collects answers; a node that is not known is asked who it is without anybody waiting for it."""

    def __init__(
        self,
        network: Network,
        roster: Roster,
        deadline: float,
        note: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.network = network
        self.roster = roster
        self.deadline = deadline
        self._admit: Callable[[Member], None] = lambda member: None
        self._note = note
        self._clock = clock
        self._joining: dict[str, int] = {}
        self._late: dict[str, int] = {}  # letters that were not answered in time, and the nodes that are still busy with them

    def admit_only(self, check: Callable[[Member], None]) -> None:
        """From now on turn away sites, also those that have joined, for which ``check`` raises RefusedError."""
        self._admit = check
        for node, member in list(self.roster.members.items()):
            try:
                check(member)
            except RefusedError as reason:
                del self.roster.members[node]
                self._turn_away(node, reason)

    def present(self) -> dict[int, int]:
        """Node by client, of those who have joined, can be reached now, and are not busy with an earlier letter."""
        nodes = self.network.nodes()
        self._ask_strangers(nodes)
        self._receive({})
        for client in self.roster.succeed(nodes):
            self._note(f"client {client} is back as another node")
        return self.roster.present(nodes - set(self._late.values()))

    def busy(self) -> list[int]:
        """The clients that have not answered an earlier letter yet: another one would only wait behind it."""
        return sorted(self.roster.members[node].client for node in set(self._late.values()) if node in self.roster.members)

    def wave(self, letters: Mapping[int, Letter], expected: Specs) -> dict[int, Letter | RefusedError]:
        """Post letters by node and wait until all are answered or the deadline has passed; the answers by node."""
        begin = self._clock()
        sent = self.network.send(letters, PATIENCE * self.deadline) if letters else {}
        came: dict[int, Letter | RefusedError] = {}
        for node in letters.keys() - sent.values():
            came[node] = RefusedError("it cannot be sent to")
        waiting = dict.fromkeys(sent, expected)
        while waiting:
            for number, answer in self._receive(waiting):
                came[sent[number]] = answer
                del waiting[number]
            waited = self._clock() - begin
            if not waiting or waited >= self.deadline:
                break
            self.pause(waited)
            self._ask_strangers(self.network.nodes())
        self._late |= {number: sent[number] for number in waiting}
        return came

    def pause(self, waited: float) -> None:
        self.network.pause(waited)

    def _ask_strangers(self, nodes: set[int]) -> None:
        self._joining = {number: node for number, node in self._joining.items() if node in nodes}
        self._late = {number: node for number, node in self._late.items() if node in nodes}
        strangers = self.roster.strangers(nodes) - set(self._joining.values())
        if strangers:
            self._joining |= self.network.send({node: Letter(JOIN) for node in sorted(strangers)}, PATIENCE * self.deadline)

    def _receive(self, waiting: Mapping[str, Specs]) -> list[tuple[str, Letter | RefusedError]]:
        """Answers to these letters; introductions that came in with them are dealt with here."""
        if not waiting and not self._joining and not self._late:
            return []
        answers = []
        others: dict[str, Specs] = {number: {} for number in (*self._joining, *self._late)}
        for number, answer in self.network.receive({**waiting, **others}):
            if number in self._joining:
                self._introduced(self._joining.pop(number), answer)
            elif number in self._late:
                del self._late[number]  # whatever it says, it comes too late, but the node is free again
            elif number in waiting:
                answers.append((number, answer))
        return answers

    def _introduced(self, node: int, answer: Letter | RefusedError) -> None:
        try:
            if isinstance(answer, RefusedError):
                raise answer
            member = self.roster.read(answer)
            self._admit(member)
            if not self.roster.welcome(node, member):
                self._note(f"a second node says it is client {member.client}: it waits until the first is gone")
        except RefusedError as reason:
            self._turn_away(node, reason)

    def _turn_away(self, node: int, reason: RefusedError) -> None:
        self.roster.turned_away[node] = str(reason)
        self._note(f"node {node} cannot take part: {reason}")
