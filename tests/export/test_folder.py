"""An export: what is in it, and what is said where it was altered."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedfew
from fedfew import export
from fedfew.data.tensorfile import BrokenFileError
from fedfew.export import model_card, model_file
from fedfew.report import tables
from tests.helpers import federation, linear

ABOUT = {"train": [23, 40, 7, 31], "pixels": "unit", "dtype": "float32"}


@pytest.fixture(scope="module")
def run() -> fedfew.Run:
    return fedfew.train(federation(), "linear", fedfew.FedFew(models=2), rounds=3, seed=1, engine="stacked")


@pytest.fixture
def written(run: fedfew.Run, tmp_path: Path) -> Path:
    return export.write(run, tmp_path / "e", about=ABOUT)


def test_models_come_back_and_are_plain_state_dicts(run: fedfew.Run, written: Path) -> None:
    back = export.read(written)
    for k, (one, other) in enumerate(zip(run.models, back.models, strict=True)):
        plain = load_file(written / f"models/model-{k}.safetensors")  # as anybody would read it
        single = fedfew.load_model(written / f"models/model-{k}.safetensors")
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name])
            assert torch.equal(value, plain[name])
            assert torch.equal(value, single.state_dict()[name])
        assert not other.training


def test_the_card_says_what_was_trained_by_whom_and_how_well(run: fedfew.Run, written: Path) -> None:
    card = json.loads((written / "card.json").read_text())
    assert card["method"] == run.method.settings()
    assert (card["training"]["lr"], card["training"]["rounds"], card["training"]["round"]) == (0.05, 3, 3)
    assert card["data"]["clients"] == 4
    assert card["data"]["train_samples"] == {"total": 101, "smallest": 7, "largest": 40}
    assert card["data"]["test_samples"] == {"total": 24, "smallest": 6, "largest": 6}
    assert card["model"] == {
        "name": "linear",
        "shape": [5],
        "classes": 3,
        "vocabulary": None,
        "batch_norm": "average",
        "pixels": "unit",
        "dtype": "float32",
        "task": "classification",
    }
    assert card["parameters"] == 18
    served = run.history.served_accuracy[-1].astype(float)
    assert card["scores"]["served"] == {
        "clients": 4,
        "mean": pytest.approx(served.mean()),
        "std": pytest.approx(served.std()),
        "min": served.min(),
        "max": served.max(),
    }
    assert [row["clients"] for row in card["models"]] == np.bincount(run.choice, minlength=2).tolist()
    assert card["versions"]["exported with"] == {"fedfew": fedfew.__version__, "torch": torch.__version__}


def test_nothing_of_the_data_is_in_it(run: fedfew.Run, written: Path) -> None:
    everything = b"".join(path.read_bytes() for path in written.rglob("*") if path.is_file())
    assert run.settings["federation"]["fingerprint"].encode() not in everything
    assert set(json.loads((written / "card.json").read_text())["data"]) == {
        "name",
        "clients",
        "train_samples",
        "test_samples",
    }


def test_every_file_has_its_hash_on_the_card(written: Path) -> None:
    files = {str(p.relative_to(written)): hashlib.sha256(p.read_bytes()).hexdigest() for p in written.rglob("*") if p.is_file()}
    own = files.pop("card.json")
    assert json.loads((written / "card.json").read_text())["files"] == files
    assert export.read(written).sha256 == export.sha256_of_card(written) == own


def test_the_page_for_people(run: fedfew.Run, written: Path) -> None:
    page = (written / "README.md").read_text()
    card = json.loads((written / "card.json").read_text())
    mean = f"{card['scores']['served']['mean']:.1%}"
    for words in (
        "# 2 models trained by fedfew on arrays",
        "Trained together by 4 clients in 3 rounds, ",
        f"| served | {mean} ± ",
        "train samples: 101 in all, 7 to 40 per client",
        "test samples: 24 in all, 6 per client",
        "| method: mu | 0.2 |",
        "| lr | 0.05 |",
        "become x/255",
        *(row["sha256"] for row in card["models"]),
    ):
        assert words in page


def test_the_same_run_gives_the_same_bytes(run: fedfew.Run, written: Path, tmp_path: Path) -> None:
    assert export.sha256_of_card(export.write(run, tmp_path / "again", about=ABOUT)) == export.sha256_of_card(written)
    assert export.sha256_of_card(export.write(run, tmp_path / "other")) != export.sha256_of_card(written)


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["models/model-1.safetensors", "README.md"])
def test_an_altered_or_missing_file_is_named(written: Path, name: str) -> None:
    flip_a_byte(written / name)
    with pytest.raises(export.ExportError, match=rf"was altered: {name} is not as it was written"):
        export.read(written)
    (written / name).unlink()
    with pytest.raises(export.ExportError, match=rf"{name} is missing"):
        export.read(written)


def test_a_single_model_is_checked_too(written: Path) -> None:
    flip_a_byte(written / "models/model-0.safetensors")
    with pytest.raises(BrokenFileError, match=r"model-0.safetensors is damaged"):
        fedfew.load_model(written / "models/model-0.safetensors")


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda card: card.update(format=9), "has format 9, this version reads 1"),
        (lambda card: card.pop("files"), r"card.json is damaged \(KeyError"),
        (lambda card: card.update(models=[]), "lists models without a hash"),
        (lambda card: card["files"].update({"../secret": "0"}), "names a file outside of its folder"),
    ],
)
def test_a_card_that_cannot_be_read(written: Path, change, answer: str) -> None:
    card = json.loads((written / "card.json").read_text())
    change(card)
    (written / "card.json").write_text(json.dumps(card))
    with pytest.raises(export.ExportError, match=answer):
        export.read(written)


def test_no_export_at_all(tmp_path: Path) -> None:
    with pytest.raises(export.ExportError, match=r"it has no card.json"):
        export.read(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(export.ExportError, match=r"it has no card.json"):
        export.read(tmp_path / "file")
    with pytest.raises(OSError, match=r"is a folder, but load_model reads a single file.*fedfew\.export\.read"):
        fedfew.load_model(tmp_path)


def test_nothing_is_overwritten_without_being_asked(run: fedfew.Run, written: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="already holds an export: replace it"):
        export.write(run, written)
    (written / "left-over").write_text("")
    export.write(run, written, force=True)
    assert not (written / "left-over").exists()
    assert export.read(written).card["model"]["pixels"] == "symmetric"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    export.write(run, theirs)  # empty: nothing is lost
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("")
    with pytest.raises(ValueError, match="already exists and is no export: choose another folder"):
        export.write(run, tmp_path / "full", force=True)
    assert not list(tmp_path.glob(".partial*"))


def test_what_goes_wrong_leaves_nothing_behind(run: fedfew.Run, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = export.sha256_of_card(written)

    def fails(*_: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr(model_card, "text", fails)
    with pytest.raises(OSError, match="disk full"):
        export.write(run, written, force=True)
    assert export.sha256_of_card(written) == before
    assert [path.name for path in written.parent.iterdir()] == ["e"]


def test_where_clients_have_models_of_their_own_the_card_says_so(tmp_path: Path) -> None:
    own = fedfew.train(federation(), "linear", "ditto", rounds=1, engine="stacked")
    card = export.read(export.write(own, tmp_path / "ditto")).card
    assert card["scores_are_of_these_models"] is False
    assert card["models"][0]["clients"] is None
    assert "The scores are of what clients use, not of the models here." in (tmp_path / "ditto/README.md").read_text()
    shared = fedfew.train(federation(), "linear", "fedavg", rounds=1, engine="stacked")
    assert export.read(export.write(shared, tmp_path / "fedavg")).card["models"][0]["clients"] == 4


def test_of_a_run_on_a_network_the_server_knows_less(tmp_path: Path) -> None:
    """Its state holds no client's own, and sites may keep their numbers of test samples to themselves."""
    run = fedfew.train(federation(), "linear", "ditto", rounds=1, engine="stacked")
    run.state.own = {}
    run.settings["federation"] |= {"test_samples": [6, 0, 6, 6], "pixels": "unit"}
    card = export.read(export.write(run, tmp_path / "e")).card
    assert card["scores_are_of_these_models"] is False
    assert card["data"]["test_samples"] is None
    assert card["model"]["pixels"] == "unit"


def test_a_method_without_models_on_the_server_has_nothing_to_export(tmp_path: Path) -> None:
    local = fedfew.train(federation(), "linear", "local", rounds=1, engine="stacked")
    with pytest.raises(ValueError, match="local keeps no whole models on the server"):
        export.write(local, tmp_path / "e")


def test_a_module_of_ones_own_must_be_given_again(tmp_path: Path) -> None:
    run = fedfew.train(federation(), linear, "fedavg", rounds=1, engine="stacked")
    export.write(run, tmp_path / "e")
    with pytest.raises(ValueError, match="which is not one of fedfew's own"):
        export.read(tmp_path / "e")
    assert torch.equal(export.read(tmp_path / "e", linear).models[0].weight, run.models[0].weight)
    with pytest.raises(ValueError, match="does not fit the module given"):
        export.read(tmp_path / "e", lambda: nn.Linear(5, 4))


def test_modules_without_running_statistics_come_back_without(tmp_path: Path) -> None:
    run = fedfew.train(federation(), normed, "fedavg", rounds=1, batch_size=4, batch_norm="batch", engine="stacked")
    back = export.read(export.write(run, tmp_path / "e"), normed).models[0]
    assert back[1].running_mean is None


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_a_run_stopped_before_any_score_can_be_exported(run: fedfew.Run, tmp_path: Path) -> None:
    early = fedfew.train(federation(), "linear", fedfew.FedFew(models=2), rounds=1, engine="stacked")
    early.state.history = fedfew.History()
    export.write(early, tmp_path / "e")
    assert export.read(tmp_path / "e").card["scores"] == {}
    assert "None: training was stopped before any were taken." in (tmp_path / "e/README.md").read_text()


def test_the_note_of_a_file_says_how_to_build_its_model(written: Path) -> None:
    note = model_file.note(written / "models/model-1.safetensors")
    assert (note["number"], note["model"]["name"]) == (1, "linear")


@pytest.mark.parametrize("pixels", ["unit", "symmetric"])
def test_the_card_states_the_preprocessing_that_the_models_were_trained_with(pixels: str, tmp_path: Path) -> None:
    """Bytes: half bright, half dark, which is the label."""
    x = np.repeat(np.array([[200], [50]], np.uint8), 10, 0)
    data = fedfew.Federation.from_arrays([(x, x[:, 0] > 100)] * 2, [(x, x[:, 0] > 100)] * 2)
    data = replace(data, train=replace(data.train, pixels=pixels), test=replace(data.test, pixels=pixels))
    run = fedfew.train(data, "linear", "fedavg", rounds=2, engine="sequential", device="cpu")
    export.write(run, tmp_path / "it")
    model = export.read(tmp_path / "it").card["model"]
    assert (model["pixels"], model["dtype"]) == (pixels, "uint8")
    assert {"unit": "x/255", "symmetric": "0.5"}[pixels] in (tmp_path / "it" / "README.md").read_text()


def test_the_page_says_what_the_logits_mean_and_how_models_are_served(run: fedfew.Run, written: Path, tmp_path: Path) -> None:
    assert "label priors" not in (written / "README.md").read_text()
    strong = fedfew.train(federation(), linear, fedfew.FedFew(models=2), rounds=1, recipe="strong", device="cpu")
    page = (export.write(strong, tmp_path / "strong") / "README.md").read_text()
    assert "a client adds the log of its own label frequencies" in page
    assert "The mixture is of all models, weighted per client by exp(-loss / 0.5)" in page
    assert "A client predicts with a mixture of them" in page
    assert export.read(tmp_path / "strong", linear).card["training"]["label_prior"] == "client"


@pytest.mark.parametrize(
    ("method", "wanted", "unwanted"),
    [
        ("fedavg", ["All clients use this model.", "served: the model as it is here."], ["mixture"]),
        (
            "ditto",
            ["Clients of ditto use models of their own, which stay with them and are not here."],
            ["mixture", "that fits its own data best"],
        ),
        (
            "fedem",
            [
                "served: the mixture of the models here.",
                "weighted per client by weights that it learned",
                "predicts with a mixture",
            ],
            ["exp(-loss", "the model as it is here"],
        ),
    ],
)
def test_the_page_speaks_of_a_mixture_only_where_one_is_served(
    method: str, wanted: list[str], unwanted: list[str], tmp_path: Path
) -> None:
    strong = fedfew.train(federation(), linear, method, rounds=1, recipe="strong", device="cpu", engine="sequential")
    page = (export.write(strong, tmp_path / "it") / "README.md").read_text().split("## Settings")[0]
    assert [words for words in wanted if words not in page] == []
    assert [words for words in unwanted if words in page] == []


@pytest.mark.parametrize("method", ["pacfl", "fedgroup", "fesem"])
def test_an_export_holds_which_model_the_server_assigned_to_each_client(method: str, tmp_path: Path) -> None:
    data = federation()
    run = fedfew.train(
        data, linear, method, rounds=2, recipe="strong", device="cpu", engine="sequential", folder=tmp_path / "run"
    )
    cluster = run.state.server["cluster"].tolist()
    assert len(set(cluster)) > 1
    assert run.choice.tolist() == cluster == run.history.choice[-1].tolist()
    assert run.choice.tolist() == fedfew.load(tmp_path / "run", linear).choice.tolist()
    page = (export.write(run, tmp_path / "it") / "README.md").read_text()
    assert "A client uses the model of its cluster, which the server decided on." in page
    assert "mixture" not in page.split("## Settings")[0]
    found = export.read(tmp_path / "it", linear)
    assert [row["clients"] for row in found.card["models"]] == [cluster.count(k) for k in range(len(run.models))]
    for client in range(len(data)):
        x = data.test.of(client)[0]
        torch.testing.assert_close(found.model_of(client)(x), run.model_of(client)(x), rtol=0, atol=0)
        prior = run.state.priors["log_prior"][client]
        torch.testing.assert_close(found.model_of(client)(x), run.models[cluster[client]](x) + prior)


def test_clients_that_are_in_no_cluster_yet_use_none_of_the_models(tmp_path: Path) -> None:
    run = fedfew.train(federation(), linear, "pacfl", rounds=1, participation=0.5, device="cpu", engine="sequential")
    assert run.choice.tolist().count(-1) == 2
    assert not run.serves_server_models
    x = federation().test.of(0)[0].numpy()
    assert run.predict(x, client=int(run.choice.argmin())).shape == (6,)  # with the initial model
    page = (export.write(run, tmp_path / "it") / "README.md").read_text()
    assert page.count("Some clients are not assigned to one of these models yet") == 2
    assert [str(cell) for cell in tables.clients(run, {}).columns[1].cells].count("–") == 2
