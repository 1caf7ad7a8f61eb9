"""Leading axes of stacks: more clients, one model per client."""

from __future__ import annotations

from fedfew.stack import Tree, tree_map


def copies(tree: Tree, number: int) -> Tree:
    """So many copies of a tree, stacked along a new leading axis."""
    return tree_map(lambda t: t.expand(number, *t.shape).clone(), tree)


def expanded(tree: Tree, clients: int) -> Tree:
    """A stack for so many clients ``[C, …]`` from one for all of them ``[1, …]``; nothing is copied."""
    return tree_map(lambda t: t.expand(clients, *t.shape[1:]), tree)


def add_model_axis(tree: Tree) -> Tree:
    """One model per client ``[C, …]`` as a stack of clients and models ``[C, 1, …]``."""
    return tree_map(lambda t: t[:, None], tree)


def drop_model_axis(tree: Tree) -> Tree:
    """The only model of each client: ``[C, 1, …]`` as ``[C, …]``."""
    return tree_map(lambda t: t[:, 0], tree)
