"""The contract of a federated method.

A method is a frozen dataclass of its hyper-parameters with a few functions on stacks: trees whose tensors have leading axes
``[clients, models]``. It is written once, for a stack of clients: the simulator passes all of them (or as many at a time as
fit in memory), a real site is a stack of one. States and messages are plain trees, so a checkpoint is a state written down and a
message on the wire is a state sent.

One round:

    message = method.dispatch(server, …)                       # server → clients
    outcome = method.client(message, own, local)               # at the client: local.train, local.loss, local.gradient
    ω = exp(method.log_weights(outcome.reply, …))              # how much each client counts for each model
    server = method.aggregate(server, weighted mean by ω)      # clients → server

and at any time ``method.serve(message, own)`` gives the candidate models a client would choose from now.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, get_args

from torch import Tensor

from fedfew.methods.allowed import rules
from fedfew.stack import Tree, bytes_each, leaves, on_cpu, take, tree_map
from fedfew.util.validated import with_plain_numbers
from fedfew.weighted_mean import WeightedMean

if TYPE_CHECKING:
    from torch import nn

    from fedfew.local import Local


Returned = TypeVar("Returned")
LOSS_BOUND = 10.0  # times the median; the largest factor that was measured in honest runs is 6.4
Family = Literal["few models", "one model", "personal parts", "one model per client", "other"]
"""What clients have in common: K models that they choose from; one model; a part of a model; nothing but each other's help."""
FAMILIES: tuple[Family, ...] = get_args(Family)


@dataclass(frozen=True)
class Fresh:
    """fresh(k): the k-th initialisation, a single replica: parameters and buffers."""

    make: Callable[[int], Tree]
    buffers: frozenset[str] = frozenset()  # names of what is not trained by gradient

    def __call__(self, k: int) -> Tree:
        return self.make(k)


@dataclass
class Reply:
    """What a stack of C clients sends back."""

    update: Tree  # [C, K, …] (or [C, 1, …]); empty if nothing travels
    losses: Tensor  # [C, K]: L_i(θ_k), the mean loss of client i's training data under model k
    samples: Tensor  # [C]: n_i
    unseen: Tensor | None = None  # [C, K]: mean losses on samples that are never trained on, where the client keeps some

    @property
    def bytes_each(self) -> int:
        """What one client sends: its update and its losses, or nothing at all."""
        return bytes_each(self.update | self.all_losses) if self.update else 0

    def with_numbers_on_cpu(self) -> Reply:
        """The same, with all but the update on the CPU."""
        losses, samples, *unseen = on_cpu([self.losses, self.samples, *([] if self.unseen is None else [self.unseen])])
        return replace(self, losses=losses, samples=samples, unseen=unseen[0] if unseen else None)

    @property
    def all_losses(self) -> Tree:
        """What a client reports besides its update."""
        losses: Tree = {"losses": self.losses}
        return losses if self.unseen is None else losses | {"unseen": self.unseen}


@dataclass
class Outcome:
    """What a round leaves behind at a stack of clients."""

    reply: Reply
    own: Tree  # [C, …]: the clients' new private state
    adapted: Tree  # [C, S, …]: candidate models after this round's local training, for scoring
    mixture: Tensor | None = None  # [C, S]: the weights that the method learned for them, where it serves a mixture


def returned(method: Method, function: str, value: Returned, kind: type, what: str = "a tree (a dict of tensors)") -> Returned:
    """A value that a function of a method returned, if it is of this kind; a method of the user's own may forget to return."""
    if not isinstance(value, kind):
        given = "None: is a return missing?" if value is None else type(value).__name__
        raise TypeError(f"{method.name}: {function} must return {what}, but returned {given}")
    return value


@dataclass(frozen=True)
class Method(ABC):
    """Base of all methods; subclasses are frozen dataclasses registered under ``name``."""

    name: ClassVar[str]
    family: ClassVar[Family] = "other"  # the group under which it is listed
    summary: ClassVar[str] = ""  # what it does, in one line
    when: ClassVar[str] = ""  # when to use it, in one line
    served: ClassVar[str]  # which weights the served score uses, in words
    adapted: ClassVar[str]  # which weights the adapted score uses, in words

    notes: ClassVar[frozenset[str]] = frozenset()
    """Branches of the server's state that are no models (control variates, assignments): the server's optimiser leaves them to
    the method."""

    @classmethod
    def recorded(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Recorded settings, completed with the hyperparameters that the version which recorded them did not have."""
        defaults = {f.name: _plain(f.default) for f in fields(cls) if f.default is not MISSING}
        return defaults | dict(settings)

    @classmethod
    def as_published(cls, **changes: Any) -> Self:
        """The form in which the published code ran this method, with ``changes``; the same as the default unless overridden."""
        return cls(**changes)

    def __post_init__(self) -> None:
        with_plain_numbers(self)
        for name, rule in rules(type(self)).items():
            self.require(rule.passes(getattr(self, name)), name, rule.wanted)
        self.check()

    def check(self) -> None:  # noqa: B027  # optional: the types of most hyperparameters say what is allowed
        """Raise ValueError, naming the setting, where hyperparameters do not fit each other, or their types say too little."""

    needs_classes: ClassVar[bool] = False  # whether it works with classes alone: it counts labels, or shifts logits
    head_gives_logits: ClassVar[bool] = False  # whether nothing may come after the head, see head_layer

    def head_layer(self, parameters: Mapping[str, Tensor]) -> str | None:
        """The name of the linear layer that the method takes as the head, given the parameters and buffers of a replica; None: it
        needs no such layer. It sees one vector of features per sample and, where the method needs classes, has an output per
        class or more."""
        return None

    def check_against(self, clients: int) -> None:
        """The same for what depends on the federation."""
        for name, rule in rules(type(self)).items():
            fits = not rule.up_to_clients or getattr(self, name) <= clients
            self.require(fits, name, f"at most the number of clients ({clients})")

    def without_effect(self, clients: int, layers: int, optimizer: str) -> list[str]:
        """One line per setting that was given but has no effect, because of another setting, the number of clients, the number
        of layers of the model or the clients' optimiser. See :meth:`unused` and :meth:`beyond`."""
        return []

    def unused(self, why: str, *settings: str) -> list[str]:
        """Lines for those of these settings that are not at their defaults."""
        changed = [f.name for f in fields(self) if f.name in settings and getattr(self, f.name) != f.default]
        return [f"{self.name}: {name} is {getattr(self, name)}, but {why}: it has no effect" for name in changed]

    def beyond(self, setting: str, most: int, why: str) -> list[str]:
        """A line if the setting is not at its default and larger than what has an effect."""
        value = getattr(self, setting)
        if value <= most or value == type(self).__dataclass_fields__[setting].default:
            return []
        return [f"{self.name}: {setting} is {value}, but {why}: it has the effect of {most}"]

    def smoothed(self, factor: float) -> Method:
        """The method with its smoothing times this factor, for one round; itself if it has none. Models, messages and private
        states must not depend on the smoothing."""
        return self

    @property
    def replicas(self) -> int:
        """How many models a client trains side by side."""
        return 1

    def around(self, factory: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        """The factory of the modules that clients use, for a method that predicts with more than the model (a memory, say)."""
        return factory

    @abstractmethod
    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        """The server's state, and the private states of all clients ``[M, …]`` (``{}`` if there are none)."""

    def dispatch(self, server: Tree, clients: Tensor) -> Tree:
        """What the clients at these positions receive: ``[C, …]``, or ``[1, …]`` where all receive the same."""
        return tree_map(lambda t: t[None], server)

    @abstractmethod
    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        """A round at a stack of clients."""

    def finish(self, own: Tree, local: Local) -> Tree:
        """The private states of a stack of clients after the work that only their served models need and training does not, which
        :meth:`client` left undone (FedBABU's fine-tuning). It is asked for where models are needed: a round is scored, a
        checkpoint is written, or the run ends. The result must not depend on when that is. The default: nothing was left."""
        return own

    @property
    def finishes(self) -> bool:
        """Does :meth:`finish` do anything?"""
        return type(self).finish is not Method.finish

    def diverged(self, own: Tree) -> Tensor | None:
        """For each of a stack of clients, the round ``[C]`` whose work in :meth:`finish` diverged, so that the client keeps the
        model that it had before; 0: none. None: the method does not note it."""
        return None

    def log_weights(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor:
        """log ω[i, k]: how much client i counts for model k, without normalisation.

        share: n_i / Σ_j n_j over the clients of this round; clients: their positions in the federation. The default is
        FedAvg's: by number of samples.
        """
        return share.log()[:, None].expand(reply.losses.shape)

    def log_whole(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor | None:
        """One number per client, the sum of whose exponentials is what the weights are shares of (``WeightedMean.shares``), for a
        method whose weights ω do not sum to the whole by themselves. None: they do."""
        return None

    @property
    def checks_losses(self) -> bool:
        """Do its clients report losses on samples that are never trained on (``check_share``)?"""
        return False

    def confirmed(self, losses: Tensor, unseen: Tensor, share: Tensor, spread: float = 0.0) -> float:
        """By how much the differences between a client's losses are multiplied in the next round, given those of this round
        ``[C, K]``, those on samples that are never trained on, and the clients' shares of the samples [C]. spread:
        ``smoothing_spread``."""
        return 1.0

    def loss_bound(self, median: float) -> float:
        """The largest loss under its best model that counts for a client's weight, given the median over clients in the round
        before (docs/robustness.md)."""
        return LOSS_BOUND * median

    @property
    def share_cap(self) -> float:
        """The largest share of a round's weights that a client can have, for a method that weighs clients by the losses they
        report (docs/robustness.md); 1: no limit."""
        return 1.0

    def absorb(self, server: Tree, clients: Tensor, reply: Reply) -> Tree:
        """The server's state after noting down what single clients sent (few methods do: the mean is all they need)."""
        return server

    @property
    def absorbs(self) -> bool:
        """Does :meth:`absorb` do anything?"""
        return type(self).absorb is not Method.absorb

    def aggregate(self, server: Tree, mean: WeightedMean) -> Tree:
        """The server's new state, given the ω-weighted mean of the clients' updates for each model."""
        return server

    @property
    def aggregates(self) -> bool:
        """Does :meth:`aggregate` do anything?"""
        return type(self).aggregate is not Method.aggregate

    @property
    def not_optimised(self) -> str:
        """Why the server's optimiser leaves the whole state to the method, the end of "server_optimizer is …, but METHOD …".
        Empty: it moves the models, all that is not in ``notes``."""
        return "" if self.aggregates else "averages no updates"

    @property
    def averages(self) -> bool:
        """Do models move by the mean of a round, which ``aggregator`` may make a robust one?"""
        return self.aggregates

    def rearranged(self, average: Tree, before: Tree, after: Tree) -> Tree:
        """The average over rounds of the server's states (``server_average``) where a model of the state after a round goes on
        from another one of the state before: its average goes on from that one's, and so do the moments of the server's
        optimiser. The default: no model does."""
        return average

    @abstractmethod
    def serve(self, received: Tree, own: Tree) -> Tree:
        """Candidate models of a stack of clients now: ``[C, S, …]``, or ``[1, S, …]`` where all choose among the same."""

    @staticmethod
    def learned_mixture(losses: Tensor) -> Tensor | None:
        """The weights ``[K]`` that a client which took no part learns for the K models as they are, from the losses ``[K, n]`` of
        its samples. None: it chooses or mixes them by their mean losses."""
        return None

    def mixture(self, own: Tree) -> Tensor | None:
        """The weights ``[C, S]`` that a stack of clients learned for its candidates, rows summing to one: it predicts with their
        mixture, whatever ``serve`` says. None: it uses the candidate that fits it best, or a mixture by losses."""
        return None

    def candidates(self, server: Tree, own: Tree, clients: Tensor) -> Tree:
        """What :meth:`serve` gives the clients at these positions; own: the private states of all clients ``[M, …]``."""
        here = clients.to(leaves(own)[0].device) if leaves(own) else clients
        return returned(self, "serve", self.serve(self.dispatch(server, clients), take(own, here)), dict)

    def assigned(self, server: Tree) -> Tensor | None:
        """Which of the server's models each client is served ``[M]``, where the server decides it; −1: not decided yet, and the
        client is served none of them. None: clients choose, or have models of their own."""
        return None

    def server_models(self, server: Tree) -> Tree:
        """The server's models ``[K, …]``, for use outside of training; ``{}`` for a method that keeps none there."""
        return server

    def diagnose(self, log_weights: Tensor, log_alpha: Tensor) -> dict[str, Tensor]:
        """What is worth recording about a round, from log ω [C, K] and log α [C] of its clients, before the cap: numbers, or
        tensors with one row per client."""
        return {}

    def settings(self) -> dict[str, Any]:
        """Name and hyper-parameters as plain values: what is saved, shown and read back by :func:`fedfew.methods.make`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"name": self.name} | {k: _plain(v) for k, v in values.items()}

    def require(self, ok: bool, setting: str, wanted: str) -> None:
        if not ok:
            raise ValueError(f"{self.name}: {setting} must be {wanted}, not {getattr(self, setting)!r}")


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value
