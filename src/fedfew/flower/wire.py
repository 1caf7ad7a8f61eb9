"""The one encoding of updates between a site and the server.

``outgoing`` encodes an update, ``incoming`` decodes it, and ``expected`` is what the server accepts. ``residual`` is what
compression has lost so far (error feedback). It is stored with the site's private state, and is that of the round before where a
round is repeated.
"""

from __future__ import annotations

from fedfew.flower.messages import RefusedError, Spec, specs
from fedfew.methods import compression
from fedfew.methods.compression import Way
from fedfew.stack import Tree


def outgoing(update: Tree, residual: Tree, how: Way) -> tuple[Tree, Tree]:
    """The arrays to send, and the residual for the next round."""
    if how == "int8":
        return compression.with_feedback(update, residual, how)
    return compression.encode(update, how), {}  # bf16 loses too little to be worth storing a residual


def incoming(arrived: Tree, like: Tree, how: Way) -> Tree:
    """The update in a message's checked arrays; ``like`` has its names, shapes and types."""
    try:
        compression.check(arrived, like, how)
    except ValueError as error:
        raise RefusedError(str(error)) from error
    return compression.decode(arrived, like, how)


def expected(like: Tree, how: Way) -> dict[str, Spec]:
    """Names, shapes and types of the arrays that an update ``like`` this is sent as."""
    return specs(outgoing(like, {}, how)[0])
