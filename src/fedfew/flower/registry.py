"""The registry of sites: which node is which client. A restarted site comes back as another node, but as the same client."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedfew.flower.checks import check_not_failed
from fedfew.flower.messages import JOIN, RefusedError, SiteMessage
from fedfew.tasks import TASKS

OF_DATA = ("shape", "vocabulary", "pixels", "task", "tokenizer", "padding")  # of a member: the same at all sites


@dataclass(frozen=True)
class Member:
    """A site as it described itself when it joined."""

    client: int
    samples: int
    test_samples: int  # 0 where the site does not report it
    classes: int
    shape: tuple[int, ...]
    vocabulary: int
    pixels: str
    name: str
    task: str = "classification"
    tokenizer: str = ""  # a hash of it, where texts were encoded by one
    padding: int | None = None  # its token of padding
    version: str = ""  # of fedfew there


class Registry:
    """The sites that have joined, by node."""

    def __init__(self, clients: int, max_samples: int, site_names: Sequence[str] = ()) -> None:
        self.clients = clients
        self.max_samples = max_samples
        self.site_names = site_names  # by client: the name that its key was registered under. Empty: any site may be any client
        self.members: dict[int, Member] = {}
        self.waiting: dict[int, Member] = {}  # nodes that claim a client number which another node already has
        self.rejected: dict[int, str] = {}  # nodes that cannot take part, and why

    def unknown(self, nodes: set[int]) -> set[int]:
        """Those of the nodes that still have to be asked which client they are."""
        self.rejected = {node: reason for node, reason in self.rejected.items() if node in nodes}
        return nodes - self.members.keys() - self.waiting.keys() - self.rejected.keys()

    def register(self, node: int, member: Member) -> bool:
        """Register a node as a client; False where another node is this client already.

        The second node then waits until the first is gone: for up to a minute after a restart, Flower lists a site twice.
        """
        self.rejected.pop(node, None)
        taken = any(known.client == member.client for known in self.members.values())
        (self.waiting if taken else self.members)[node] = member
        return not taken

    def replace_lost(self, nodes: set[int]) -> list[int]:
        """Let waiting nodes replace those that cannot be reached any more; returns the clients concerned."""
        replaced = []
        for node, member in list(self.waiting.items()):
            holders = [other for other, known in self.members.items() if known.client == member.client]
            if node not in nodes:
                del self.waiting[node]
            elif not any(other in nodes for other in holders):
                for other in holders:
                    del self.members[other]
                self.members[node] = self.waiting.pop(node)
                replaced.append(member.client)
        return replaced

    def present(self, nodes: set[int]) -> dict[int, int]:
        """Node by client, of those that can be reached, in the order of clients."""
        reachable = {member.client: node for node, member in self.members.items() if node in nodes}
        return dict(sorted(reachable.items()))

    def read(self, message: SiteMessage, registered_name: str = "") -> Member:
        """The checked contents of a site's join message. registered_name: under which the SuperLink knows the node's key."""
        check_not_failed(message)
        if message.kind != JOIN:
            raise RefusedError("it does not answer a join request")
        shape = message.values.get("shape")
        if not isinstance(shape, list) or len(shape) > 8 or not all(isinstance(n, int) and 0 < n < 2**31 for n in shape):
            raise RefusedError("shape is not a list of sizes")
        client = message.integer("client", 0, self.clients - 1)
        if self.site_names and registered_name != self.site_names[client]:
            who = f"registered as {registered_name!r}" if registered_name else "not registered under a name"
            raise RefusedError(f"it claims to be client {client}, which is {self.site_names[client]!r}, but is {who}")
        pixels, name = message.text("pixels"), _printable(message.text("name"))
        if pixels not in ("symmetric", "unit"):
            raise RefusedError("pixels is neither symmetric nor unit")
        task = message.text("task")
        if task not in TASKS:
            raise RefusedError("its task is not known")
        tokenizer = message.text("tokenizer") if "tokenizer" in message.values else ""
        if not re.fullmatch("([0-9a-f]{64})?", tokenizer):
            raise RefusedError("its tokenizer is not a SHA-256")
        return Member(
            client=client,
            samples=message.integer("samples", 1, self.max_samples),
            test_samples=message.integer("test_samples", 1, self.max_samples) if "test_samples" in message.values else 0,
            classes=message.integer("classes", 1, 10_000_000),
            shape=tuple(int(n) for n in shape),
            vocabulary=message.integer("vocabulary", 0, 2**31),
            pixels=pixels,
            name=name,
            task=task,
            tokenizer=tokenizer,
            padding=message.integer("padding", 0, 2**31) if "padding" in message.values else None,
            version=_printable(message.text("version")),
        )


def common_data(members: list[Member], classes: int = 0) -> dict[str, Any]:
    """What the sites' data have in common: sample shape, vocabulary, pixels and task of more than half of the sites, and the
    number of classes, targets or labels. Sites that differ are to be rejected; without a majority the error names two of
    them.

    classes: 0 for the largest number reported, up to ten times the median; otherwise one site could make the model huge.
    """
    kinds = Counter(_kind(member) for member in members)
    most_common, count = kinds.most_common(1)[0]
    if 2 * count <= len(members):
        first = members[0]
        other = next(member for member in members if _kind(member) != _kind(first))
        what = next(name for name in (*OF_DATA, "classes") if getattr(first, name) != getattr(other, name))
        raise ValueError(
            f"sites do not fit together: {what} is {getattr(first, what)} for client {first.client}, but "
            f"{getattr(other, what)} for client {other.client}"
        )
    fitting = [member for member in members if _kind(member) == most_common]
    first = fitting[0]
    most = 10 * statistics.median_low(member.classes for member in fitting)
    return {
        "shape": list(first.shape),
        "classes": classes or max(member.classes for member in fitting if member.classes <= most),
        "vocabulary": first.vocabulary or None,
        "pixels": first.pixels,
        "name": first.name,
        "task": first.task,
        "tokenizer": first.tokenizer or None,
        "padding": first.padding,
    }


def _printable(text: str) -> str:
    return "".join(filter(str.isprintable, text))[:80]


def _kind(member: Member) -> tuple[Any, ...]:
    """What must be the same at all sites; a site may lack classes, but not targets or labels."""
    outputs = 0 if member.task == "classification" else member.classes
    return *(getattr(member, name) for name in OF_DATA), outputs
