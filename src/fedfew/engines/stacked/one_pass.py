"""Scores of small stacks in one recorded pass over the samples of all clients: of several stacks, on several splits at once.

For small models nearly all the time of scoring goes into deciding what to compute, once per model, batch and split. Here the
samples of all clients lie side by side, filled up to the longest of each split, and are gathered once for all rounds in which the
same clients are scored. Where a client chooses among models, only the one it chooses meets its test samples. Large stacks are
scored batch by batch: their time is arithmetic, and filling up would add to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import vmap

from fedfew.engines.evaluation import MixtureScores, ModelScores, forward
from fedfew.engines.memory import allowance
from fedfew.engines.stacked.side_by_side import SideBySide
from fedfew.engines.stacked.traced import Traced
from fedfew.federation import Samples
from fedfew.local import best_model, mixture_weights
from fedfew.stack import Tree, from_named, leaves, named_leaves, tree_map

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

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        data = (self.x, self.y, self.own, self.count)
        return data if self.log_prior is None else (*data, self.log_prior)

    @classmethod
    def of(cls, splits: tuple[Samples, ...]) -> Layout:
        parts = []
        for s in splits:
            position = torch.arange(s.longest, device=s.count.device)
            own = position < s.count[:, None]
            rows = (s.start[:, None] + position.where(own, 0)).clamp_max(len(s.y) - 1)  # the last client may have none
            prior = None if s.log_prior is None else s.log_prior[:, None].expand(-1, s.longest, -1)
            parts.append((s.inputs(rows), s.y[rows], own, prior))
        x, y, owns, priors = zip(*parts, strict=True)
        prior = None if splits[0].log_prior is None else torch.cat(priors, 1)
        return cls(splits, torch.cat(x, 1), torch.cat(y, 1), torch.cat(owns, 1), torch.stack([s.count for s in splits]), prior)


class OnePass:
    """What :class:`Stacked` does to score a small stack."""

    def __init__(self, engine: Stacked, side_by_side: SideBySide) -> None:
        self.engine = engine
        self._side_by_side = side_by_side
        self._divided: OrderedDict[Hashable, tuple[Samples, Samples, list[tuple[slice, tuple[Tensor, ...]]]]] = OrderedDict()
        self._recordings = Traced()
        self._layouts: OrderedDict[Hashable, Layout] = OrderedDict()

    def clients_at_once(self, params: Tree, splits: Sequence[Samples], bytes_per_sample: int) -> int:
        """How many clients are small enough to be scored in one pass; 0 where samples must not share a batch."""
        if self.engine.mixes_samples:
            return 0
        each = leaves(params)[0].shape[1] * sum(s.longest for s in splits) * bytes_per_sample
        return min(SMALL, allowance(splits[0].y.device) // 4) // max(1, each)  # clients of one sample keep none apart

    def scores(self, params: Tree, splits: Sequence[Samples], log_weights: Tensor | None = None) -> list[ModelScores]:
        """Scores ``[C, S]`` of ``params[R, S, …]``, each shared by C/R clients, on each split (the loss alone on all but the
        last); with log_weights ``[C, S]`` those of the mixture, too, as the last column."""
        layout, lengths, names = self._layout(tuple(splits)), tuple(s.longest for s in splits), _names(params)
        several = log_weights is not None
        given = len(layout.tensors)

        def function(*tensors: Tensor) -> Found:
            data, rest = tensors[:given], iter(tensors[given:])
            outputs = self._outputs(from_named({path: next(rest) for path in names}), data)
            return self._scored(lengths, self._with_mixture(outputs, next(rest)) if several else outputs, data)

        tensors = (*layout.tensors, *leaves(params), *([] if log_weights is None else [log_weights]))
        found: Found = self._recordings.from_the_second_time((lengths, names, given, several), function, *tensors)
        return [ModelScores(*on_split) for on_split in found]

    def chosen(self, several: Sequence[Tree], own: Samples, test: Samples) -> list[tuple[Tensor, ModelScores]]:
        """Of each stack ``[1 or C, S, …]``: the model ``[C]`` with the least loss on each client's own samples, and its scores
        ``[C]`` on the test samples. It is recorded the first time: who is scored so comes again in the next round."""

        def scored(stacks: list[Tree], losses: list[Tensor], data: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
            choices = [best_model(of) for of in losses]
            picked = [_picked(models, choice) for models, choice in zip(stacks, choices, strict=True)]
            outputs = self._outputs(tree_map(lambda *of: torch.cat(of, 1), *picked), data)
            ((loss, score),) = self._scored(_length(data), outputs, data)
            return list(zip(choices, loss.unbind(1), score.unbind(1), strict=True))

        found = self._by_losses(("chosen",), several, own, test, scored)
        return [(choice, ModelScores(loss, score)) for choice, loss, score in found]

    def weighed(self, several: Sequence[Tree], own: Samples, test: Samples, temperature: float) -> list[MixtureScores]:
        """Of each stack: each client's mixture, with weights by the losses on its own samples, and its scores on the test
        samples. Recorded as :meth:`chosen` is."""

        def scored(stacks: list[Tree], losses: list[Tensor], data: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
            weights = [mixture_weights(of, temperature) for of in losses]
            parts = [(self._outputs(models, data), w.log()) for models, w in zip(stacks, weights, strict=True)]
            outputs = [self._with_mixture(*part) for part in parts]
            ((loss, score),) = self._scored(_length(data), _together(outputs), data)
            found: list[tuple[Tensor, ...]] = []
            for at, of_stack in enumerate(zip(*(t.split([o.shape[1] for o in outputs], 1) for t in (loss, score)), strict=True)):
                choice, (mixed_loss, mixed_score) = best_model(losses[at]), (t[:, -1] for t in of_stack)
                found.append((choice, weights[at], mixed_loss, mixed_score, of_stack[1].gather(1, choice[:, None])[:, 0]))
            return found

        found = self._by_losses(("weighed", temperature), several, own, test, scored)
        return [MixtureScores(choice, weights, ModelScores(*mixed), single) for choice, weights, *mixed, single in found]

    def _by_losses(
        self, name: tuple[Hashable, ...], several: Sequence[Tree], own: Samples, test: Samples, scored: Callable[..., Any]
    ) -> list[tuple[Tensor, ...]]:
        """``scored(stacks, their losses on own samples [C, S], test data)`` of stacks ``[1 or C, S, …]``, in one recording."""
        names = [_names(params) for params in several]

        def function(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
            given = (len(tensors) - sum(map(len, names))) // 2
            own_data, test_data, rest = tensors[:given], tensors[given : 2 * given], iter(tensors[2 * given :])
            stacks = [from_named({path: next(rest) for path in of_stack}) for of_stack in names]
            outputs = [self._outputs(models, own_data) for models in stacks]
            (losses,) = self._losses(_length(own_data), _together(outputs), own_data)
            found: list[tuple[Tensor, ...]] = scored(stacks, losses.float().split([o.shape[1] for o in outputs], 1), test_data)
            return found

        each = sum(t[0].numel() for params in several for t in leaves(params))  # of all models of a client
        calls = []
        for part, data in self._parts(own, test, each):
            models = (t if len(t) == 1 else t[part] for params in several for t in leaves(params))
            calls.append(self._recordings.prepared((*name, tuple(names), len(data)), function, *data, *models))
        found = self._side_by_side(calls)
        return found[0] if len(found) == 1 else [tuple(map(torch.cat, zip(*of, strict=True))) for of in zip(*found, strict=True)]

    def _parts(self, own: Samples, test: Samples, each: int) -> list[tuple[slice, tuple[Tensor, ...]]]:
        """Clients that are scored side by side, and their data of both splits; each: the parameters that meet a client's own."""
        key = (id(own), id(test), each)
        if key not in self._divided:
            sizes, every, data = own.count.tolist(), torch.arange(len(own.count)), []
            for part in self._side_by_side.parts(sizes, sum(sizes) * each):
                layouts = [Layout.of((split.take(every[part]),)) for split in (own, test)]
                data.append((part, tuple(t for layout in layouts for t in layout.tensors)))
            self._divided[key] = (own, test, data)
            if len(self._divided) > KEPT // 2:
                self._divided.popitem(last=False)
        self._divided.move_to_end(key)
        return self._divided[key][-1]

    def _layout(self, splits: tuple[Samples, ...]) -> Layout:
        key = tuple(map(id, splits))
        if key not in self._layouts:
            self._layouts[key] = Layout.of(splits)
            if len(self._layouts) > KEPT:
                self._layouts.popitem(last=False)
        self._layouts.move_to_end(key)
        return self._layouts[key]

    def _scored(self, lengths: tuple[int, ...], outputs: Tensor, data: tuple[Tensor, ...]) -> Found:
        """The losses ``[C, S]`` on each split of a layout, and the score on the last, of outputs ``[C, S, B, d]``."""
        criterion, (_, y, own, count, *_) = self.engine.criterion, data
        means = self._losses(lengths, outputs, data)
        tail = slice(-lengths[-1], None)  # a score is asked for on the last split alone, and takes as long as the loss
        statistics = criterion.task.statistics(outputs[:, :, tail], _of_each(y, outputs)[:, :, tail])
        sums = [_kept(term, own[:, None, tail]).sum(-1, dtype=torch.float64) for term in statistics]
        last = criterion.scores(torch.stack([means[-1], *(total / count[-1][:, None] for total in sums)]))
        unknown = UNKNOWN.to(own.device)
        return [*((mean.float(), unknown.expand_as(mean)) for mean in means[:-1]), last]

    def _losses(self, lengths: tuple[int, ...], outputs: Tensor, data: tuple[Tensor, ...]) -> list[Tensor]:
        """The mean losses ``[C, S]`` on each split, in float64."""
        _, y, own, count, *_ = data
        losses = _kept(self.engine.criterion.losses(outputs, _of_each(y, outputs)), own[:, None]).split(list(lengths), -1)
        return [part.sum(-1, dtype=torch.float64) / count[at][:, None] for at, part in enumerate(losses)]

    def _with_mixture(self, outputs: Tensor, log_weights: Tensor) -> Tensor:
        """The outputs ``[C, S + 1, B, d]`` of the models and of their mixture, the last one."""
        mixed = self.engine.criterion.task.mixed(outputs.movedim(1, 0), log_weights.T[..., None, None])
        return torch.cat([outputs, mixed[:, None]], 1)

    def _outputs(self, params: Tree, data: tuple[Tensor, ...]) -> Tensor:
        """``[C, S, B, d]``, label priors added."""
        x, _, _, _, *priors = data
        outputs = self._plain_outputs(params, x)
        for prior in priors:
            outputs = outputs + prior[:, None]
        return outputs

    def _plain_outputs(self, params: Tree, x: Tensor) -> Tensor:
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


def _names(params: Tree) -> tuple[str, ...]:
    return tuple(path for path, _ in named_leaves(params))


def _length(data: tuple[Tensor, ...]) -> tuple[int]:
    """Of the only split in a layout."""
    return (data[0].shape[1],)


def _together(outputs: list[Tensor]) -> Tensor:
    """The outputs of several stacks as those of one. They lie class by class, as narrow layers leave them: what follows is
    faster so."""
    return torch.cat([of.movedim(-1, 2) for of in outputs], 1).movedim(2, -1)


def _of_each(y: Tensor, outputs: Tensor) -> Tensor:
    """The labels ``[C, S, B]``: the same for every model."""
    return y[:, None].expand(-1, outputs.shape[1], *y.shape[1:])


def _picked(params: Tree, choice: Tensor) -> Tree:
    """The chosen model of each client, ``[C, 1, …]``, of ``[1 or C, S, …]``."""
    clients, models = leaves(params)[0].shape[:2]
    at = choice if clients == 1 else choice + models * torch.arange(clients, device=choice.device)
    return tree_map(lambda t: t.flatten(0, 1).index_select(0, at)[:, None], params)


def _kept(term: Tensor, own: Tensor) -> Tensor:
    """A term of a client's own samples; nothing of what fills its rows up, not even where that is NaN."""
    return term & own if term.dtype == torch.bool else term.where(own, 0)
