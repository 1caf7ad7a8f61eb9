"""The result of training: models, who uses which, and how it went."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfew.federation import Federation
from fedfew.methods import METHODS, Method
from fedfew.models import ModelFactory
from fedfew.models.recorded import named_factory
from fedfew.models.served import ServedModel
from fedfew.models.state import holding, load_state, replica_state
from fedfew.stack import Tree, leaves, named_leaves, take, tensor
from fedfew.tasks import Criterion, Task, recorded_task
from fedfew.training import checkpoint, confusion
from fedfew.training.checkpoint import State
from fedfew.training.confusion import Confusion
from fedfew.training.data_record import DataRecord
from fedfew.training.history import History
from fedfew.training.initialisation import fresh_models
from fedfew.training.prediction import Predictor, known_choice
from fedfew.training.sample_format import SampleFormat
from fedfew.util.printable import printable
from fedfew.util.spelling import counted

AT_ONCE = 64  # clients whose models are compared with the server's at a time


@dataclass(frozen=True)
class Served:
    """What a client uses: models ``[S, …]``, their weights ``[S]`` in the mixture, and its log prior, if it adds one."""

    models: Tree
    weights: Tensor
    log_prior: Tensor | None


class Run(Predictor):
    """A finished (or interrupted) training run."""

    def __init__(self, state: State, factory: ModelFactory, method: Method, criterion: Criterion | None = None) -> None:
        self.newest = state  # what training continues from
        self.state = state.in_use()
        self.state.history.client_names = state.data.client_names
        self.method = method
        self._factory = holding(factory, dict(named_leaves(state.frozen)))  # a random body is that of the first initialisation
        self._criterion = criterion
        self.federation: Federation | None = None  # that it was trained on, in the process that trained
        self.folder: Path | None = None  # that it was read from

    @property
    def task(self) -> Task:
        """What the targets are: classification, regression, multi-label or language-modelling."""
        return recorded_task(self.settings)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the state and an untrained module, since factories are often functions within functions."""
        try:
            module = self._factory()
        except ValueError:  # a module of the user's own, which was not given to load
            module = None
        return {"state": self.newest, "method": self.method, "module": module}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        state, module = pickled["state"], pickled["module"]
        factory = named_factory(state.settings) if module is None else partial(copy.deepcopy, module)
        Run.__init__(self, state, factory, pickled["method"])

    @property
    def settings(self) -> dict[str, Any]:
        """Everything the run was started with."""
        return self.state.settings

    @property
    def history(self) -> History:
        return self.state.history

    @property
    def data(self) -> DataRecord:
        """Names of clients and classes, and how raw data become samples."""
        return self.state.data

    @property
    def clients(self) -> int:
        return int(self.settings["federation"]["clients"])

    @property
    def training_settings(self) -> dict[str, Any]:
        return self.settings

    @property
    def mixes(self) -> bool:
        """Whether clients mix models by their losses: not where each is served a single one (CFL, FeSEM, FedSoft, …)."""
        if self.settings.get("serve") != "mixture":
            return False
        first = torch.tensor([0])
        candidates = self._candidates(first)
        if candidates is None:  # as many as one with an initial private state has
            _, own = self.method.init(fresh_models(self._factory, self.settings["seed"], first.device), self.clients)
            candidates = self.method.candidates(self.state.served, own, first)
        return len(leaves(candidates)[0][0]) > 1

    @property
    def sample_format(self) -> SampleFormat:
        return SampleFormat.of(self.settings["federation"])

    @property
    def round(self) -> int:
        """The last round completed."""
        return self.state.round

    @property
    def round_in_use(self) -> int:
        """The round whose models clients use: the last or, with keep="best", the best on validation data."""
        return int(tensor(self.state.best, "round")) if self.state.best else self.round

    def scored(self, column: str) -> Any:
        """A column of the history in the round whose models are used; where that was not scored, in the last that was."""
        return self.history[column][self.scored_at]

    @property
    def scored_at(self) -> int:
        """Where in the history that round is."""
        rounds = self.history["round"].tolist()
        return rounds.index(self.round_in_use) if self.round_in_use in rounds else -1

    def scores(self, which: str) -> Any:
        """Served, adapted or single scores (the task's: accuracy, R², …) of the clients in that round, [M]."""
        return self.scored(self.history.score_column(which))

    def perplexity(self, which: str = "served") -> NDArray[np.float64]:
        """Of language models: exp of the mean −log probability of a test token, of each client, [M]; lower is better."""
        if self.task.name != "language-modelling":
            raise ValueError(f"perplexity is of language models, but the task of this run is {self.task.name}")
        found: NDArray[np.float64] = 1 / np.asarray(self.scores(which), dtype=np.float64)
        return found

    @property
    def models(self) -> list[nn.Module]:
        """The server's K models, in evaluation mode; empty for a method that keeps none there."""
        return self._modules(self.method.server_models(self.state.served))

    @property
    def choice(self) -> Tensor:
        """For each client, which of the models served to it fits its training data best; where the server decides which one a
        client is served (CFL, FeSEM, PACFL, FedGroup), its decision, −1 before it."""
        if not self.has_choice:  # of a run on a network the server learns the choices when it asks for scores
            kept = (
                "was not scored, or the sites keep it to themselves (share-scores=false)"
                if self.state.sites
                else "was not scored"
            )
            raise ValueError(f"which models the clients use after round {self.round} is not known: that round {kept}")
        return torch.from_numpy(self.history.last("choice")) if self.state.choice is None else self.state.choice

    @property
    def has_choice(self) -> bool:
        """Is it known which model each client uses after the last round?"""
        scored = len(self.history) > 0 and int(self.history.last("round")) == self.round
        reported = scored and (not self.state.sites or bool((self.history.last("choice") >= 0).any()))
        return reported or self.state.choice is not None

    def model_of(self, client: int | str) -> nn.Module:
        """What a client (a number or a name) uses, in evaluation mode: the module that was scored.

        That is one model or, with serve="mixture", a :class:`~fedfew.models.served.ServedModel` of several; with a label prior
        the client's own is inside.
        """
        parts = self.served_to(self.data.client_number(client, self.clients))
        modules = self._modules(parts.models)
        if len(modules) == 1 and parts.log_prior is None:
            return modules[0]
        return ServedModel(modules, parts.weights, parts.log_prior, self.task.name).eval()

    @property
    def serves_server_models(self) -> bool:
        """Whether clients use the server's models, by their own choice or the server's; those of Ditto, APFL, … have models of
        their own, and so have those that the server has not assigned to a model yet."""
        ours, assigned = self.method.server_models(self.state.served), self.method.assigned(self.state.served)
        for clients in torch.arange(self.clients).split(AT_ONCE):  # one that never took part may still have what the server has
            candidates = self._candidates(clients)
            if candidates is None or candidates.keys() != ours.keys():
                return False
            if assigned is not None:
                return bool((assigned >= 0).all())
            if not all(bool((theirs == model).all()) for theirs, model in zip(leaves(candidates), leaves(ours), strict=True)):
                return False
            if len(leaves(candidates)[0]) < len(clients):  # the same for all
                return True
        return True

    def _shared_model(self) -> nn.Module | None:
        if self.state.priors or self.kept_by_sites(1) or not self.serves_server_models:
            return None
        modules = self.models
        return modules[0] if len(modules) == 1 else None

    def kept_by_sites(self, candidates: int) -> str | None:
        """What of the module that a client makes of so many candidates is known to its site alone; None: nothing."""
        if not self.state.sites:
            return None
        if self.settings.get("label_prior", "none") != "none" and not self.state.priors:
            return "its label frequencies"
        known = METHODS.get(self.settings["method"]["name"])
        learned = known is not None and known.mixture is not Method.mixture
        mixed = candidates > 1 and (learned or self.settings.get("serve") == "mixture")
        return "the weights of its mixture" if mixed and self.state.mixture is None else None

    @property
    def kept_at_sites(self) -> bool:
        """Of a run on a network: do its sites keep what clients are served, or a part of it?"""
        return self._candidates(torch.tensor([0])) is None

    def _candidates(self, clients: Tensor) -> Tree | None:
        """What clients choose among ``[C, S, …]``; None: of a run on a network, where sites keep it, or a part of it."""
        if not self.state.sites or self.state.own:
            return self.method.candidates(self.state.served, self.state.own, clients)
        try:
            found = self.method.candidates(self.state.served, self.state.own, clients)
        except (LookupError, ValueError):  # there is no private state to make it of
            return None
        names = {name for name, _ in named_leaves(found)}
        return found if names == self._whole_model else None

    @cached_property
    def _whole_model(self) -> frozenset[str]:
        """The names of what a model consists of, frozen parameters apart."""
        return frozenset(replica_state(self._factory()))

    def served_to(self, client: int) -> Served:
        """The parameters of what a client uses."""
        here = torch.tensor([client])
        found = self._candidates(here)
        if found is None:
            raise ValueError(f"client {client} keeps a model of its own at its site, which the server does not know")
        candidates = take(found, 0)
        if kept := self.kept_by_sites(len(leaves(candidates)[0])):
            raise ValueError(
                f"client {printable(self.data.client_name(client))} keeps {kept} at its site, which has saved the model that it "
                "uses (model.safetensors). Predict there (fedfew predict), or as a new client, with some labelled samples "
                "(for_new_client)"
            )
        prior = tensor(self.state.priors, "log_prior")[client] if self.state.priors else None
        if self.state.mixture is not None:
            return Served(candidates, self.state.mixture[client], prior)
        at = known_choice(int(self.choice[client]), self.data.client_name(client)) if len(leaves(candidates)[0]) > 1 else 0
        return Served(take(candidates, slice(at, at + 1)), torch.ones(1), prior)

    def confusion(self, client: int | str | None = None, data: Federation | None = None) -> NDArray[np.int64]:
        """``[classes, classes]``: test samples of the class in the row that are predicted as the class in the column.

        client: a number or a name; None: all clients together. data: of a run that was read from a folder, its federation;
        'fedfew run' has counted already.
        """
        return self.confusions(data).matrix(None if client is None else self.data.client_number(client, self.clients))

    def confusions(self, data: Federation | None = None) -> Confusion:
        """The same for every client."""
        if self.task.name != "classification":
            raise ValueError(f"a confusion matrix is of classes, but the task of this run is {self.task.name}")
        data = data or self.federation
        if data is not None:
            return confusion.counted(self, data)
        found = None if self.folder is None else confusion.read(self.folder, self.round)
        if found is None:
            raise ValueError("the confusion matrix was not counted when the run ended: give its federation, data=…")
        return found

    def save(self, folder: str | Path) -> Path:
        """Write the run to a folder; :func:`fedfew.load` reads it back."""
        return checkpoint.write(Path(folder), self.newest)

    def new_module(self) -> nn.Module:
        """A module as the run's are, with initial weights."""
        return self._factory()

    def _modules(self, stacked: Tree) -> list[nn.Module]:
        modules = []
        for k in range(len(leaves(stacked)[0]) if stacked else 0):
            weights = dict(named_leaves(self.state.frozen)) | dict(named_leaves(take(stacked, k)))
            modules.append(load_state(self._factory(), weights).eval())
        return modules

    def __repr__(self) -> str:
        s = self.settings
        return (
            f"<Run {s['method']['name']} on {s['federation']['name']}: round {self.round} of {s['rounds']}, "
            f"{counted(s['federation']['clients'], 'client')}>"
        )
