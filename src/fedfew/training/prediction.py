"""Predictions for raw data or samples, by the module that each client uses. A run and an export both predict here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfew.engines.evaluation import evaluation_batches
from fedfew.federation import as_input
from fedfew.tasks import Criterion, chosen
from fedfew.training.data_record import DataRecord
from fedfew.training.sample_format import RawRows, SampleFormat
from fedfew.util.printable import printable

if TYPE_CHECKING:
    from fedfew.training.new_client import NewClient

Client = int | str | Sequence[int | str] | NDArray[Any]


class Predictor(ABC):
    """What has a model for every client."""

    _criterion: Criterion | None = None  # the loss minimised, where that is known as more than a name

    @property
    @abstractmethod
    def data(self) -> DataRecord:
        """Names of clients and classes, and how raw data become samples."""

    @property
    @abstractmethod
    def sample_format(self) -> SampleFormat: ...

    @property
    @abstractmethod
    def clients(self) -> int:
        """How many clients have a model here."""

    @property
    @abstractmethod
    def models(self) -> list[nn.Module]:
        """Those that clients share."""

    @property
    def training_settings(self) -> dict[str, Any]:
        """What the models were trained with."""
        return {}

    @property
    def mixes(self) -> bool:
        """Whether clients mix the models by their losses, so that a new client does, too."""
        return False

    @property
    def criterion(self) -> Criterion:
        """The loss that was minimised, with its task. Of what was read from a folder, a loss of the user's own is not known
        unless it is given to :func:`fedfew.load` or :func:`fedfew.export.read`."""
        return self._criterion or chosen(self.training_settings.get("loss", "auto"), self.sample_format.task)

    @abstractmethod
    def model_of(self, client: int | str) -> nn.Module:
        """What a client uses, by its number or name."""

    @abstractmethod
    def _shared_model(self) -> nn.Module | None:
        """What all clients use, where that is the same for all."""

    @property
    def one_for_all(self) -> bool:
        """Whether all clients use the same model, so that predictions need no client."""
        return self._shared_model() is not None

    @property
    def client_names(self) -> tuple[str, ...]:
        """One per client; its number where it has no name."""
        return tuple(self.data.client_name(i) for i in range(self.clients))

    @property
    def class_names(self) -> tuple[str, ...]:
        """One per class; its number where it has no name."""
        return self.data.class_names or tuple(map(str, range(self.sample_format.classes)))

    def for_new_client(self, x: Any, y: Any = None) -> NewClient:
        """What a client that took no part would be served, given some of its data: predicts without ``client``.

        The model with the least loss on them or, if the run serves mixtures, their mixture; with the label prior of ``y``, if
        the run has label priors; numbers of a raw table standardised by its own rows, if clients were. Without labels ``y``
        (classification only) the certainty of the models takes the place of their loss, and the label prior is estimated.
        Language models need no labels: the targets are the texts themselves.
        """
        from fedfew.training.new_client import new_client

        settings = self.training_settings | {"serve": "mixture" if self.mixes else "best"}
        return new_client(self.models, settings, self.data, self.sample_format, x, y, self._criterion)

    def with_prior(self, frequencies: Sequence[float] | NDArray[Any], model: int | None = None) -> nn.Module:
        """One of the models, by its number, for a client with these label frequencies: its logits + τ·log π.

        For models that were trained with label priors. frequencies: one per class, above 0; counts are divided by their sum.
        model: may be left out where there is one.
        """
        from fedfew.training.label_prior import with_frequencies

        return with_frequencies(self.models, self.training_settings, frequencies, self.sample_format.classes, model)

    def predict(self, x: Any, client: Client | None = None) -> NDArray[Any]:
        """The most probable class of every row, as the labels of the training data had it: a whole number, a truth value or a
        name. Where labels were numbers of classes that have names, the name. Arguments as for :meth:`predict_proba`.

        For a regression the numbers, ``[N]`` or with several targets ``[N, d]``; for several labels 0 or 1, ``[N, labels]``.
        """
        if self.sample_format.task == "regression":
            outputs = self._outputs(x, client)
            return outputs[:, 0] if outputs.shape[1] == 1 else outputs
        if self.sample_format.task == "multi-label":
            return (self._outputs(x, client) > 0).astype(np.int64)
        return self.data.labels(self.predict_proba(x, client).argmax(1))

    def predict_proba(self, x: Any, client: Client | None = None) -> NDArray[np.float64]:
        """Probabilities ``[N, classes]`` (or of labels) by the module that was scored, with the client's label prior and mixture.

        x: raw data of the kind that the federation was loaded from: a table (data frame, Arrow table, dict of columns), a list of
            texts, or a list of images (files, PIL images, arrays). They are preprocessed as in training. Or samples as the models
            see them: an array of numbers.
        client: a name or a number from 0; or one per row, as in a column of the data (then numbers are names, if the clients'
            names are numbers). It may be left out where all clients use the same model; numbers of tables are
            then standardised by the mean of all clients.
        """
        if self.sample_format.task == "regression":
            raise ValueError("predict_proba is for classes and labels, but these models give numbers: use predict")
        outputs = torch.from_numpy(self._outputs(x, client))
        found: NDArray[np.float64] = (
            outputs.softmax(-1) if self.sample_format.task == "classification" else outputs.sigmoid()
        ).numpy()
        return found

    def _outputs(self, x: Any, client: Client | None) -> NDArray[np.float64]:
        if self.sample_format.task == "language-modelling":
            raise ValueError(
                "predict gives one prediction per sample, but these are language models: run.model_of(client) is the module to "
                "generate with, and 'fedfew select' chooses one of them by texts"
            )
        rows = RawRows.of(x, self.data, self.sample_format)
        found = np.zeros((len(rows), self.sample_format.classes))
        for number, at in self._by_client(client, len(rows)):
            module = self._module(number)
            name = None if number is None else self.data.client_name(number)
            inputs = as_input(torch.as_tensor(rows.samples(at, name)), self.sample_format.pixels)
            found[at] = logits_of(module, inputs).double().numpy()
        return found

    def _module(self, client: int | None) -> nn.Module:
        if client is not None:
            return self.model_of(client)
        shared = self._shared_model()
        if shared is None:
            raise ValueError(
                "client is missing, and clients use different models: give client=… a name or number (one for all rows, or one "
                "per row). A new client chooses its model with some labelled samples: fedfew.join or 'fedfew select'"
            )
        return shared

    def _by_client(self, client: Client | None, rows: int) -> Iterator[tuple[int | None, NDArray[np.int64]]]:
        """Each client with its rows."""
        everything = np.arange(rows)
        if client is None and self.clients == 1:
            client = 0
        if client is None or np.ndim(client) == 0:
            yield (None if client is None else self._number(client)), everything
            return
        column: Any = np.asarray(client).reshape(-1) if isinstance(client, (np.ndarray, Tensor)) else client
        if len(column) != rows:
            raise ValueError(f"client has {len(column)} values for {rows} rows: give one for all rows, or one per row")
        whose = np.array(self.data.client_numbers(column, self.clients), dtype=np.int64)
        for one in np.unique(whose).tolist():
            yield one, np.flatnonzero(whose == one)

    def _number(self, client: Any) -> int:
        """Of one client. True, 1.5 or a date can only be a name, which is made as for a column."""
        if isinstance(client, (str, int, np.integer)) and not isinstance(client, bool):
            return self.data.client_number(client if isinstance(client, str) else int(client), self.clients)
        return self.data.client_numbers([client], self.clients)[0]


def known_choice(model: int, client: str) -> int:
    """The number of the model that a client uses; −1 where the server of a network does not know it."""
    if model < 0:
        raise ValueError(
            f"which model client {printable(client)} uses is not known: it was not there when clients were scored for the last "
            "time, or keeps it to itself (share-scores=false). Predict at its site, or as a new client with some labelled "
            "samples (for_new_client, --labels)"
        )
    return model


def logits_of(module: nn.Module, inputs: Tensor) -> Tensor:
    """What a module in evaluation mode gives for inputs, batch by batch."""
    with torch.no_grad():
        parts = [module(batch) for batch in evaluation_batches(inputs)]
    return torch.cat(parts)
