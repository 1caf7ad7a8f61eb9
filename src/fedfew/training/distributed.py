"""One federation, several processes: each trains its share of a round's clients, on a GPU of its own.

``torchrun --nproc-per-node 2 -m fedfew run …`` starts them; :func:`fedfew.train` joins whatever process group it finds. After
every round the processes exchange what their clients sent, so all hold the same server, the same clients' states and the same
history, to the last bit. Only the first writes files and reports.

What describes the tensors travels by gloo, from CPU to CPU, before the tensors do: a process that waits for one that has ended
then hears of it at once, which on a GPU it would not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fedfew.stack import Tree, from_named, named_leaves
from fedfew.util.interrupts import handled_by

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


class PeerError(RuntimeError):
    """Another of the processes has ended, or does something else."""


@dataclass(frozen=True)
class Group:
    """The processes that train together. A process alone is a group of one, for which all of this does nothing."""

    rank: int = 0
    size: int = 1
    words: ProcessGroup | None = None  # by which what is no tensor travels; None: as all else

    @property
    def first(self) -> bool:
        """Is this the process that writes files and reports?"""
        return self.rank == 0

    def share(self, clients: Tensor, counts: Tensor) -> Tensor:
        """This process's part of the clients; ``counts`` are their numbers of samples, which is what takes time."""
        return clients if self.size == 1 else clients[shares(counts.tolist(), self.size)[self.rank]]

    def everyones(self, mine: T) -> list[T]:
        """One value per process, in the order of their ranks."""
        if self.size == 1:
            return [mine]
        gathered: list[Any] = [None] * self.size
        with _peers_that_end(self):
            dist.all_gather_object(gathered, mine, self.words)
        return gathered

    def firsts(self, mine: T) -> T:
        """The value of the first process."""
        return self.everyones(mine)[0]

    def everyones_trees(self, mine: Tree, device: torch.device) -> Iterator[Tree]:
        """The processes' trees, in the order of their ranks, on this device. Each is held no longer than it is looked at."""
        if self.size == 1:
            yield mine
            return
        own = {path: t.to(device).contiguous() for path, t in named_leaves(mine)}
        layouts = self.everyones([(path, t.shape, t.dtype) for path, t in own.items()])
        for rank, layout in enumerate(layouts):
            if rank == self.rank:
                tensors = own
            else:
                tensors = {path: torch.empty(shape, dtype=dtype, device=device) for path, shape, dtype in layout}
            with _peers_that_end(self):
                for tensor in tensors.values():
                    if tensor.numel():
                        dist.broadcast(tensor, rank)
            yield from_named(tensors)

    def check_same(self, settings: dict[str, Any]) -> None:
        """Refuse, naming it, a setting that another process was started with another value of."""
        for rank, others in enumerate(self.everyones(settings)):
            for name, value in settings.items():
                if others[name] != value:
                    raise PeerError(
                        f"the processes must train the same: {name} is {value!r} in process {self.rank + 1}, but "
                        f"{others[name]!r} in process {rank + 1}"
                    )


def shares(counts: list[int], parts: int) -> list[list[int]]:
    """Positions of the clients of each process: the largest first, to the process with the least work; each part in order."""
    loads, mine = [0] * parts, [list[int]() for _ in range(parts)]
    for position in sorted(range(len(counts)), key=lambda i: -counts[i]):
        part = loads.index(min(loads))
        loads[part] += counts[position]
        mine[part].append(position)
    return [sorted(part) for part in mine]


def group() -> Group:
    """The group this process is in: what is initialised of ``torch.distributed``, or itself alone."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return Group()
    by_gloo = "cpu:gloo" in dist.get_backend_config()
    return Group(dist.get_rank(), dist.get_world_size(), None if by_gloo else dist.new_group(backend="gloo"))


def launched() -> int:
    """How many processes torchrun started together with this one; 1: it did not."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def only_alone(command: str) -> None:
    if launched() > 1:
        raise ValueError(
            f"'fedfew {command}' runs in one process, but torchrun started {launched()}; 'fedfew run' can make use of several"
        )


@contextmanager
def joined() -> Iterator[bool]:
    """Within: the processes that torchrun started are a group. Yields whether this is the one that writes files and reports."""
    if launched() == 1:
        yield True
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield dist.get_rank() == 0
    finally:
        dist.destroy_process_group()


def device_of(group: Group, device: torch.device) -> torch.device:
    """The device of this process, given the ``device`` that the settings name: a GPU for each."""
    if group.size == 1 or device.type != "cuda":
        return device
    here, there_are = int(os.environ.get("LOCAL_RANK", group.rank)), torch.cuda.device_count()
    if device.index is not None:
        raise ValueError(f"device is {str(device)!r}, but there are {group.size} processes, each on a GPU of its own: use 'cuda'")
    if here >= there_are:
        raise ValueError(
            f"this machine has {there_are} GPUs, too few for a process each: start torchrun with --nproc-per-node {there_are}"
        )
    torch.cuda.set_device(here)
    return torch.device("cuda", here)


@contextmanager
def stoppable(group: Group) -> Iterator[None]:
    """Within: SIGTERM, by which torchrun ends the others when one has ended, is a Ctrl-C, so that nothing is lost by it.

    Only the first signal counts: the next, which torchrun sends right after a terminal's, would hit what is then written down.
    """
    received: list[int] = []

    def stop(number: int, frame: Any) -> None:
        received.append(number)
        if len(received) == 1:
            raise KeyboardInterrupt

    with _signals(group, stop):
        yield


@contextmanager
def unstoppable(group: Group) -> Iterator[None]:
    """Within: the stopped run is written, and signals are ignored."""
    with _signals(group, signal.SIG_IGN):
        yield


def _signals(group: Group, handler: Any) -> AbstractContextManager[None]:
    return nullcontext() if group.size == 1 else handled_by(handler, signal.SIGTERM, signal.SIGINT)


@contextmanager
def _peers_that_end(group: Group) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerError(
            f"process {group.rank + 1} of {group.size} cannot reach the others any more: one of them has ended, and has reported "
            f"why ({str(error).splitlines()[0][:200]})"
        ) from error
