"""The one way out of a site and the one way in to the server for an update.

``outgoing`` turns an update into what travels, ``incoming`` turns that back; ``expected`` is what the server lets in. ``kept`` is
what a site remembers from one round to the next: what compression has lost so far. It is stored with the site's own state and
goes back with it where a round is repeated.
"""

from __future__ import annotations

from fedfew.flower.messages import RefusedError, Spec, specs
from fedfew.methods import compression
from fedfew.methods.compression import Way
from fedfew.stack import Tree


def outgoing(update: Tree, kept: Tree, how: Way = "none") -> tuple[Tree, Tree]:
    """What travels, and what is kept for the next round."""
    if how == "int8":
        return compression.with_feedback(update, kept, how)
    return compression.encode(update, how), {}  # bf16 loses too little to be worth a copy of the update on disk


def incoming(arrived: Tree, like: Tree, how: Way = "none") -> Tree:
    """The update that a letter's checked arrays stand for; ``like`` has its names, shapes and types."""
    try:
        compression.check(arrived, like, how)
    except ValueError as error:
        raise RefusedError(str(error)) from error
    return compression.decode(arrived, like, how)


def expected(like: Tree, how: Way = "none") -> dict[str, Spec]:
    """Names, shapes and types of the arrays that an update looking ``like`` this travels as."""
    return specs(outgoing(like, {}, how)[0])
