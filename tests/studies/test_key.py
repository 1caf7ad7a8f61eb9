"""Content addresses: what changes one, and what does not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from fedfew.studies import key
from fedfew.studies.options import Options
from fedfew.studies.plan import cells
from fedfew.studies.study import read
from fedfew.training.settings import Settings
from tests.studies.small import study

BASE = Settings(device="cpu", method_settings={"models": 3})
# One other value of every setting that decides the outcome.
OTHERWISE = {
    "dataset": "cifar10",
    "partition": "iid",
    "clients": 7,
    "data_seed": 1,
    "sample": 100,
    "client": "hospital",
    "label": "diagnosis",
    "input": ("age", "weight"),
    "size": 16,
    "group": "patient",
    "test_share": 0.3,
    "val_share": 0.1,
    "stratify": True,
    "scale": "global",
    "vocabulary_from": "all",
    "skip_bad": True,
    "tokenizer": "bert-base-uncased",
    "max_length": 64,
    "model": "linear",
    "method": "ifca",
    "rounds": 99,
    "local_epochs": 2,
    "batch_size": 21,
    "lr": 0.051,
    "momentum": 0.9,
    "weight_decay": 0.1,
    "adapters": "lora",
    "freeze": "body",
    "batch_norm": "local",
    "optimizer": "adam",
    "schedule": "cosine",
    "warmup_rounds": 3,
    "step_factor": 0.5,
    "clip_gradient": 1.0,
    "loss": "mse",
    "task": "regression",
    "label_smoothing": 0.1,
    "class_weights": "balanced",
    "mixup": 0.2,
    "augment": "flip",
    "label_prior": "client",
    "prior_strength": 2.0,
    "server_optimizer": "momentum",
    "server_lr": 0.5,
    "server_momentum": 0.5,
    "server_average": 0.9,
    "serve": "mixture",
    "temperature": 1.0,
    "smoothing_end": 0.25,
    "check_share": 0.05,
    "smoothing_spread": 1.0,
    "restart_unused": 10,
    "participation": 0.5,
    "aggregator": "median",
    "dp_noise": 1.0,
    "dp_clip": 2.0,
    "dp_delta": 1e-6,
    "attack": "sign-flip",
    "attackers": 2,
    "trim": 0.1,
    "assumed_attackers": 2,
    "norm_bound": 2.0,
    "early_stopping": 5,
    "keep": "best",
    "best_by": "accuracy",
    "seed": 1,
    "score_every": 2,
    "method_settings": {"models": 4},
}
ALIKE = {
    "recipe": "strong",
    "engine": "sequential",
    "chunk": 2,
    "checkpoint_every": 3,
    "data_dir": "elsewhere",
    "precision": "bf16",
}


def test_every_setting_is_looked_at():
    assert {f.name for f in fields(Settings)} == {*OTHERWISE, *ALIKE, "device"}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_decides_the_outcome_changes_the_key(name):
    assert key.run_key(replace(BASE, **{name: OTHERWISE[name]})) != key.run_key(BASE)


@pytest.mark.parametrize("name", ALIKE)
def test_what_decides_only_how_it_is_computed_does_not(name):
    assert key.run_key(replace(BASE, **{name: ALIKE[name]})) == key.run_key(BASE)


def test_device_and_precision_count_where_they_decide_bits(monkeypatch):
    monkeypatch.setattr(key, "_device_class", lambda name: name.partition(":")[0])
    on_gpu = replace(BASE, device="cuda")
    assert key.run_key(on_gpu) != key.run_key(BASE)
    assert key.run_key(replace(on_gpu, precision="bf16")) != key.run_key(on_gpu)
    assert key.run_key(replace(on_gpu, device="cuda:1")) == key.run_key(on_gpu)


def test_hyper_parameters_count_by_their_value_not_by_how_they_are_said():
    assert key.run_key(replace(BASE, method_settings={})) == key.run_key(BASE)  # 3 is the default
    fedavg = replace(BASE, method="fedavg", method_settings={})
    assert key.run_key(replace(fedavg, method_settings={"published": True})) == key.run_key(fedavg)  # its preset changes nothing
    assert key.run_key(replace(BASE, method_settings={"published": True})) != key.run_key(BASE)


@pytest.mark.slow
def test_a_key_is_short_and_the_same_in_another_process():
    program = "from fedfew.training.settings import Settings\nfrom fedfew.studies.key import run_key\n"
    program += "print(run_key(Settings(device='cpu', method_settings={'models': 3})))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert found == key.run_key(BASE)
    assert len(found) == key.LENGTH


@pytest.mark.slow
def test_fairness_shares_its_runs_with_tables_1_and_2():
    keys = {name: {cell.key for cell in cells(read(name))} for name in ("fairness", "table1", "table2")}
    assert keys["fairness"] < keys["table1"] | keys["table2"]


def test_sweeps_share_their_middle_with_table_1():
    def keys(name, **options):
        return {cell.key for cell in cells(read(name), Options(**options))}

    table1 = keys("table1", only=("cifar10-dir-20/FedFew",))
    assert len(table1) == 1 + 3
    for name in ("k-cifar10", "mu", "local-epochs"):
        assert table1 < keys(name), name


# -- data --------------------------------------------------------------------------------------------------------------------


def test_data_files_count_by_name_and_size(tmp_path: Path):
    def files(size: int) -> list | None:
        key._files.cache_clear()
        (tmp_path / "cifar10").mkdir(exist_ok=True)
        (tmp_path / "cifar10" / "train.parquet").write_bytes(b"x" * size)
        (tmp_path / "cifar10" / ".hidden").write_text("not looked at")
        return key._files("cifar10", str(tmp_path))

    assert files(3) == [["train.parquet", 3]]
    assert files(4) == [["train.parquet", 4]]
    assert key._files("cifar100", str(tmp_path)) is None
    assert key._files("cifar10", str(tmp_path / "nowhere")) is None
    assert key._files("digits", None) is None


def test_a_users_own_files_count_by_how_they_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    np.savez(tmp_path / "mine.npz", x=np.zeros(3))
    (tmp_path / "digits").mkdir()  # is not what the name means
    monkeypatch.chdir(tmp_path)
    own, known = Settings(dataset=str(tmp_path / "mine.npz")), Settings(dataset="digits")
    before = key.run_key(own), key.run_key(known)
    monkeypatch.setattr("fedfew.data.cache.FORMAT", -1)
    assert key.run_key(own) != before[0]
    assert key.run_key(known) == before[1]


def test_a_users_own_files_count_by_time_as_well(tmp_path: Path):
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.zeros(3))
    ((name, size, when),) = key._files(str(path), None)
    assert (name, size, when) == ("mine.npz", path.stat().st_size, path.stat().st_mtime_ns)
    assert key._files(str(tmp_path), None) == [[name, size, when]]


def test_a_model_of_the_users_own_counts_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = "from torch import nn\ndef net():\n    return nn.Linear(64, 10)\n"
    (tmp_path / "netfile_a.py").write_text(source)
    (tmp_path / "netfile_b.py").write_text(source)
    (tmp_path / "netfile_c.py").write_text(source + "# other\n")
    hashes = [key._source(f"netfile_{which}:net") for which in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]
    assert key._source("mlp") is None
    assert key._source("math:floor") is None  # has no file


def test_a_loss_of_the_users_own_counts_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    settings = replace(BASE, loss="lossfile_a:loss")
    keys = []
    for text in ("def loss(): ...\n", "def loss(): ...  # other\n"):
        (tmp_path / "lossfile_a.py").write_text(text)
        key._source.cache_clear()
        keys.append(key.run_key(settings))
    assert keys[0] != keys[1]


def test_a_file_moved_to_another_folder_counts(tmp_path: Path):
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    before = key._files(str(tmp_path), None)
    (tmp_path / "a/2.png").rename(tmp_path / "b/2.png")
    key._files.cache_clear()
    assert [row[0] for row in key._files(str(tmp_path), None)] == ["a/1.png", "b/2.png", "b/3.png"]
    assert [row[0] for row in before] == ["a/1.png", "a/2.png", "b/3.png"]


def test_a_tokeniser_that_is_one_file_counts(tmp_path: Path):
    hashes = []
    for text in ("{}", "{ }"):
        (tmp_path / "tokenizer.json").write_text(text)
        key._tokenizer.cache_clear()
        hashes.append(key._tokenizer(str(tmp_path / "tokenizer.json")))
    assert None not in hashes
    assert hashes[0] != hashes[1]


# -- code --------------------------------------------------------------------------------------------------------------------


def test_raising_the_outcome_version_changes_every_key(monkeypatch: pytest.MonkeyPatch):
    before = key.run_key(BASE)
    monkeypatch.setattr(key, "OUTCOME_VERSION", key.OUTCOME_VERSION + 1)
    assert key.run_key(BASE) != before


def test_settings_at_their_defaults_are_no_part_of_a_key():
    identity = key.identity(Settings(device="cpu"))
    assert identity["method"] == {"name": "fedfew"}
    assert not {"rounds", "lr", "partition", "method_settings"} & set(identity)


def test_the_key_of_a_cell_is_that_of_its_settings():
    (cell, *_) = cells(study())
    assert cell.key == key.run_key(cell.settings)


def test_the_files_of_a_tokeniser_count(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    settings = replace(BASE, tokenizer=str(tmp_path))
    before = key.run_key(settings)
    (tmp_path / "tokenizer.json").write_text("{ }")
    key._tokenizer.cache_clear()
    assert key.run_key(settings) != before
