"""The one way out of a site and the one way in to the server for an update.

``outgoing`` turns an update into what travels, ``incoming`` turns that back; ``expected`` is what the server lets in. Whatever
makes updates smaller has its place here. ``kept`` is what a site remembers from one round to the next for it (what compression
left behind, say); it is stored with the site's own state and goes back with it where a round is repeated.
"""

from __future__ import annotations

from fedfew.flower.letters import Spec, specs
from fedfew.stack import Tree

HOW = ("none",)  # ways to write an update


def outgoing(update: Tree, kept: Tree, how: str = "none") -> tuple[Tree, Tree]:
    """What travels, and what is kept for the next round."""
    return update, kept


def incoming(arrived: Tree, like: Tree, how: str = "none") -> Tree:
    """The update that a letter's checked arrays stand for; ``like`` has its names, shapes and types."""
    return arrived


def expected(like: Tree, how: str = "none") -> dict[str, Spec]:
    """Names, shapes and types of the arrays that an update looking ``like`` this travels as."""
    return specs(outgoing(like, {}, how)[0])
