"""An export read back: every file compared with its hash, and predictions from raw data to names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedfew.data import tensorfile
from fedfew.export import model_file
from fedfew.export.adapter_file import load_adapter
from fedfew.models import ModelFactory
from fedfew.models.served import ServedModel, with_prior
from fedfew.tasks import Criterion, LossFunction, own_criterion
from fedfew.training.data_record import DataRecord
from fedfew.training.prediction import Predictor, known_choice
from fedfew.training.sample_format import SampleFormat
from fedfew.util.files import sha256_of
from fedfew.util.printable import printable

FORMAT = 1
CARD, README, DATA, CLIENTS = "card.json", "README.md", "data.json", "clients.safetensors"


class ExportError(ValueError):
    """No export here that can be used, and why."""


class Export(Predictor):
    """An export read back, every file of it as it was written. It predicts as the run does, from raw data to names."""

    def __init__(
        self,
        card: dict[str, Any],
        sha256: str,
        models: list[nn.Module],
        data: DataRecord,
        served: Mapping[str, Tensor],
        criterion: Criterion | None = None,
    ) -> None:
        self.card = card
        self.sha256 = sha256  # of card.json, which holds the hashes of all other files
        self._models, self._data, self._served = models, data, served
        self._criterion = criterion

    @property
    def models(self) -> list[nn.Module]:
        """In evaluation mode."""
        return self._models

    @property
    def data(self) -> DataRecord:
        return self._data

    @property
    def sample_format(self) -> SampleFormat:
        return SampleFormat.of(self.card["model"])

    @property
    def clients(self) -> int:
        return int(self.card["data"]["clients"])

    @property
    def training_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.card["training"]
        return settings if self._of_single_clients else settings | {"method": self.card["method"]}

    @property
    def mixes(self) -> bool:
        return not self._of_single_clients and bool(self.card["mixes"])

    @property
    def _of_single_clients(self) -> bool:
        """Are the models here of one client each? Then they are not mixed as the method's own are."""
        return "distilled" in self.card or bool(self.card.get("personal"))

    def model_of(self, client: int | str) -> nn.Module:
        """What a client (a number or a name) uses: one model or a mixture, with its label prior, as it was scored."""
        number = self.data.client_number(client, self.clients)
        if not self._served:
            raise ValueError(f"what client {printable(str(client))} uses is not in this export: {self._why_not()}")
        prior = self._served["log_prior"][number] if "log_prior" in self._served else None
        if "mixture" in self._served:
            return ServedModel(self.models, self._served["mixture"][number], prior, self.sample_format.task).eval()
        chosen = self.models[known_choice(int(self._served["choice"][number]), self.data.client_name(number))]
        return with_prior(chosen, prior)

    def _shared_model(self) -> nn.Module | None:
        prior = self.training_settings.get("label_prior", "none") != "none"
        alone = len(self.models) == 1 and self.card["scores_are_of_these_models"] and not prior
        return self.models[0] if alone else None

    def _why_not(self) -> str:
        if not self.card["scores_are_of_these_models"]:
            who = f"clients of {self.card['method']['name']}"
            if self.card.get("kept_at_sites"):
                return f"{who} use models that their sites keep (model.safetensors there). Predict as a new client (--labels)"
            return f"{who} use models that are not here. Predict from the run's folder, or export it with --personal"
        what = "it was written without its clients (--anonymous), or they are not known"
        return f"{what}. Predict from the run's folder, or as a new client, with some labelled samples (for_new_client, --labels)"


def read(folder: str | Path, model: ModelFactory | None = None, loss: LossFunction | None = None) -> Export:
    """The export in a folder; :class:`ExportError` names the file that is not as it was written.

    model: needed only if the models are modules of the user's own: the same zero-argument callable. loss: needed only for
    ``for_new_client``, if they were trained with a loss function of the user's own: the same function.
    """
    place = Path(folder)
    card = read_card(place)
    altered = [
        name for name, sha256 in card["files"].items() if not (place / name).is_file() or sha256_of(place / name) != sha256
    ]
    if altered:
        missing = [name for name in altered if not (place / name).is_file()]
        words = [f"{name} is {'missing' if name in missing else 'not as it was written (its hash differs)'}" for name in altered]
        raise ExportError(f"the export in {place} was altered: {'; '.join(words)}")
    if "adapters" in card:
        modules = [load_adapter(place / row["file"], card, model) for row in card["models"]]
    else:
        modules = [model_file.load_model(place / row["file"], model) for row in card["models"]]
    data, served = _read_data(place, card)
    criterion = own_criterion(loss, card["training"].get("loss", "auto"), card["model"]["task"])
    return Export(card, sha256_of(place / CARD), modules, data, served, criterion)


def _read_data(place: Path, card: Mapping[str, Any]) -> tuple[DataRecord, dict[str, Tensor]]:
    """Names and preprocessing, and what each client uses."""
    try:
        data = DataRecord.from_document(json.loads((place / DATA).read_text(encoding="utf-8")))
        served = tensorfile.read(place / CLIENTS)[0] if CLIENTS in card["files"] else {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ExportError(f"the export in {place} holds no valid data about its clients: {error}") from error
    if any(len(values) != card["data"]["clients"] for values in served.values()):
        raise ExportError(f"{place / CLIENTS} is not of the {card['data']['clients']} clients that the card names")
    return data, served


def is_export(folder: Path) -> bool:
    return (folder / CARD).is_file()


def read_card(place: Path) -> dict[str, Any]:
    try:
        card: dict[str, Any] = json.loads((place / CARD).read_text(encoding="utf-8"))
        if card["format"] != FORMAT:
            raise ExportError(f"the export in {place} has format {card['format']}, this version reads {FORMAT}")
        listed = {row["file"] for row in card["models"]}
        if not listed or not listed <= card["files"].keys():
            raise ExportError(f"{place / CARD} lists models without a hash")
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in card["files"]):
            raise ExportError(f"{place / CARD} names a file outside of its folder")
    except (FileNotFoundError, NotADirectoryError):
        raise ExportError(f"there is no export in {place}: it has no {CARD}") from None
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ExportError(f"{place / CARD} is damaged ({type(error).__name__}: {error})") from error
    return card
