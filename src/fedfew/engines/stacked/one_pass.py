"""Scores of small stacks in one recorded pass over the samples of all clients: of several stacks, on several splits at once.

For small models nearly all the time of scoring goes into deciding what to compute, once per model, batch and split. Here the
samples of all clients lie side by side, filled up to the longest of each split, and are gathered once for all rounds in which the
same clients are scored. Large stacks are scored batch by batch: their time is arithmetic, and filling up would add to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import vmap

from fedfew.engines.evaluation import ModelScores, forward
from fedfew.engines.memory import allowance
from fedfew.engines.stacked.traced import Traced
from fedfew.federation import Samples
from fedfew.stack import Tree, from_named, leaves, named_leaves

if TYPE_CHECKING:
    from fedfew.engines.stacked.engine import Stacked

SMALL = 2**26  # bytes that the models' outputs of all layers may take
Found = list[tuple[Tensor, Tensor]]  # loss and score of a stack on each split
UNKNOWN = torch.tensor(torch.nan)
KEPT = 16  # layouts: those of the clients scored last


@dataclass(frozen=True)
class Layout:
    """The samples of all clients and splits in one tensor ``[C, B, …]``, B = Σ longest."""

    splits: tuple[Samples, ...]  # a layout is found by their identity, so they must stay
    x: Tensor
    y: Tensor
    own: Tensor  # [C, B]: False for what fills a client's rows up
    count: Tensor  # [splits, C]
    log_prior: Tensor | None  # [C, B, classes]

    @classmethod
    def of(cls, splits: tuple[Samples, ...]) -> Layout:
        parts = []
        for s in splits:
            position = torch.arange(s.longest, device=s.count.device)
            own = position < s.count[:, None]
            rows = s.start[:, None] + position.where(own, 0)
            prior = None if s.log_prior is None else s.log_prior[:, None].expand(-1, s.longest, -1)
            parts.append((s.inputs(rows), s.y[rows], own, prior))
        x, y, owns, priors = zip(*parts, strict=True)
        prior = None if splits[0].log_prior is None else torch.cat(priors, 1)
        return cls(splits, torch.cat(x, 1), torch.cat(y, 1), torch.cat(owns, 1), torch.stack([s.count for s in splits]), prior)


class OnePass:
    """What :class:`Stacked` does to score a small stack."""

    def __init__(self, engine: Stacked) -> None:
        self.engine = engine
        self._recordings = Traced()
        self._layouts: OrderedDict[Hashable, Layout] = OrderedDict()

    def clients_at_once(self, params: Tree, splits: Sequence[Samples], bytes_per_sample: int) -> int:
        """How many clients are small enough to be scored in one pass; 0 where samples must not share a batch."""
        if self.engine.mixes_samples:
            return 0
        each = leaves(params)[0].shape[1] * sum(s.longest for s in splits) * bytes_per_sample
        return min(SMALL, allowance(splits[0].y.device) // 4) // each

    def scores(self, params: Tree, splits: Sequence[Samples], log_weights: Tensor | None = None) -> list[ModelScores]:
        """Scores ``[C, S]`` of ``params[R, S, …]``, each shared by C/R clients, on each split (the loss alone on all but the
        last); with log_weights ``[C, S]`` those of the mixture, too, as the last column."""
        return self.scores_of([params], splits, log_weights)[0]

    def scores_of(
        self, several: Sequence[Tree], splits: Sequence[Samples], log_weights: Tensor | None = None
    ) -> list[list[ModelScores]]:
        """The same of several stacks."""
        layout = self._layout(tuple(splits))
        optional = [t for t in (layout.log_prior, log_weights) if t is not None]
        tensors = (layout.x, layout.y, layout.own, layout.count, *(t for params in several for t in leaves(params)), *optional)
        lengths = tuple(s.longest for s in splits)
        names = tuple(tuple(path for path, _ in named_leaves(params)) for params in several)
        name = (lengths, names, layout.log_prior is not None, log_weights is not None)
        again = len(several) > 1  # they are scored together where all clients train together, as in every round
        recorded = self._recordings if again else self._recordings.from_the_second_time
        found: list[Found] = recorded(name, self._function(*name), *tensors)
        return [[ModelScores(*on_split) for on_split in of_stack] for of_stack in found]

    def _layout(self, splits: tuple[Samples, ...]) -> Layout:
        key = tuple(map(id, splits))
        if key not in self._layouts:
            self._layouts[key] = Layout.of(splits)
            if len(self._layouts) > KEPT:
                self._layouts.popitem(last=False)
        self._layouts.move_to_end(key)
        return self._layouts[key]

    def _function(
        self, lengths: tuple[int, ...], names: tuple[tuple[str, ...], ...], prior: bool, mixes: bool
    ) -> Callable[..., list[Found]]:
        """The losses ``[C, S]`` of each stack on each split and the score on the last as a function of nothing but tensors."""
        criterion = self.engine.criterion

        def scores(x: Tensor, y: Tensor, own: Tensor, count: Tensor, *rest: Tensor) -> list[Found]:
            given = iter(rest)
            several = [from_named({path: next(given) for path in of_stack}) for of_stack in names]
            optional = tuple(given)
            return [of(params, x, y, own, count, optional) for params in several]

        def of(params: Tree, x: Tensor, y: Tensor, own: Tensor, count: Tensor, optional: tuple[Tensor, ...]) -> Found:
            outputs = self._outputs(params, x)  # [C, S, B, d]
            if prior:
                outputs = outputs + optional[0][:, None]
            if mixes:
                mixed = criterion.task.mixed(outputs.movedim(1, 0), optional[-1].T[..., None, None])
                outputs = torch.cat([outputs, mixed[:, None]], 1)
            y = y[:, None].expand(-1, outputs.shape[1], *y.shape[1:])
            losses = _kept(criterion.losses(outputs, y), own[:, None]).split(list(lengths), -1)
            means = [part.sum(-1, dtype=torch.float64) / count[at][:, None] for at, part in enumerate(losses)]
            tail = slice(-lengths[-1], None)  # a score is asked for on the last split alone, and takes as long as the loss
            statistics = criterion.task.statistics(outputs[:, :, tail], y[:, :, tail])
            sums = [_kept(term, own[:, None, tail]).sum(-1, dtype=torch.float64) for term in statistics]
            unknown = UNKNOWN.to(x.device)
            last = criterion.scores(torch.stack([means[-1], *(total / count[-1][:, None] for total in sums)]))
            return [*((mean.float(), unknown.expand_as(mean)) for mean in means[:-1]), last]

        return scores

    def _outputs(self, params: Tree, x: Tensor) -> Tensor:
        def of(weights: Tree, x: Tensor) -> Tensor:
            return forward(self.engine.module, weights, x)

        of_models = vmap(of, in_dims=(0, None), randomness="different")
        with self.engine.or_unsupported():
            runs = leaves(params)[0].shape[0]
            of_each = vmap(of_models, in_dims=(0, 0), randomness="different")
            if runs == len(x):
                return of_each(params, x)
            if runs > 1:  # of a pack: the models of each are shared by its clients
                of_runs = of_each(params, x.unflatten(0, (runs, -1)).flatten(1, 2))  # [R, S, C/R·B, d]
                return of_runs.unflatten(2, (-1, x.shape[1])).movedim(1, 2).flatten(0, 1)
            shared = {path: t[0] for path, t in named_leaves(params)}
            return of_models(from_named(shared), x.flatten(0, 1)).unflatten(1, x.shape[:2]).movedim(0, 1)


def _kept(term: Tensor, own: Tensor) -> Tensor:
    """A term of a client's own samples; nothing of what fills its rows up, not even where that is NaN."""
    return term & own if term.dtype == torch.bool else term.where(own, 0)
