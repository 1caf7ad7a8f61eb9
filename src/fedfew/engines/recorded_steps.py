"""Steps of one replica, recorded once per shape and then replayed.

For a small CNN a sixth of a step's processor time goes into module calls, autograd's bookkeeping and fresh memory. Threads also
wait for each other there: Python runs one at a time. A replay is one call of PyTorch's interpreter, in which plain SGD adds the
gradient of a linear layer to its weights without writing it out (:mod:`fedfew.engines.stacked.descent`). A module whose work
depends on the values that it computes cannot be recorded; its steps are taken one operation after the other.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

import torch
from torch import Tensor

from fedfew.engines.sequential import Descent, Drawn, Sequential, Step
from fedfew.engines.stacked import optimizer
from fedfew.engines.stacked.descent import descending
from fedfew.engines.stacked.recording import NotRecordableError
from fedfew.engines.stacked.traced import Traced
from fedfew.local import Objective, Projection
from fedfew.stack import Tree, from_named, leaves, named_leaves

Found = tuple[list[Tensor | None], Tensor]  # gradients, the loss reported


class RecordedSteps:
    """What a worker does for the steps of a replica."""

    def __init__(self, engine: Sequential) -> None:
        self.engine = engine
        self._recordings = Traced()
        self._refused: set[Hashable] = set()

    def of(self, params: Tree, objective: Objective, context: Tree, project: Projection | None) -> Step:
        """Steps that move these parameters in place. What they do must follow from the objective and from shapes alone."""
        training, trainable = self.engine.training, self.engine.trainable
        names, fixed_names = (tuple(path for path, _ in named_leaves(tree)) for tree in (params, context))
        moved = [2 + at for at, path in enumerate(names) if trainable(path)]  # among the arguments of gradients
        trained = [t for path, t in named_leaves(params) if trainable(path)]
        rest = [*leaves(params), *leaves(context)]
        descent = Descent(trained, training)
        plain = optimizer.is_plain(training)
        scaled = plain and training.scheduled  # by the learning rate, or each round's would be recorded anew

        def gradients(given: tuple[bool, ...], inputs: Tensor, labels: Tensor, *tensors: Tensor) -> Found:
            every = iter(tensors)
            weights = from_named({path: next(every).detach() for path in names})
            fixed = from_named({path: next(every) for path in fixed_names})
            drawn = Drawn(*(next(every) if there else None for there in given))
            differentiated = [t.requires_grad_() for path, t in named_leaves(weights) if trainable(path)]
            minimised, reported = self.engine.minimised(weights, objective, fixed, inputs, labels, drawn)
            minimised = minimised * next(every) if scaled else minimised
            return list(torch.autograd.grad(minimised, differentiated, allow_unused=True)), reported.detach()

        def step(inputs: Tensor, labels: Tensor, drawn: Drawn, lr: float) -> Tensor:
            optional = (drawn.share, drawn.importance, drawn.key)
            given = tuple(t is not None for t in optional)
            tensors = [inputs, labels, *rest, *(t for t in optional if t is not None)]
            tensors += [torch.tensor(lr, dtype=torch.float64, device=inputs.device)] if scaled else []
            lr = 1.0 if scaled else lr
            found = self._recorded((objective, names, fixed_names, given), partial(gradients, given), tensors, moved, lr)
            if isinstance(found, tuple):
                of_trained, found = found
                for parameter, gradient in zip(trained, of_trained, strict=True):
                    parameter.grad = gradient
                descent.step(lr)
                descent.forget()
            if project is not None:
                with torch.no_grad():
                    project(params)
            return found

        return step

    def _recorded(
        self, name: Hashable, gradients: partial[Found], tensors: list[Tensor], moved: list[int], lr: float
    ) -> Found | Tensor:
        """The loss reported if the recording has taken the step, too; else the gradients as well."""
        rewrite = partial(descending, parameters=moved, lr=lr) if optimizer.is_plain(self.engine.training) else None
        if name not in self._refused:
            try:
                found: Found | Tensor = self._recordings(name, gradients, *tensors, rewrite=rewrite)
                return found
            except NotRecordableError:
                self._refused.add(name)
        return gradients(*tensors)
