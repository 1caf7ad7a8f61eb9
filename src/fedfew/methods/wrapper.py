"""A method around another one: everything is passed on to it, but for what a subclass changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from torch import Tensor

from fedfew.local import Local
from fedfew.methods.base import Fresh, Method, Outcome
from fedfew.stack import Tree, branch

NOT_PASSED_ON = {
    *("check", "require", "unused", "beyond"),  # of hyperparameters, of which a wrapper has none but the method
    "candidates",  # made of dispatch and serve, which may be the wrapper's own
}


@dataclass(frozen=True)
class Wrapper(Method):
    """Passes everything on to ``method``."""

    method: Method

    def __post_init__(self) -> None:
        words = ("name", "served", "adapted", "notes", "needs_classes", "head_gives_logits")
        for word in words:  # it goes by the name of what it is wrapped around
            object.__setattr__(self, word, getattr(self.method, word))

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        return self.method.init(fresh, clients)

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        return self.method.client(received, own, local)

    def serve(self, received: Tree, own: Tree) -> Tree:
        return self.method.serve(received, own)

    def smoothed(self, factor: float) -> Method:
        return replace(self, method=self.method.smoothed(factor))


@dataclass(frozen=True)
class KeepingWrapper(Wrapper):
    """One that keeps something at the clients as well: the private state of ``method`` is the branch ``own`` of theirs."""

    def finish(self, own: Tree, local: Local) -> Tree:
        return own | {"own": self.method.finish(branch(own, "own"), local)}

    def diverged(self, own: Tree) -> Tensor | None:
        return self.method.diverged(branch(own, "own"))

    def mixture(self, own: Tree) -> Tensor | None:
        return self.method.mixture(branch(own, "own"))


def _passed_on(name: str) -> Any:
    """A property or function of methods, as that of the method within."""
    if isinstance(vars(Method)[name], property):
        return property(lambda self: getattr(self.method, name))
    return lambda self, *args, **settings: getattr(self.method, name)(*args, **settings)


_members = {name for name, member in vars(Method).items() if isinstance(member, property | FunctionType) and name[0] != "_"}
for _name in _members - NOT_PASSED_ON - vars(Wrapper).keys():
    setattr(Wrapper, _name, _passed_on(_name))
