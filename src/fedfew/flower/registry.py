"""Who is who: which node is which client. A site that was restarted comes back as another node, but as the same client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedfew.flower.messages import FAILED, JOIN, Letter, RefusedError
from fedfew.flower.site_errors import WORDS


@dataclass(frozen=True)
class Member:
    """A site as it introduced itself."""

    client: int
    samples: int
    test_samples: int  # 0 where the site does not say
    classes: int
    shape: tuple[int, ...]
    vocabulary: int
    pixels: str
    name: str


class Roster:
    """The sites that have joined, by node."""

    def __init__(self, clients: int, max_samples: int) -> None:
        self.clients = clients
        self.max_samples = max_samples
        self.members: dict[int, Member] = {}
        self.waiting: dict[int, Member] = {}  # nodes that say they are a client which another node is, as far as we know
        self.turned_away: dict[int, str] = {}  # nodes that cannot take part, and why; asked again if they leave and come back

    def strangers(self, nodes: set[int]) -> set[int]:
        """Those of the nodes that have to be asked who they are."""
        self.turned_away = {node: why for node, why in self.turned_away.items() if node in nodes}
        return nodes - self.members.keys() - self.waiting.keys() - self.turned_away.keys()

    def welcome(self, node: int, member: Member) -> bool:
        """Note down who a node is. Where another node is this client already, it has to wait until that one is gone (a site that
        was restarted is known twice for a minute); did it not have to?"""
        taken = any(known.client == member.client for known in self.members.values())
        (self.waiting if taken else self.members)[node] = member
        return not taken

    def succeed(self, nodes: set[int]) -> list[int]:
        """Let nodes that wait take the place of those that cannot be reached any more; the clients that this concerns."""
        back = []
        for node, member in list(self.waiting.items()):
            holders = [other for other, known in self.members.items() if known.client == member.client]
            if node not in nodes:
                del self.waiting[node]
            elif not any(other in nodes for other in holders):
                for other in holders:
                    del self.members[other]
                self.members[node] = self.waiting.pop(node)
                back.append(member.client)
        return back

    def present(self, nodes: set[int]) -> dict[int, int]:
        """Node by client, of those who can be reached, in the order of clients."""
        there = {member.client: node for node, member in self.members.items() if node in nodes}
        return dict(sorted(there.items()))

    def read(self, letter: Letter) -> Member:
        """A site's introduction, checked."""
        if letter.kind == FAILED:
            why = letter.values.get("why")
            raise RefusedError(f"the site failed: {why}" if why in WORDS else "the site failed")
        if letter.kind != JOIN:
            raise RefusedError("it answers something else")
        shape = letter.values.get("shape")
        if not isinstance(shape, list) or len(shape) > 8 or not all(isinstance(n, int) and 0 < n < 2**31 for n in shape):
            raise RefusedError("shape is not a list of sizes")
        pixels, name = letter.text("pixels"), letter.text("name")[:80]
        if pixels not in ("symmetric", "unit"):
            raise RefusedError("pixels is neither symmetric nor unit")
        return Member(
            client=letter.whole("client", 0, self.clients - 1),
            samples=letter.whole("samples", 1, self.max_samples),
            test_samples=letter.whole("test_samples", 1, self.max_samples) if "test_samples" in letter.values else 0,
            classes=letter.whole("classes", 1, 10_000_000),
            shape=tuple(int(n) for n in shape),
            vocabulary=letter.whole("vocabulary", 0, 2**31),
            pixels=pixels,
            name=name,
        )


def agreed(members: list[Member]) -> dict[str, Any]:
    """What all sites' data have in common: the shape of a sample, how many classes; or an error that names who differs."""
    first = members[0]
    for member in members:
        for what in ("shape", "vocabulary", "pixels"):
            if getattr(member, what) != getattr(first, what):
                raise ValueError(
                    f"sites do not fit together: {what} is {getattr(first, what)} for client {first.client}, but "
                    f"{getattr(member, what)} for client {member.client}"
                )
    return {
        "shape": list(first.shape),
        "classes": max(member.classes for member in members),
        "vocabulary": first.vocabulary or None,
        "pixels": first.pixels,
        "name": first.name,
    }
