"""Texts in files, with a tokeniser: from the command line to scores, exports, choices and predictions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fedfew
from fedfew import export
from fedfew.data import DataError, load, prepared
from fedfew.training.from_settings import make_federation
from fedfew.training.resolve import resolve
from tests import texts
from tests.helpers import call, refused

OWN = ("--model", "tests.texts:bigram")
LANGUAGE = ("--task", "language-modelling", *OWN)
SHORT = ("--device", "cpu", "--engine", "sequential", "--lr", "5", "--batch-size", "4")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of four writers with two styles, without labels, and a finished run of two language models on them."""
    place = tmp_path_factory.mktemp("texts")
    texts.write_rows(place / "plain.jsonl", texts.unlabelled(texts.rows()))
    tokenizer = texts.tokenizer_folder(place / "counting")
    given = ("--dataset", str(place / "plain.jsonl"), "--client", "writer", "--tokenizer", tokenizer, "--max-length", "6")
    run = call("run", *given, *LANGUAGE, *SHORT, "--models", "2", "--rounds", "12", "--folder", str(place / "run"))
    assert "task: 8 tokens (language-modelling)" in run.output
    assert "perplexity as it is" in run.output
    shutil.rmtree(place / "counting")  # the run keeps what it needs
    return place


def test_a_run_keeps_perplexities_and_settings(place: Path) -> None:
    shown = json.loads(call("show", str(place / "run"), *OWN, "--json").stdout)
    final = shown["final"]
    assert max(final["perplexity"]) < 1.5  # both directions in one model: 2 at best
    assert shown["scores"]["served"]["mean"] == pytest.approx(sum(1 / p for p in final["perplexity"]) / 4, rel=1e-5)
    config = yaml.safe_load((place / "run" / "config.yaml").read_text())
    assert (config["tokenizer"], config["max_length"]) == (str(place / "counting"), 6)
    call("report", str(place / "run"))
    assert "their own tokens: there are no labels to count" in (place / "run" / "report.html").read_text().replace(
        "texts' ", "their "
    )


def test_an_export_names_the_tokeniser_and_chooses_by_texts_alone(place: Path) -> None:
    call("export", str(place / "run"), "-o", str(place / "models"), *OWN)
    found = export.read(place / "models", texts.bigram)
    sha256 = found.data.preprocessing.sha256  # type: ignore[union-attr]  # a tokeniser's
    assert found.card["data"]["tokenizer"]["name"] == "counting"
    assert f"the tokenizer counting (SHA-256 `{sha256}`)" in (place / "models" / "README.md").read_text()
    for writer in (0, 1):
        path = texts.write_rows(
            place / "new.csv", [row for row in texts.unlabelled(texts.rows()) if row["writer"] == f"w{writer}"]
        )
        chosen = json.loads(call("select", str(place / "models"), "--data", path, *OWN, "--json").stdout)
        assert f"w{writer}" in found.card["models"][chosen["model"]]["client_names"]
    mine = found.for_new_client([row["text"] for row in texts.rows() if row["writer"] == "w1"])
    tokens = torch.tensor([[texts.FIRST + 2]])
    assert int(mine.module(tokens)[0, 0].argmax()) == texts.FIRST + 1  # three, and then two: downwards
    assert "these are language models" in refused("predict", str(place / "models"), "--data", path, "--client", "w0", *OWN)


def test_labels_and_files_of_three_kinds(tmp_path: Path) -> None:
    tokenizer = texts.tokenizer_folder(tmp_path / "counting")
    labelled = [row | {"label": ("up", "down")[int(row["label"])]} for row in texts.rows()]
    shown = []
    for kind in ("csv", "jsonl", "parquet"):
        path = texts.write_rows(tmp_path / f"texts.{kind}", labelled)
        given = ("--client", "writer", "--tokenizer", tokenizer, "--max-length", "6")
        shown.append(json.loads(call("data", "show", path, *given, "--json").stdout))
    assert [one["shape"] for one in shown] == [[6]] * 3
    assert shown[0]["clients"] == shown[1]["clients"] == shown[2]["clients"]
    assert shown[0]["clients"][1]["classes"] == {"down": 12, "up": 0}
    call("run", "--dataset", path, *given, *SHORT[:4], "--lr", "0.1", "--rounds", "1", "--folder", str(tmp_path / "run"))
    (tmp_path / "new.jsonl").write_text('{"text": "one two three"}\n')
    answer = call("predict", str(tmp_path / "run"), "--data", str(tmp_path / "new.jsonl"), "--client", "w0").stdout
    run = fedfew.load(tmp_path / "run")
    assert answer.splitlines()[1] == f"1,{run.predict(['one two three'], 'w0')[0]}"


def test_a_prepared_file_trains_as_the_texts_do(tmp_path: Path) -> None:
    tokenizer = texts.tokenizer_folder(tmp_path / "counting")
    path = texts.write_rows(tmp_path / "plain.csv", texts.unlabelled(texts.rows()))
    given = ("--client", "writer", "--tokenizer", tokenizer, "--max-length", "6", "--task", "language-modelling")
    out = str(tmp_path / "texts.fed")
    call("data", "prepare", path, *given, "-o", out)
    direct = load(path, client="writer", tokenizer=tokenizer, max_length=6, task="language-modelling")
    assert prepared.read(out).fingerprint() == direct.fingerprint()
    table = call("data", "show", out).output
    assert "tokens" in table
    assert str(sum(len(row["text"].split()) for row in texts.rows())) in table  # one token per word, no padding
    shown = json.loads(call("data", "show", out, "--json").stdout)
    assert shown["clients"][2]["tokens"] == sum(len(row["text"].split()) for row in texts.rows() if row["writer"] == "w2")
    assert (shown["task"], shown["label_distance"], shown["class_names"]) == ("language-modelling", None, [])
    shared = (*SHORT, "--rounds", "1", *OWN, "--methods", "fedavg,local")
    compared = call("compare", *shared, "--dataset", out, "--task", "language-modelling").output
    assert "1/perplexity" in compared
    assert "with the task language-modelling" in refused("run", "--dataset", out, "--task", "classification")


def test_a_run_does_not_go_on_with_another_tokeniser(tmp_path: Path) -> None:
    path = texts.write_rows(tmp_path / "plain.csv", texts.unlabelled(texts.rows()))
    tokenizer, folder = texts.tokenizer_folder(tmp_path / "counting"), str(tmp_path / "run")
    given = ("--dataset", path, "--client", "writer", "--tokenizer", tokenizer, *LANGUAGE, *SHORT)
    call("run", *given, "--rounds", "1", "--folder", folder)
    shutil.rmtree(tokenizer)
    texts.tokenizer_folder(tmp_path / "counting", texts.WORDS[::-1])
    answer = refused("run", "--resume", "--folder", folder, *OWN, "--rounds", "2")
    assert "its data differ in tokenizer, fingerprint (fingerprint: a hash of all samples)" in answer


def test_texts_without_labels_and_clients_are_divided_at_random(tmp_path: Path) -> None:
    tokenizer = texts.tokenizer_folder(tmp_path / "counting")
    path = texts.write_rows(tmp_path / "plain.csv", texts.unlabelled(texts.rows()))
    settings = resolve({"dataset": path, "clients": 3, "tokenizer": tokenizer, "task": "language-modelling"}, {})
    federation, notes = make_federation(settings)
    assert "partition iid: these texts have no labels that they could be divided by" in notes
    assert federation.train.count.tolist() == [12, 12, 12]
    with pytest.raises(DataError, match="no column that is recognised as the label"):  # not taken from the cache of the above
        load(path, clients=3, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ("--dataset", "digits", "--max-length", "9"),
            "max_length is 9, but it is for texts with a tokenizer, and none is given",
        ),
        (("--dataset", "digits", "--tokenizer", "FOLDER"), "tokenizer is for texts, but digits holds none"),
        (("--dataset", "TEXTS", "--tokenizer", "./nowhere"), "./nowhere is no folder with a tokenizer"),
        (("--dataset", "TEXTS", *LANGUAGE), "give a file of texts and a tokenizer (--tokenizer FOLDER"),
        (("--dataset", "TEXTS", "--tokenizer", "FOLDER"), "has no column that is recognised as the label"),
        (("--dataset", "digits", "--max-length", "0"), "max_length must be a whole number ≥ 1, not 0"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(given: tuple[str, ...], message: str, tmp_path: Path) -> None:
    known = {"FOLDER": texts.tokenizer_folder(tmp_path / "counting"), "TEXTS": str(tmp_path / "plain.csv")}
    texts.write_rows(tmp_path / "plain.csv", texts.unlabelled(texts.rows()))
    assert message in refused("run", *(known.get(word, word) for word in given), "--rounds", "1")


def test_padding_and_vocabulary_reach_the_model(tmp_path: Path) -> None:
    tokenizer = texts.tokenizer_folder(tmp_path / "counting")
    path = texts.write_rows(tmp_path / "texts.csv", texts.rows())
    found: dict[str, Any] = {"client": "writer", "tokenizer": tokenizer, "max_length": 6}
    run = fedfew.train(
        load(path, **found), "textcnn", "fedavg", rounds=1, engine="sequential", device="cpu", folder=tmp_path / "r"
    )
    for one in (run, fedfew.load(tmp_path / "r")):
        embedding: Any = one.models[0].embedding
        assert (embedding.num_embeddings, embedding.padding_idx) == (texts.VOCABULARY, texts.PAD)
        assert not embedding.weight[texts.PAD].any()  # neither started nor trained
        assert embedding.weight[texts.UNKNOWN].any()
