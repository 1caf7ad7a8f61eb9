"""Texts at sites: a tokeniser that is the same everywhere, class numbers, and an export that takes raw texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedfew
from fedfew.data import load, write_prepared
from fedfew.data.tokens import Tokens
from fedfew.flower import site_data
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.messages import JOIN, RefusedError, SiteMessage
from fedfew.flower.registry import Registry, common_data
from fedfew.flower.server import FedFewStrategy
from fedfew.flower.server_loop import ServerLoop
from fedfew.flower.site import Site
from fedfew.flower.site_data import SiteConfig
from tests import texts
from tests.flower.support import SETTINGS, FakeNetwork

LANGUAGE = {"task": "language-modelling", "max-length": 6}


def network(folder: Path, **changes: Any) -> FakeNetwork:
    """One writer per site, each with a file of texts."""
    sites = {}
    for client in range(4):
        rows = [row for row in texts.unlabelled(texts.rows()) if row["writer"] == f"w{client}"]
        path = texts.write_rows(folder / f"{client}.jsonl", rows)
        node = {"client": client, "data": path, "state": str(folder / "sites")} | LANGUAGE | changes
        sites[100 + client] = Site(SiteConfig.read(node, {}), texts.bigram)
    return FakeNetwork(sites)


def loop(folder: Path, here: FakeNetwork, **changes: Any) -> ServerLoop:
    settings = SETTINGS | {"folder": str(folder / "run"), "lr": 5.0, "batch_size": 4, "method": "fedfew:models=2", "rounds": 2}
    return ServerLoop(DeploymentConfig(**settings | changes), here, lambda data: texts.bigram, here.clock)


def test_language_models_of_texts_at_sites(tmp_path: Path) -> None:
    tokenizer = texts.tokenizer_folder(tmp_path / "counting")
    here = network(tmp_path, tokenizer=tokenizer)
    run = loop(tmp_path, here, tokenizer=tokenizer, max_length=6).run()
    assert run.settings["federation"]["task"] == "language-modelling"
    assert run.settings["federation"]["padding"] == texts.PAD
    sites = [site_data.load(site.config) for site in here.sites.values()]
    pairs = {side: [getattr(one, side).of(0) for one in sites] for side in ("train", "test")}
    whole = fedfew.Federation.from_arrays(pairs["train"], pairs["test"], classes=texts.VOCABULARY, task="language-modelling")
    settings: dict[str, Any] = {"rounds": 2, "lr": 5.0, "batch_size": 4, "engine": "sequential"}
    oracle = fedfew.train(whole, texts.bigram, fedfew.FedFew(models=2), **settings)
    for name, value in oracle.state.server.items():
        torch.testing.assert_close(run.state.server[name], value, rtol=1e-5, atol=1e-5)
    again = fedfew.load(tmp_path / "run", texts.bigram)
    assert again.data.preprocessing is not None
    assert again.data.preprocessing.apply(["one six"]).tolist() == [[2, 7, 1, 1, 1, 1]]


def test_the_server_refuses_a_model_that_takes_no_token_ids() -> None:
    data = {"shape": [6], "classes": 3, "vocabulary": 10, "padding": 1}
    with pytest.raises(ValueError, match=r"model is 'mlp', which takes numbers, .* token ids: set model='textcnn'"):
        FedFewStrategy(DeploymentConfig())._factory(data)


def test_a_site_with_another_tokeniser_is_refused(tmp_path: Path) -> None:
    here = network(tmp_path, tokenizer=texts.tokenizer_folder(tmp_path / "counting"))
    other = texts.tokenizer_folder(tmp_path / "other", texts.WORDS[::-1])  # the same size
    here.sites[103] = Site(replace(here.sites[103].config, tokenizer=other), texts.bigram)
    run = loop(tmp_path, here, rounds=1).run()
    assert any("node 103 cannot take part: tokenizer of its data is" in event for event in run.state.events)
    assert any(
        "exports of this run take token ids alone, since the run's configuration names none" in e for e in run.state.events
    )
    with pytest.raises(ValueError, match="of the server is not the one of the sites: give all the same"):
        loop(tmp_path / "second", here, tokenizer=other, max_length=6).run()
    away = loop(tmp_path / "third", here, tokenizer="./nowhere", max_length=6, rounds=1).run()
    assert any("since the server cannot read it (tokenizer: ./nowhere is no folder" in event for event in away.state.events)
    del here.sites[100], here.sites[102]
    members = [_member(site) for site in here.sites.values()]
    with pytest.raises(ValueError, match=r"sites do not fit together: tokenizer is [0-9a-f]{64} for client 1, but [0-9a-f]{64}"):
        common_data(members)


def _member(site: Site) -> Any:
    return Registry(4, 1000).read(site.handle(SiteMessage(JOIN)))


def test_what_a_site_says_of_its_tokeniser_must_be_a_hash(tmp_path: Path) -> None:
    here = network(tmp_path, tokenizer=texts.tokenizer_folder(tmp_path / "counting"))
    said = here.sites[101].handle(SiteMessage(JOIN))
    assert "1.jsonl" not in str(said.values)
    said.values["tokenizer"] = "a" * 63 + "\n"
    with pytest.raises(RefusedError, match="its tokenizer is not a SHA-256"):
        Registry(4, 1000).read(said)


def test_labels_of_texts_are_class_numbers(tmp_path: Path) -> None:
    tokenizer = texts.tokenizer_folder(tmp_path / "counting")
    numbers = [row | {"label": ("3", "1")[i % 2]} for i, row in enumerate(texts.rows(1))]
    path = texts.write_rows(tmp_path / "texts.csv", numbers)
    node: dict[str, Any] = {"client": 2, "data": path, "tokenizer": tokenizer, "max-length": 6}
    found = site_data.load(SiteConfig.read(node, {}))
    assert (found.classes, found.shape, found.ids.tolist(), found.name) == (4, (6,), [2], "texts")
    assert found.train.y.unique().tolist() == [1, 3]
    x, y = found.test.of(0)
    encoded = Tokens.of(tokenizer, 6).apply([row["text"] for row in numbers]).tolist()
    by_text = {tuple(ids): int(row["label"]) for ids, row in zip(encoded, numbers, strict=True)}
    assert [by_text[tuple(one)] for one in x.tolist()] == y.tolist()
    assert site_data.load(SiteConfig.read(node | {"classes": 7}, {})).classes == 7
    with pytest.raises(ValueError, match="labels run to 3, but classes is 3"):
        site_data.load(SiteConfig.read(node | {"classes": 3}, {}))
    named = texts.write_rows(tmp_path / "named.csv", [row | {"label": "ab"[i % 2]} for i, row in enumerate(numbers)])
    with pytest.raises(ValueError, match=r"labels must be class numbers, 0, 1, …, the same at all sites, not names \('a'\)"):
        site_data.load(SiteConfig.read(node | {"data": named}, {}))


def test_a_prepared_file_at_a_site(tmp_path: Path) -> None:
    tokenizer = texts.tokenizer_folder(tmp_path / "counting")
    path = texts.write_rows(tmp_path / "plain.csv", texts.unlabelled(texts.rows()))
    made = load(path, client="writer", tokenizer=tokenizer, max_length=6, task="language-modelling")
    node = {"client": 1, "data": str(write_prepared(made, tmp_path / "texts.fed"))}
    found = site_data.load(SiteConfig.read(node | {"task": "language-modelling"}, {"tokenizer": "elsewhere"}))
    assert torch.equal(found.train.of(0)[1], made.train.of(1)[1])
    with pytest.raises(
        ValueError, match=r"task is 'regression', but .*texts.fed is a prepared federation with the task language"
    ):
        site_data.load(SiteConfig.read(node | {"task": "regression"}, {}))


def test_where_the_tokeniser_comes_from(tmp_path: Path) -> None:
    node = {"client": 0, "data": "mine.csv"}
    run = {"tokenizer": "of-the-run", "max-length": 9, "task": "language-modelling"}
    assert SiteConfig.read(node, run).tokenizer == "of-the-run"
    assert SiteConfig.read(node, run).max_length == 9
    assert SiteConfig.read(node, run).task is None  # a site's own to say
    assert SiteConfig.read({"partition-id": 0, "num-partitions": 2}, run | {"data": "ag-news"}).task == "language-modelling"
    assert SiteConfig.read(node | {"tokenizer": "here"}, run).tokenizer == "here"
    with pytest.raises(ValueError, match=r"mine.csv', a table: a site reads tables of texts only, and with a tokenizer"):
        site_data.load(SiteConfig.read(node, {}))
    with pytest.raises(ValueError, match=r"tokenizer is 'here', but mine.npz holds arrays: give a file of texts"):
        site_data.load(SiteConfig.read({"client": 0, "data": "mine.npz", "tokenizer": "here"}, {}))


def test_max_length_without_a_tokeniser_has_no_effect(tmp_path: Path) -> None:
    line = "max-length is 9, but there is no tokenizer: it has no effect"
    assert DeploymentConfig(max_length=9).without_effect() == [line]
    assert DeploymentConfig(max_length=9, tokenizer="here").without_effect() == []
