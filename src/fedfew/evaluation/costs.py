"""What a method costs per round: traffic, local work, storage, inference. Counted, not typed in.

:func:`cost` lets the method go through one round with one client, on an engine that records requests instead of
training. Messages and states are measured as they come; a method that is changed changes its costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedfew import methods, models
from fedfew.adapters import TrainedPart
from fedfew.config import LocalTraining, TrainConfig
from fedfew.engines.base import Engine, Pass
from fedfew.engines.evaluation import ModelScores
from fedfew.engines.loss import BatchLoss, client_terms
from fedfew.federation import Federation, Samples, as_input
from fedfew.local import Local, LocalEpochs, Objective, Through
from fedfew.methods import Method, Reply
from fedfew.methods.base import Fresh
from fedfew.models.state import buffer_names, replica_state
from fedfew.stack import Tree, count_bytes, leaves, take, tree_map
from fedfew.training import unseen
from fedfew.training.from_settings import find_model, make_method
from fedfew.training.settings import Settings


@dataclass(frozen=True)
class Cost:
    """Costs of one round in which all clients take part; "a client" is the mean client where they differ.

    Of a method that uses some samples for one thing and the others for another (FedFomo), each is counted as if it used all.
    """

    bytes_down: int  # to a client: what the server dispatches
    bytes_up: int  # from a client: its update and its losses
    steps: float  # optimiser steps of a client; one that moves two models at once (APFL) counts as two
    gradient_passes: int  # times a client sends its training data forward and backward through a model
    forward_passes: int  # times it sends them forward only (to choose or to report losses)
    model_bytes: int  # one model: parameters that are trained, and buffers
    server_models: float  # the server's state, in models
    client_models: float  # what a client keeps from round to round, in models
    inference_passes: float  # models a client runs to predict one sample; of a mixture all, each from its first layer to its last
    selection_passes: int  # models a client compares on its training data to choose or weigh them; 0 where there is no choice
    finish_passes: int = 0  # as gradient_passes, more of them where the round is scored: for what is served alone (FedBABU)


def cost(
    method: str | Method,
    model: str | Callable[[], nn.Module],
    federation: Federation,
    local_epochs: int = 1,
    batch_size: int = 20,
    serve: str = "best",
    part: TrainedPart | None = None,
    check_share: float = 0.0,
) -> Cost:
    """The cost of a method on a federation; ``method``, ``model`` and the settings are those of :func:`fedfew.train`.

    part: what ``adapters`` and ``freeze`` leave to train. With ``check_share`` fewer samples are trained on, and the losses on
    the others are sent; the pass over these few is not counted.
    """
    training = LocalTraining(lr=1.0, batch_size=batch_size, local_epochs=local_epochs)
    chosen = methods.make(method) if isinstance(method, str) else method
    chosen.check_against(len(federation))
    federation = unseen.with_counts_left(federation, TrainConfig(check_share=check_share), chosen)
    module = module_of(model, federation, part or TrainedPart())
    single: Tree = {name: t.detach().clone() for name, t in replica_state(module).items()}
    server, own = chosen.init(Fresh(lambda k: tree_map(torch.clone, single), buffer_names(module)), len(federation))
    counting = _Counting(module, training, seed=0)

    first = torch.tensor([0])  # messages are stacks, so every client's has the same size: one client stands for all
    received, kept = chosen.dispatch(server, first), take(own, first)
    local = _first_client(counting, federation)
    outcome = chosen.client(received, kept, local)
    reply, epochs, gradient_passes = outcome.reply, counting.epochs, counting.gradient_passes
    chosen.finish(outcome.own, local)
    passes_of_check = 0 if reply.unseen is None else reply.unseen.shape[1]
    candidates = {name: t for name, t in chosen.serve(received, kept).items() if name in single}  # a memory is no model
    choices = leaves(candidates)[0].shape[1]
    learned = chosen.mixture(kept) is not None  # a mixture whose weights need no comparison of losses
    mixed = learned or serve == "mixture"
    batches = [math.ceil(n / batch_size) for n in federation.train.count.tolist()]
    model_bytes = count_bytes(single)
    return Cost(
        bytes_down=count_bytes(received),
        bytes_up=reply.bytes_each,
        steps=epochs * sum(batches) / len(batches),
        gradient_passes=gradient_passes,
        forward_passes=counting.forward_passes - passes_of_check,
        model_bytes=model_bytes,
        server_models=count_bytes(server) / model_bytes,
        client_models=count_bytes(own) / len(federation) / model_bytes,
        inference_passes=count_bytes(candidates) / (1 if mixed else choices) / model_bytes,
        selection_passes=choices if choices > 1 and not learned else 0,
        finish_passes=counting.gradient_passes - gradient_passes,
    )


def module_of(model: str | Callable[[], nn.Module], federation: Federation, part: TrainedPart) -> nn.Module:
    """The module that :func:`fedfew.train` trains: of token ids, textcnn in place of mlp."""
    tokens = not as_input(federation.train.x[:0]).is_floating_point()
    chosen = models.for_tokens(model) if tokens else model
    return part.of(models.factory(chosen, federation.shape, federation.classes, federation.vocabulary, federation.padding))()


def cost_of(settings: Settings, federation: Federation) -> Cost:
    """The cost of the run that settings describe."""
    model, part = find_model(settings.model), TrainedPart.recorded(vars(settings))
    training = settings.local_epochs, settings.batch_size, settings.serve
    check_share = settings.check_share if settings.dp_noise == 0 else 0.0  # as in training
    return cost(make_method(settings), model, federation, *training, part, check_share)


def expected_reply(method: Method, module: nn.Module, server: Tree, own: Tree) -> Reply:
    """A reply as one client's will be, all its numbers zero or as received: what a server can expect to get.

    own: the private states of all clients, or of one.
    """
    counting = _Counting(module, LocalTraining(lr=1.0, batch_size=1), seed=0)
    first = torch.tensor([0])
    samples = Samples(torch.empty(0), torch.empty(0), torch.tensor([0]), torch.tensor([1]), 1)
    local = Local(counting, samples, first, 1, torch.ones(1))
    return method.client(method.dispatch(server, first), take(own, first), local).reply


def _first_client(engine: Engine, federation: Federation) -> Local:
    """The first client on its own; its samples are counted but never looked at, so none are there."""
    count = federation.train.count[:1].cpu()
    apart = federation.train.unseen
    apart = None if apart is None or not bool(apart.any()) else apart[:1].cpu()
    samples = Samples(torch.empty(0), torch.empty(0), torch.tensor([0]), count, int(count), unseen=apart)
    share = (count / federation.train.count.sum().cpu()).float()
    return Local(engine, samples, federation.ids[:1].cpu(), 1, share)


class _Counting(Engine):
    """Leaves every model as it is, reports losses of zero, and counts. A stack here is one client."""

    name: ClassVar[str] = "counting"

    def __init__(self, module: nn.Module, training: LocalTraining, seed: int) -> None:
        super().__init__(module, training, seed)
        self.epochs = 0  # epochs trained, added up over models: each is one step per batch and model
        self.gradient_passes = 0
        self.forward_passes = 0

    def _train(self, work: LocalEpochs, passes: Iterator[Pass]) -> tuple[Tree, Tensor]:
        size = leaves(work.params)[0].shape[:2]
        own, _ = client_terms(take(take(work.context, 0), 0))
        reported = self._probe(size[1] * sum(1 for _ in passes), work.objective, take(take(work.params, 0), 0), own)
        return tree_map(torch.clone, work.params), reported.expand(*size, *reported.shape).clone()

    def _probe(self, epochs: int, objective: Objective, params: Tree, context: Tree) -> Tensor:
        """Ask the objective once how often it takes the loss: it does the same for every batch, model and epoch."""

        def forward(weights: Tree, through: Through | None) -> Tensor:
            """Logits of zero, [1, 1]: one sample, and a number that stands for all classes. What enters the head is zero too."""
            if torch.is_grad_enabled():
                self.gradient_passes += epochs
                self.epochs += epochs
            else:
                self.forward_passes += epochs
            if through is not None:
                through.change(self._entering(through.submodule))
            return torch.stack([0.0 * t.sum() for t in leaves(weights) if t.is_floating_point()]).sum().expand(1, 1)

        loss = BatchLoss(forward, lambda outputs, _: outputs.sum(), torch.zeros(1, dtype=torch.int64), torch.ones(1))
        params = tree_map(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()), params)
        _, reported = objective(loss, params, context)
        return torch.zeros_like(reported)

    def _gradient(self, params: Tree, samples: Samples) -> tuple[Tree, Tensor]:
        clients, models = leaves(params)[0].shape[:2]
        self.gradient_passes += models
        return tree_map(torch.zeros_like, params), self._weights().new_zeros(clients, models)

    def _score(self, params: Tree, samples: Samples) -> ModelScores:
        clients, models = leaves(params)[0].shape[:2]
        self.forward_passes += models
        return ModelScores(torch.zeros(clients, models), torch.zeros(clients, models))

    _score_shared = _score

    def sample_losses(self, params: Tree, samples: Samples) -> Tensor:
        models = leaves(params)[0].shape[1]
        self.forward_passes += models
        return self._weights().new_zeros(1, models, samples.longest)

    def features(self, params: Tree, samples: Samples, head: str) -> Tensor:
        self.forward_passes += 1
        return self._entering(head)[None]

    def labels(self, samples: Samples) -> Tensor:
        return torch.zeros(1, 1, dtype=torch.int64)

    def _entering(self, head: str) -> Tensor:
        """Of one sample, [1, width]: as many zeros as enter this submodule."""
        weights = next(self.module.get_submodule(head).parameters())
        return weights.new_zeros(1, weights.shape[-1])

    def _weights(self) -> Tensor:
        """Some of the model's, which what is computed with it is as precise as."""
        return next(self.module.parameters())
