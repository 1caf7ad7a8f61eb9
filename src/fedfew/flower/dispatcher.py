"""Sends messages to nodes, collects the replies until a deadline, and registers sites that join meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from fedfew._version import __version__
from fedfew.flower.messages import JOIN, RefusedError, SiteMessage, Specs
from fedfew.flower.registry import Member, Registry

Received = SiteMessage | RefusedError
LIFETIME = 10  # deadlines after which Flower drops a message, and a node that has not answered it is asked again
LATE = RefusedError("no reply within the deadline")


class Network(Protocol):
    """Nodes that messages can be sent to."""

    def nodes(self) -> set[int]:
        """Those that can be reached now."""

    def registered_names(self) -> dict[int, str]:
        """By node, the name under which the node's key was registered; nodes without one are missing."""

    def send(self, messages: Mapping[int, SiteMessage], seconds: float) -> dict[str, int]:
        """Send messages, by node, which expire after so many seconds. Returns the node by message id."""

    def receive(self, waiting: Mapping[str, Specs]) -> list[tuple[str, Received]]:
        """Replies that have arrived to the messages of these ids; their arrays must have the shapes and types given."""

    def pause(self, waited: float) -> None:
        """Sleep a little, longer the more seconds have been waited already."""


class Dispatcher:
    """Sends requests and collects replies; nodes that are not registered are asked to join in the background."""

    def __init__(
        self,
        network: Network,
        registry: Registry,
        deadline: float,
        log_event: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.network = network
        self.registry = registry
        self.deadline = deadline
        self._admit: Callable[[Member], None] = lambda member: None
        self._log_event = log_event
        self._clock = clock
        self._joining: dict[str, int] = {}
        self._rejected: dict[int, float] = {}  # when nodes were rejected
        self._late: dict[str, int] = {}  # messages that were not answered in time, and the nodes still busy with them

    def admit_only(self, check: Callable[[Member], None]) -> None:
        """From now on reject sites for which ``check`` raises RefusedError, also those that have joined already."""
        self._admit = check
        for node, member in list(self.registry.members.items()):
            try:
                check(member)
            except RefusedError as reason:
                del self.registry.members[node]
                self._reject(node, reason)

    def present(self) -> dict[int, int]:
        """Node by client, of sites that have joined, can be reached now, and are not busy with an earlier message."""
        nodes = self.network.nodes()
        self._ask_unknown(nodes)
        self._receive({})
        for client in self.registry.replace_lost(nodes):
            self._log_event(f"client {client} is back as another node")
        return self.registry.present(nodes - set(self._late.values()))

    def busy(self) -> list[int]:
        """Clients that have not answered an earlier message yet: another one would only queue behind it."""
        members = self.registry.members
        return sorted(members[node].client for node in set(self._late.values()) if node in members)

    def exchange(self, messages: Mapping[int, SiteMessage], expected: Specs) -> dict[int, Received]:
        """Send messages by node and wait until all are answered or the deadline has passed; a reply or refusal per node."""
        begin = self._clock()
        sent = self.network.send(messages, LIFETIME * self.deadline) if messages else {}
        received: dict[int, Received] = dict.fromkeys(messages, RefusedError("the message could not be sent"))
        received |= dict.fromkeys(sent.values(), LATE)
        waiting = dict.fromkeys(sent, expected)
        while waiting:
            for number, reply in self._receive(waiting):
                received[sent[number]] = reply
                del waiting[number]
            waited = self._clock() - begin
            if not waiting or waited >= self.deadline:
                break
            self.pause(waited)
            self._ask_unknown(self.network.nodes())
        self._late |= {number: sent[number] for number in waiting}
        return received

    def pause(self, waited: float) -> None:
        self.network.pause(waited)

    def _ask_unknown(self, nodes: set[int]) -> None:
        self._joining = {number: node for number, node in self._joining.items() if node in nodes}
        self._late = {number: node for number, node in self._late.items() if node in nodes}
        now = self._clock()
        again = {node for node, since in self._rejected.items() if now - since >= self.deadline}  # it may have been mended
        unknown = (self.registry.unknown(nodes) | again & nodes) - set(self._joining.values())
        if unknown:
            requests = {node: SiteMessage(JOIN) for node in sorted(unknown)}
            self._joining |= self.network.send(requests, LIFETIME * self.deadline)

    def _receive(self, waiting: Mapping[str, Specs]) -> list[tuple[str, Received]]:
        """Replies to these messages; join replies that arrived with them are handled here."""
        if not waiting and not self._joining and not self._late:
            return []
        replies = []
        others: dict[str, Specs] = {number: {} for number in (*self._joining, *self._late)}
        for number, reply in self.network.receive({**waiting, **others}):
            if number in self._joining:
                self._joined(self._joining.pop(number), reply)
            elif number in self._late:
                del self._late[number]  # the reply is too late to be used, but the node is free again
            elif number in waiting:
                replies.append((number, reply))
        return replies

    def _joined(self, node: int, reply: Received) -> None:
        try:
            if isinstance(reply, RefusedError):
                raise reply
            names = self.network.registered_names() if self.registry.site_names else {}
            member = self.registry.read(reply, names.get(node, ""))
            self._admit(member)
            if member.version != __version__:
                versions = f"fedfew {member.version}, the server {__version__}"
                self._log_event(f"client {member.client} has {versions}: all sites need the server's version")
            self._rejected.pop(node, None)
            if not self.registry.register(node, member):
                self._log_event(f"a second node joined as client {member.client}: it waits until the first is gone")
        except RefusedError as reason:
            self._reject(node, reason)

    def _reject(self, node: int, reason: RefusedError) -> None:
        """A rejected node is asked again when it comes back or a deadline has passed; the same reason is logged once."""
        known = self.registry.rejected.get(node) == str(reason)
        self.registry.rejected[node], self._rejected[node] = str(reason), self._clock()
        if not known:
            name = self.network.registered_names().get(node)
            who = f"site {name!r} (node {node})" if name else f"node {node}"
            self._log_event(f"{who} cannot take part: {reason}")
