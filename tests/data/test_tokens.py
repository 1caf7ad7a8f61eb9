"""Texts encoded by a tokeniser of Hugging Face's: padding, truncation, tasks, what is written and what is refused."""

from __future__ import annotations

import re
import sys
import types
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from fedfew import data
from fedfew.data import hub, prepared
from fedfew.data.errors import DataError
from fedfew.data.preprocessing import from_document, to_document
from fedfew.data.tokens import Tokens
from fedfew.util.extras import install_command

CLS, SEP, PAD, UNKNOWN = 1, 2, 3, 0
WORDS = ("goal", "match", "stock", "price", "up")  # 4 … 8


def made() -> Tokenizer:
    """Word by word, with [CLS] before and [SEP] after; padding is neither 0 nor the last."""
    names = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", *WORDS)
    tokenizer = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)])
    return tokenizer


@dataclass
class Fast:
    """What is used of transformers' PreTrainedTokenizerFast, whose import takes longer than all these tests."""

    backend_tokenizer: Tokenizer = field(default_factory=made)
    pad_token_id: int | None = PAD


TEXTS = ["goal match", "stock price up", "up", "goal goal goal goal", "price unheard", ""]
ENCODED = [
    [CLS, 4, 5, SEP, PAD],
    [CLS, 6, 7, 8, SEP],
    [CLS, 8, SEP, PAD, PAD],
    [CLS, 4, 4, 4, SEP],  # truncated, with its last special token
    [CLS, 7, UNKNOWN, SEP, PAD],
    [CLS, SEP, PAD, PAD, PAD],
]
CLIENTS = [(TEXTS, [0, 1, 1, 0, 1, 0]), (TEXTS[:4], [0, 1, 1, 0])]


def by_split(clients: list[Any]) -> dict[str, Any]:
    return {"train": clients, "test": clients}


def test_token_ids_by_hand() -> None:
    found = data.load(by_split(CLIENTS), tokenizer=Fast(), max_length=5)
    for client, (texts, labels) in enumerate(CLIENTS):
        expected = sorted(zip(ENCODED[: len(texts)], labels, strict=True))
        for samples in (found.train, found.test):
            x, y = samples.of(client)  # in an order of their own
            assert sorted(zip(x.tolist(), y.tolist(), strict=True)) == expected
    assert (found.vocabulary, found.padding, found.classes) == (9, PAD, 2)
    sha256 = found.about["tokens"].pop("sha256")
    assert len(bytes.fromhex(sha256)) == 32
    assert found.about["tokens"] == {"name": "", "padding": PAD, "size": 9, "max_length": 5}
    assert "4 texts were cut at 5 tokens (max_length)" in found.about["notes"]
    assert data.load(by_split(CLIENTS), tokenizer=Fast()).shape == (200,)


def test_the_tokenisers_own_padding_and_truncation_are_not_used() -> None:
    own = made()
    own.enable_padding(direction="left", length=9)
    own.enable_truncation(3)
    assert Tokens.of(Fast(own), 5).apply(TEXTS).tolist() == ENCODED


def test_targets_of_language_modelling_are_the_tokens_and_not_padding() -> None:
    plain = [["goal match", "up"] * 4, ["stock"] * 4]  # texts alone, of two clients
    found = data.load(by_split(plain), tokenizer=Fast(), max_length=5, task="language-modelling")
    assert sorted(found.train.of(0)[1].tolist())[::4] == [[CLS, 4, 5, SEP, -100], [CLS, 8, SEP, -100, -100]]
    assert (found.task, found.classes, len(found)) == ("language-modelling", 9, 2)
    labelled = data.load({"a": CLIENTS[0], "b": CLIENTS[1]}, tokenizer=Fast(), max_length=5, task="language-modelling")
    assert labelled.train.y.shape == labelled.train.x.shape
    assert labelled.client_names == ("a", "b")


def test_pairs_of_texts_and_labels_need_no_tokeniser() -> None:
    found = data.load(by_split(CLIENTS))
    assert found.padding is None
    assert found.train.x.shape == (10, 200)


def test_a_file_is_cached_per_tokeniser_and_length(tmp_path: Path) -> None:
    rows = "\n".join(f"{text},{label}" for text, label in zip(TEXTS[:5] * 4, [0, 1, 1, 0, 1] * 4, strict=True))
    (tmp_path / "texts.csv").write_text(f"text,label\n{rows}\n")
    settings: dict[str, Any] = {"clients": 2, "partition": "iid"}
    for _ in range(2):
        for length in (4, 5):
            found = data.load(tmp_path / "texts.csv", tokenizer=Fast(), max_length=length, **settings)
            assert found.shape == (length,)
            assert int(found.train.x.max()) < 9
        assert data.load(tmp_path / "texts.csv", **settings).shape == (200,)


def test_what_encodes_is_written_and_read_again(tmp_path: Path) -> None:
    found = data.load(by_split(CLIENTS), tokenizer=Fast(), max_length=5)
    assert found.preprocessing is not None
    again = from_document(to_document(found.preprocessing))
    assert again == found.preprocessing
    read = prepared.read(prepared.write(found, tmp_path / "texts.fed"))
    assert read.padding == PAD
    assert read.preprocessing is not None
    assert read.preprocessing.apply(TEXTS).tolist() == ENCODED


def test_a_prepared_file_of_a_language_model_is_checked(tmp_path: Path) -> None:
    plain = [["goal match", "up"] * 4, ["stock"] * 4]
    found = data.load(by_split(plain), tokenizer=Fast(), max_length=5, task="language-modelling")
    again = prepared.read(prepared.write(found, tmp_path / "right.fed"))
    assert again.fingerprint() == found.fingerprint()
    assert (again.task, again.padding, again.class_names[-1]) == ("language-modelling", PAD, "8")
    wrong = {
        "outside 0 … 8": replace(found.train, y=found.train.y.clone().fill_(9)),
        r"labels \[\d+, 4\]": replace(found.train, y=found.train.y[:, :4]),
        "not int64": replace(found.train, y=found.train.y.float()),
    }
    for message, train in wrong.items():
        with pytest.raises(DataError, match=message):
            prepared.read(prepared.write(replace(found, train=train), tmp_path / "wrong.fed"))


def test_large_vocabularies_are_stored_in_32_bits() -> None:
    assert Tokens.of(Fast(), 5).apply(["up"]).dtype == np.int16
    assert Tokens(made().to_str(), PAD, 40_000, 5).apply(["up"]).dtype == np.int32


@pytest.mark.parametrize(
    ("given", "settings", "error", "message"),
    [
        (CLIENTS, {"max_length": 5}, ValueError, "max_length is 5, but it is for texts with a tokenizer"),
        (CLIENTS, {"tokenizer": Fast(), "max_length": 2}, ValueError, "above the tokenizer's 2 special tokens per text, not 2"),
        (CLIENTS, {"tokenizer": Fast(pad_token_id=None)}, ValueError, "no padding token: set tokenizer.pad_token"),
        (CLIENTS, {"tokenizer": object()}, TypeError, "a fast tokenizer of transformers .* not object"),
        ("digits", {"tokenizer": Fast()}, ValueError, "tokenizer is for texts, but digits holds none .*--input"),
        ("some.fed", {"tokenizer": Fast()}, ValueError, "some.fed is a prepared federation"),
        ("some.fed", {"max_length": 5}, ValueError, "max_length=5: some.fed is a prepared federation"),
        (CLIENTS, {"task": "language-modelling"}, ValueError, r"fedfew.data.load\(…, tokenizer=…\)"),
        (
            CLIENTS,
            {"tokenizer": Fast(), "task": "language-modelling", "partition": "label-permutation"},
            ValueError,
            "permutes labels, which language modelling does not use",
        ),
    ],
)
def test_what_does_not_fit_is_refused(given: Any, settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        data.load(given, **settings)


@pytest.mark.slow
def test_a_folder_works_as_the_tokeniser_does(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made(), pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(tmp_path / "tokenizer")
    for tokenizer in (fast, tmp_path / "tokenizer", str(tmp_path / "tokenizer")):
        assert Tokens.of(tokenizer, 5).apply(TEXTS).tolist() == ENCODED
    own = fast(TEXTS, padding="max_length", truncation=True, max_length=5)["input_ids"]
    assert own == ENCODED


def folder_of(tokenizer: Tokenizer, path: Path) -> Path:
    """What ``tokenizers`` alone writes: reading it needs no transformers, whose import takes longer than all these tests."""
    path.mkdir()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def test_a_folder_with_tokenizer_json_alone_needs_no_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    tokens = Tokens.of(folder_of(made(), tmp_path / "own"), 5)
    assert tokens.apply(TEXTS).tolist() == ENCODED
    assert (tokens.name, tokens.padding, tokens.size) == ("own", PAD, 9)
    assert tokens.sha256 == Tokens.of(Fast(), 7).sha256  # however it was given, and whatever the length
    padded = made()
    padded.enable_padding(pad_id=UNKNOWN, pad_token="[UNK]")
    other = Tokens.of(folder_of(padded, tmp_path / "other"), 5)
    assert other.padding == UNKNOWN  # its own goes before the usual names
    assert other.sha256 != tokens.sha256
    without = Tokenizer(WordLevel({"up": 0, "?": 1}, unk_token="?"))
    with pytest.raises(ValueError, match=r"tokenizer \(bare\) has no padding token: .* and save it"):
        Tokens.of(folder_of(without, tmp_path / "bare"), 5)
    (tmp_path / "own" / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"own/tokenizer.json cannot be read"):
        Tokens.of(tmp_path / "own")


def test_without_a_padding_token_the_end_of_text_pads_and_a_note_says_so(tmp_path: Path) -> None:
    """As the tokenisers of Llama 2 and GPT-2, which have none."""
    bare = Tokenizer(WordLevel({"?": 0, "</s>": 1, "goal": 2, "match": 3}, unk_token="?"))
    bare.pre_tokenizer = Whitespace()
    bare.add_special_tokens(["</s>"])
    file = folder_of(bare, tmp_path / "bare") / "tokenizer.json"
    found = data.load(by_split(CLIENTS), tokenizer=file, max_length=3)  # the file itself is as good as its folder
    assert found.preprocessing is not None
    assert found.preprocessing.apply(["goal match"]).tolist() == [[2, 3, 1]]
    assert found.padding == 1
    assert found.about["tokens"]["name"] == "tokenizer.json"
    assert any(
        note.startswith("texts are padded with </s>, the tokenizer's token for the end of a text")
        for note in found.about["notes"]
    )
    for given in (tmp_path / "bare", Fast(bare, pad_token_id=None)):
        assert Tokens.of(given, 3) == replace(Tokens.of(file, 3), name="bare" if isinstance(given, Path) else "")
    assert Tokens.of(made(), 5).notes == []


@pytest.mark.parametrize(
    ("name", "offline", "message"),
    [
        ("./nowhere", "", r"./nowhere is no folder with a tokenizer \(save_pretrained .*, and no name on the hub"),
        ("someone/some-model", "1", "as a name on the hub it cannot be had: HF_HUB_OFFLINE forbids asking the hub"),
        ("someone/some-model", "", "as a name on the hub it cannot be had: the hub does not answer from here"),
    ],
)
def test_what_is_no_folder_must_be_on_the_hub(
    name: str, offline: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(AutoTokenizer=None))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(hub, "answers", lambda: False)
    with pytest.raises(DataError, match=message):
        Tokens.of(name)


@pytest.mark.parametrize("cached", [True, False])
def test_a_name_is_asked_of_transformers(cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    class Auto:
        @staticmethod
        def from_pretrained(name: str, local_files_only: bool) -> Fast:
            asked.append((name, local_files_only))
            if name.endswith("unknown"):
                raise OSError("it is not there\nmore words")
            return Fast()

    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(AutoTokenizer=Auto))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1" if cached else "")
    monkeypatch.setattr(hub, "answers", lambda: True)
    for name in ("someone--some-model", "someone--unknown") if cached else ():
        (tmp_path / "hub" / f"models--{name}").mkdir(parents=True)
    assert Tokens.of("someone/some-model", 5).name == "someone/some-model"
    assert asked == [("someone/some-model", False)]
    with pytest.raises(DataError, match=r"as a name on the hub nothing transformers can read \(it is not there\)"):
        Tokens.of("someone/unknown")


def test_a_tokeniser_that_was_altered_is_refused() -> None:
    document = to_document(Tokens.of(Fast(), 5))
    assert from_document(document).padding == PAD
    with pytest.raises(DataError, match="is not the one that the models were trained with: its sha256 differs"):
        from_document(document | {"tokenizer": document["tokenizer"].replace("goal", "gaol")})


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, folder = Tokens.of(Fast(), 5), folder_of(made(), tmp_path / "own")
    for package in ("tokenizers", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
    for missing in (lambda: tokens.apply(["up"]), lambda: Tokens.of("folder"), lambda: Tokens.of(folder)):
        with pytest.raises(ImportError, match=re.escape(install_command("adapters"))):
            missing()
