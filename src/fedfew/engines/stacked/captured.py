"""Local training of a stack on a GPU as a few CUDA graphs.

A step of training is a hundred small kernels; started one by one from Python they would keep the GPU waiting. Here a step is
captured once for each number of clients that are still in their epoch, and then a round is a row of replays: what changes from
step to step (which samples, which keys) lies in buffers on the device, and the number of the step is counted there too, so the
host neither waits for the device nor sends it anything. The first time a step is recorded and run, which warms up what it needs;
the second time it is captured too. Before the first of all, kernels are compiled side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.engines.augment import moves
from fedfew.engines.base import Pass
from fedfew.engines.mixup import mixed, of_both
from fedfew.engines.stacked import optimizer
from fedfew.engines.stacked.batches import PLAIN, filler, inputs, precision
from fedfew.engines.stacked.fused import image_layout
from fedfew.engines.stacked.kernels.compiling import compiled_only, finish_compiling
from fedfew.engines.stacked.space import Space, Work
from fedfew.federation import Samples
from fedfew.local import Objective, Projection
from fedfew.stack import Tree, leaves, named_leaves, tree_map

if TYPE_CHECKING:
    from fedfew.engines.stacked.engine import Stacked

KEPT = 1024  # graphs; one objective needs one for each number of clients that are still in an epoch, and a pack has many


class CudaGraphs:
    """Captures work as CUDA graphs, which replay one after the other and so may share their memory."""

    def __init__(self) -> None:
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(priority=-1)  # before what runs beside it
        self._first: Work | None = None

    def __call__(self, work: Work) -> Work:
        if self._first is None:  # a pool that no graph uses any more is lost, and capturing into it an error: one always stays
            self._first = self._captured(lambda: torch.zeros(1, device="cuda"))
        return self._captured(work)

    def _captured(self, work: Callable[[], object]) -> Work:
        """As ``torch.cuda.graph`` does it, which frees all cached memory every time: the next step would allocate it anew."""
        finish_compiling()  # a kernel must not be loaded during a capture, by whichever thread
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        if torch.cuda.mem_get_info()[0] < torch.cuda.memory_reserved():
            torch.cuda.empty_cache()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool)
            try:
                work()
            finally:
                graph.capture_end()
        return graph.replay


class CapturedTraining:
    """What :class:`Stacked` does on a GPU for training."""

    def __init__(self, engine: Stacked, capture: Callable[[Work], Work] | None = None) -> None:
        """capture: makes of a piece of work, which has run before, one that does the same again; a CUDA graph unless given."""
        self.engine = engine
        self.batch_size = engine.training.batch_size
        self._capture = capture or CudaGraphs()
        self._compiled = False
        self._spaces: dict[Hashable, Space] = {}
        self._last: tuple[Space, Samples, Tensor] | None = None  # what was trained on last, and its clients' rank

    def train(
        self,
        params: Tree,
        samples: Samples,
        rank: Tensor,
        sizes: list[int],
        passes: Iterator[Pass],
        objective: Objective,
        context: Tree,
        project: Projection | None,
    ) -> tuple[Tree, Tensor]:
        """Trained parameters [C, K, …] and mean losses, in the order of ``rank``."""
        clients, models = leaves(params)[0].shape[:2]
        steps = -(-sizes[0] // self.batch_size)
        space = self._space(params, context, samples, clients, models, steps)
        self._last = space, samples, rank
        for into, tree in ((space.weights, params), (space.context, context)):
            tree_map(lambda into, t: into[: clients * models].unflatten(0, (clients, models)).copy_(_sorted(t, rank)), into, tree)
        for of_optimizer in space.state.values():
            of_optimizer.zero_()
        active = [sum(size > step * self.batch_size for size in sizes) for step in range(steps)]
        for one_pass in passes:
            if space.begun is not one_pass:
                self._begin(space, samples, rank, one_pass.take(rank))
            space.begun = None
            for count in active:
                self._step(space, count, models, objective, project, one_pass.importance is not None)
        trained = tree_map(lambda t: t[: clients * models].unflatten(0, (clients, models)), space.weights)
        return trained, space.mean_loss[objective][:clients]

    def begin(self, samples: Samples, one_pass: Pass) -> None:
        """Fill the buffers for an epoch to come, where it is one of the samples trained on last."""
        if self._last is not None and self._last[1] is samples:
            space, _, rank = self._last
            self._begin(space, samples, rank, one_pass.take(rank))
            space.begun = one_pass

    def _space(self, params: Tree, context: Tree, samples: Samples, clients: int, models: int, steps: int) -> Space:
        shapes = [tuple((path, t.shape[2:], t.dtype) for path, t in named_leaves(tree)) for tree in (params, context)]
        key = (models, samples.x.data_ptr(), samples.y.data_ptr(), *shapes)
        space = self._spaces.get(key)
        if space is None or not space.fits(clients, steps):
            if space is not None:
                clients, steps = max(clients, space.clients), max(steps + steps // 4, space.steps)
            self._spaces[key] = space = self._new_space(params, context, samples, clients, models, steps)
        return space

    def _new_space(self, params: Tree, context: Tree, samples: Samples, clients: int, models: int, steps: int) -> Space:
        device, dtype = samples.y.device, precision(params)

        def like(t: Tensor) -> Tensor:
            """For filters in the layout that the kernels read: channels last."""
            size = t.shape[2:]
            if len(size) < 3:
                return torch.empty(clients * models, *size, dtype=t.dtype, device=device)
            return torch.empty(clients * models, size[0], *size[2:], size[1], dtype=t.dtype, device=device).movedim(-1, 2)

        weights = tree_map(like, params)
        return Space(
            clients,
            steps,
            samples,
            weights,
            tree_map(like, context),
            optimizer.fresh_state(self.engine.training, self.engine.trained(weights)),
            torch.zeros((), dtype=dtype, device=device),
            torch.zeros(clients, models, steps * self.batch_size, dtype=torch.int64, device=device),
            torch.zeros(clients, steps * self.batch_size, dtype=dtype, device=device),
            torch.zeros(clients, steps, dtype=dtype, device=device),
            torch.zeros(clients, models, dtype=torch.int64, device=device),
            torch.zeros(clients, models, steps * self.batch_size, 3, dtype=torch.int32, device=device),
            torch.zeros(clients, models, steps, device=device),
            torch.zeros(clients, models, steps * self.batch_size, device=device),
            torch.zeros(1, dtype=torch.int64, device=device),
            torch.arange(self.batch_size, device=device),
        )

    def _begin(self, space: Space, samples: Samples, rank: Tensor, one_pass: Pass) -> None:
        """Fill the buffers for an epoch."""
        clients, _, longest = one_pass.order.shape
        count = samples.count[rank][:, None]
        position = torch.arange(space.steps * self.batch_size, device=rank.device)
        b = (count - position // self.batch_size * self.batch_size).clamp(0, self.batch_size)
        start, fills = samples.start[rank][:, None, None], filler(one_pass.order, count[:, 0], self.batch_size)
        space.rows[:clients, :, :longest] = start + one_pass.order
        space.rows[:clients] = space.rows[:clients].where((position < count)[:, None], start + fills)
        space.weight[:clients] = (position < count).to(space.weight.dtype) / b.clamp_min(1)
        space.share[:clients] = b[:, :: self.batch_size].to(space.share.dtype) / count
        if one_pass.dropout is not None:
            space.dropout[:clients] = one_pass.dropout
        if one_pass.augment is not None:
            space.moves[:clients] = moves(self.engine.training.augment, one_pass.augment, position)
        if one_pass.mixup is not None:
            space.mixup[:clients, :, : one_pass.mixup.shape[-1]] = one_pass.mixup
        if one_pass.importance is not None:
            space.importance[:clients, :, :longest] = one_pass.importance
        space.lr.fill_(one_pass.lr)
        space.step.zero_()
        for mean_loss in space.mean_loss.values():
            mean_loss.zero_()

    def _step(
        self, space: Space, active: int, models: int, objective: Objective, project: Projection | None, weighted: bool
    ) -> None:
        key = (active, objective, project, weighted, self.engine.module.training)
        graph = space.graphs.get(key)
        if graph is not None:
            space.graphs.move_to_end(key)
            graph()
            return
        if not self._compiled:
            self._compile(space, models, objective, project, weighted)
        work = self._work(space, active, models, objective, project, weighted)
        work()  # also before it is captured: a capture must find everything recorded and compiled
        if key not in space.seen:
            space.seen.add(key)
            return
        space.graphs[key] = self._capture(work)
        if len(space.graphs) > KEPT:
            space.graphs.popitem(last=False)

    def _compile(self, space: Space, models: int, objective: Objective, project: Projection | None, weighted: bool) -> None:
        """Have all kernels compiled side by side: a step of one client, in buffers of its own, that starts none of them."""
        self._compiled = True
        weights, context = (tree_map(lambda t: t[None], tree) for tree in (space.weights, space.context))
        one = self._new_space(weights, context, space.samples, 1, models, 1)
        for tree in (one.weights, one.context):
            tree_map(Tensor.zero_, tree)
        with compiled_only():
            self._work(one, 1, models, objective, project, weighted)()
            inputs(space.samples, one.rows[0])  # as samples are read for scores

    def _work(
        self, space: Space, active: int, models: int, objective: Objective, project: Projection | None, weighted: bool
    ) -> Work:
        """One step of the first ``active`` clients, as a function of nothing but the buffers."""
        engine, training = self.engine, self.engine.training
        front = engine.differentiation.front(
            space.weights, space.context, active * models, objective, engine.drops, weighted, training=True
        )
        lr = space.lr if training.scheduled else training.lr
        features = replace(space.samples, row=None)  # a batch says where its features are
        layout = PLAIN if training.mixup else image_layout(engine.module)

        def work() -> None:
            batch = space.read(active, training.augment != "none", weighted)
            x, y, weight, importance = inputs(features, batch.at, batch.moves, layout), batch.y, batch.weight, batch.importance
            key = random_streams.count(space.dropout[:active].flatten(), space.step) if engine.drops else None
            if training.mixup:
                importance = None if importance is None else of_both(importance, weight)
                x, y, weight = mixed(x, y, weight, space.mixup[:active].index_select(2, space.step).flatten())
            reported = engine.differentiation.step(front, x, y, weight, importance, key, lr, space.state, project)
            space.report(objective, reported, batch.share)

        return work


def _sorted(t: Tensor, rank: Tensor) -> Tensor:
    """By rank along the clients' axis; what is the same for all of them is not copied."""
    return t if t.stride(0) == 0 else t.index_select(0, rank)
