"""An export predicts as the run does: for its clients, and for a client that took no part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import fedfew
from fedfew import export
from fedfew.data import tensorfile
from fedfew.training.label_prior import log_frequencies
from fedfew.util.files import sha256_of
from tests import hospitals
from tests.helpers import federation, linear

SHORT = {"rounds": 3, "engine": "sequential", "lr": 0.3, "batch_size": 8}
STRONG = {"label_prior": "client", "serve": "mixture", "server_average": 0.5}


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return pd.read_csv(hospitals.write(tmp_path_factory.mktemp("p") / "patients.csv"))


@pytest.fixture(scope="module", params=[{}, STRONG, {"label_prior": "client"}], ids=["best", "strong", "prior"])
def run(request: pytest.FixtureRequest, frame: pd.DataFrame) -> fedfew.Run:
    data = fedfew.data.load(frame, label="diagnosis", client="hospital")
    return fedfew.train(data, "linear", fedfew.FedFew(models=2), **SHORT, **request.param)


def test_clients_of_the_training(run: fedfew.Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    back = export.read(export.write(run, tmp_path / "e"))
    assert back.card["scores_are_of_these_models"]
    expected = run.predict_proba(frame, client=frame["hospital"])
    np.testing.assert_array_equal(back.predict_proba(frame, client=frame["hospital"]), expected)
    np.testing.assert_array_equal(back.predict(frame, client="=Basel"), run.predict(frame, client=0))
    assert back.client_names == hospitals.NAMES
    with pytest.raises(ValueError, match="client 'Genf' took no part"):
        back.predict(frame, client="Genf")


def test_a_client_that_took_no_part(run: fedfew.Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    """By hand: its own mean and standard deviation, its own label prior, and the least loss or the mixture by losses."""
    back = export.read(export.write(run, tmp_path / "e", anonymous=True))
    mine = frame[frame.hospital == "=Basel"]
    fitted = run.data.preprocessing
    ages = mine.age.to_numpy()
    numbers = np.where(np.isnan(ages), np.nanmean(ages), ages)
    smoker = dict(fitted.categories)["smoker"]
    x = np.stack([(numbers - np.nanmean(ages)) / np.nanstd(ages), *((mine.smoker == s).to_numpy() for s in smoker)], axis=1)
    inputs, y = torch.tensor(x, dtype=torch.float32), torch.tensor([hospitals.CLASSES.index(d) for d in mine.diagnosis])
    prior = log_frequencies(y, 2).float() if run.settings["label_prior"] == "client" else torch.zeros(2)
    with torch.no_grad():
        logits = [model(inputs) + prior for model in run.models]
    losses = torch.stack([F.cross_entropy(one, y) for one in logits])
    weights = (-losses / 0.5).softmax(0) if run.settings["serve"] == "mixture" else F.one_hot(losses.argmin(), 2)
    expected = sum(weight * one.softmax(1) for weight, one in zip(weights, logits, strict=True))
    for source in (back, run):
        np.testing.assert_allclose(source.for_new_client(mine, mine.diagnosis).predict_proba(mine), expected, rtol=1e-4)
    assert set(back.for_new_client(mine, mine.diagnosis).predict(mine)) <= set(hospitals.CLASSES)


def test_an_anonymous_export_says_nothing_of_single_clients(run: fedfew.Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    place = export.write(run, tmp_path / "e", anonymous=True)
    everything = b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())
    assert b"Basel" not in everything
    assert not (place / "clients.safetensors").exists()
    assert "It says nothing of single clients." in (place / "README.md").read_text()
    back = export.read(place)
    assert back.data.preprocessing.clients == ()
    assert back.data.preprocessing.overall == run.data.preprocessing.overall
    with pytest.raises(ValueError, match=r"what client 0 uses is not in this export: it was written without its clients"):
        back.predict(frame, client=0)


def test_the_card_names_clients_and_classes(run: fedfew.Run, tmp_path: Path) -> None:
    place = export.write(run, tmp_path / "e")
    card = json.loads((place / "card.json").read_text())
    assert sorted(name for row in card["models"] for name in row.get("client_names", ())) == sorted(hospitals.NAMES)
    assert card["of_single_clients"][-2:] == ["names", "means and standard deviations"]
    page = (place / "README.md").read_text()
    assert r"\[bold\]Bern\\x1b\[31m" in page
    assert r"\$Chur\_\$" in page
    assert "2 classes: ill, well" in page
    assert "\x1b" not in page


def test_one_model_for_all_needs_no_client(tmp_path: Path) -> None:
    data = federation()
    run = fedfew.train(data, linear, "fedavg", **SHORT)
    back = export.read(export.write(run, tmp_path / "e"), linear)
    x, y = data.test.of(1)
    np.testing.assert_array_equal(back.predict_proba(x), run.predict_proba(x))
    assert back.for_new_client(x, y).model_of(0).models[0] is back.models[0]
    with pytest.raises(ValueError, match="client is missing"):
        export.read(export.write(fedfew.train(data, linear, **SHORT), tmp_path / "k"), linear).predict(x)


@pytest.mark.parametrize("method", [fedfew.FedFew(models=2), "fedem"])
def test_a_new_client_has_the_weights_that_the_run_gives_it(method: object, tmp_path: Path) -> None:
    data = federation()
    run = fedfew.train(data, linear, method, **SHORT)
    back = export.read(export.write(run, tmp_path / "e"), linear)
    x, y = data.test.of(1)
    torch.testing.assert_close(back.for_new_client(x, y).module.log_weights, run.for_new_client(x, y).module.log_weights)


def test_distilled_models_are_chosen_from_not_mixed(tmp_path: Path) -> None:
    """Each is one client's, also where the method mixes its own."""
    data = federation()
    run = fedfew.train(data, linear, "fedem", **SHORT)
    x, y = data.test.of(1)
    distilled = export.read(export.write_distilled(run, data, tmp_path / "d", epochs=1), linear)
    assert len(distilled.models) == len(data)
    assert len(distilled.for_new_client(x, y).module.models) == 1


def test_models_of_the_clients_own_are_not_in_it(tmp_path: Path) -> None:
    data = federation()
    back = export.read(export.write(fedfew.train(data, linear, "ditto", **SHORT), tmp_path / "e"), linear)
    x, y = data.test.of(1)
    for client, answer in ((1, "clients of ditto use models that are not here"), (None, "client is missing")):
        with pytest.raises(ValueError, match=answer):
            back.predict(x, client=client)
    assert len(back.for_new_client(x, y).predict(x)) == len(x)


def test_labels_of_a_new_client_by_name_or_number() -> None:
    data = federation()
    run = fedfew.train(data, linear, **SHORT)
    x, y = data.test.of(0)
    for wrong, answer in ((y[:2], "x has 6 rows, but y has 2 labels"), (y + 3, "as whole numbers from 0 to 2")):
        with pytest.raises(ValueError, match=answer):
            run.for_new_client(x, wrong)
    frame = pd.DataFrame({"a": np.arange(40) / 3, "label": np.repeat([5, 7], 20)})
    named = fedfew.train(fedfew.data.load(frame, clients=2, partition="iid"), "linear", "fedavg", label_prior="client", **SHORT)
    assert named.class_names == ("5", "7")
    for labels in (frame.label, frame.label.astype(float), frame.label.astype(str)):
        prior = named.for_new_client(frame[:30], labels[:30]).model_of(0).log_prior
        torch.testing.assert_close(prior, torch.tensor([21 / 32, 11 / 32]).log())


def test_models_without_a_finite_loss_are_refused() -> None:
    data = federation()
    run = fedfew.train(data, linear, **SHORT)
    for leaf in run.state.server.values():
        for tensor in leaf.values() if isinstance(leaf, dict) else [leaf]:
            tensor.fill_(torch.nan)
    with pytest.raises(ValueError, match="none of the 3 models has a finite loss"):
        run.for_new_client(*data.test.of(0))


def test_what_is_not_valid_is_refused(run: fedfew.Run, tmp_path: Path) -> None:
    place = export.write(run, tmp_path / "e")
    card = json.loads((place / "card.json").read_text())

    def replaced(name: str) -> None:
        card["files"][name] = sha256_of(place / name)
        (place / "card.json").write_text(json.dumps(card))

    tensorfile.write(place / "clients.safetensors", {"choice": torch.zeros(2, dtype=torch.int64)}, {})
    replaced("clients.safetensors")
    with pytest.raises(export.ExportError, match="is not of the 3 clients that the card names"):
        export.read(place)
    (place / "data.json").write_text('{"preprocessing": {"kind": "pickle"}}')
    replaced("data.json")
    with pytest.raises(export.ExportError, match="no preprocessing of kind 'pickle'"):
        export.read(place)


@pytest.mark.parametrize("kind", ["distilled", "personal", "cluster"])
def test_a_new_client_mixes_no_models_that_nobody_mixes(kind: str, tmp_path: Path) -> None:
    """Those of single clients, and of clusters: it gets the one with the least loss on its samples."""
    data = federation()
    method = {"distilled": fedfew.FedFew(models=2), "personal": "ditto", "cluster": fedfew.methods.FeSEM(models=2)}[kind]
    run = fedfew.train(data, linear, method, serve="mixture", temperature=5.0, **SHORT)
    place = tmp_path / "e"
    if kind == "distilled":
        export.write_distilled(run, data, place, epochs=1)
    else:
        (export.write_personal if kind == "personal" else export.write)(run, place)
    back = export.read(place, linear)
    x, y = data.test.of(0)
    with torch.no_grad():
        losses = [float(F.cross_entropy(model(x), y)) for model in back.models]
        expected = back.models[int(np.argmin(losses))](x).double().softmax(1)
    assert len(losses) > 1
    for one in [back] + [run] * (kind == "cluster"):
        np.testing.assert_allclose(one.for_new_client(x.numpy(), y.numpy()).predict_proba(x.numpy()), expected, atol=1e-6)
