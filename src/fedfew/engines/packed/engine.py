"""The engine of one run of a pack: it hands local work to the pack, which does that of all runs together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from fedfew.config import LocalTraining
from fedfew.engines.base import Engine
from fedfew.engines.evaluation import ModelScores
from fedfew.engines.packed.members import BEFORE, Member
from fedfew.engines.packed.requests import Gradients, Scores, Training
from fedfew.engines.packed.stack import SharedStack
from fedfew.engines.stacked import Stacked
from fedfew.federation import Samples
from fedfew.local import LocalEpochs
from fedfew.models.state import frozen_state, replica_state
from fedfew.stack import Tree


class Packed(Engine):
    """What the runs of a pack do alike goes to one :class:`Stacked`; what few do, such as features, is done run by run."""

    name: ClassVar[str] = "stacked"

    def __init__(self, member: Member, module: nn.Module, training: LocalTraining, seed: int) -> None:
        super().__init__(module, training, seed)
        self.member = member
        key = _kind(module, training)
        if key not in member.pack.shared:
            member.pack.shared[key] = SharedStack(Stacked(module, training, seed))
        self.shared: SharedStack = member.pack.shared[key]

    @staticmethod
    def takes(module: nn.Module) -> bool:
        """Frozen parameters lie in the module itself, and may differ from run to run."""
        return not frozen_state(module)

    def bytes_per_sample(self, samples: Samples) -> int:
        return self.shared.engine.bytes_per_sample(samples)

    def clock(self) -> float:
        return self.member.clock()

    def train(self, work: LocalEpochs) -> tuple[Tree, Tensor]:
        self.member.begin_round(work.round)
        work = replace(work, objective=self.shared.same(work.objective))
        found: tuple[Tree, Tensor] = self.member.ask(Training(self.shared, work, self.lr(work.round), self.keys_of(work)))
        return found

    def losses(self, params: Tree, samples: Samples) -> Tensor:
        found: list[ModelScores] = self.member.ask(Scores(self.shared, params, (samples,), BEFORE))
        return found[0].loss

    def scores(self, params: Tree, splits: Sequence[Samples]) -> list[ModelScores]:
        found: list[ModelScores] = self.member.ask(Scores(self.shared, params, tuple(splits)))
        return found

    def gradient(self, params: Tree, samples: Samples) -> tuple[Tree, Tensor]:
        found: tuple[Tree, Tensor] = self.member.ask(Gradients(self.shared, params, samples))
        return found

    def score_mixture(self, params: Tree, samples: Samples, weights: Tensor) -> tuple[ModelScores, ModelScores]:
        mixed, single = self.member.ask(Scores(self.shared, params, (samples,), weights=weights))
        return mixed, single

    def outputs(self, params: Tree, samples: Samples, client: int, weights: Tensor) -> Tensor:
        return self.shared.engine.outputs(params, samples, client, weights)

    def sample_losses(self, params: Tree, samples: Samples) -> Tensor:
        return self.shared.engine.sample_losses(params, samples)

    def features(self, params: Tree, samples: Samples, head: str) -> Tensor:
        return self.shared.engine.features(params, samples, head)

    def _train(self, *_: Any) -> tuple[Tree, Tensor]:
        raise AssertionError("the pack trains")

    def _gradient(self, *_: Any) -> tuple[Tree, Tensor]:
        raise AssertionError("the pack differentiates")

    def _score(self, *_: Any) -> ModelScores:
        raise AssertionError("the pack scores")


def _kind(module: nn.Module, training: LocalTraining) -> Hashable:
    """Runs of the same one share an engine: their modules, all from one model of the pack, and what a step of training is."""
    layers = tuple((path, t.shape, t.dtype, str(t.device)) for path, t in replica_state(module).items())
    return type(module), str(module), layers, training if training.scheduled else replace(training, rounds=1)
