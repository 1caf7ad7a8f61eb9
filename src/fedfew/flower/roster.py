"""Who is who: which node is which client. A site that was restarted comes back as another node, but as the same client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedfew.flower.letters import FAILED, JOIN, Letter, RefusedError
from fedfew.flower.trouble import WORDS


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
        self.turned_away: dict[int, str] = {}  # nodes that are not asked again, and why

    def strangers(self, nodes: set[int]) -> set[int]:
        """Those of the nodes that have to be asked who they are."""
        return nodes - self.members.keys() - self.turned_away.keys()

    def welcome(self, node: int, member: Member, nodes: set[int]) -> bool:
        """Note down who a node is; ``nodes`` can be reached now. Was this client another node before?"""
        before = [other for other, known in self.members.items() if known.client == member.client and other != node]
        if any(other in nodes for other in before):
            raise RefusedError(f"it says it is client {member.client}, which is here already")
        for other in before:
            del self.members[other]
        self.members[node] = member
        return bool(before)

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
