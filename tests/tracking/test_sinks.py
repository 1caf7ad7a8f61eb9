"""The tools themselves, each told a small run and read back with its own reader."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedfew
from tests.helpers import call

SMALL = ["--rounds", "3", "--clients", "4", "--device", "cpu", "--engine", "stacked", "--models", "2"]


pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.slow
def test_tensorboard_shows_the_run_and_goes_on_with_it() -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    call("run", *SMALL, "--folder", "one", "--track", "tensorboard")
    call("run", "--resume", "--folder", "one", "--rounds", "5")  # without --track: the folder knows
    read = EventAccumulator("one/tensorboard").Reload()
    history = fedfew.load("one").history
    served = read.Scalars("served/mean")
    assert [event.step for event in served] == [1, 2, 3, 4, 5]
    assert [event.value for event in served] == pytest.approx(history.served_accuracy.mean(1))
    assert [event.step for event in read.Scalars("loss")] == [1, 2, 3, 4, 5]
    assert [event.step for event in read.Scalars("final/served/macro_f1")] == [3, 5]
    assert read.Tags()["images"] == ["curves"]
    text = read.Tensors("settings/text_summary")
    assert len(text) == 1
    assert "method.models | 2" in text[0].tensor_proto.string_val[0].decode()


def test_tensorboard_has_each_run_in_a_folder_of_its_own(here: Path) -> None:
    """It takes all files of a folder for one run: the curves of a comparison's methods were drawn as one."""
    pytest.importorskip("tensorboard")
    from fedfew.tracking.tensorboard import Tensorboard

    places = []
    for name in ("fedavg-0", "local-0"):
        sink = Tensorboard("logs", here / name)
        places.append(sink.begin({}, name, None))
        sink.log(1, {"loss": 1.0})
        sink.end(True, [])
    assert places == [str(Path("logs/fedavg-0")), str(Path("logs/local-0"))]
    for kept in (places[0], "logs"):  # "logs": of a run made before runs had folders of their own
        continued = Tensorboard("logs", here / "fedavg-0")
        assert continued.begin({}, "fedavg-0", kept) == kept
        continued.end(True, [])
    assert [len(list(Path(place).glob("events*"))) for place in (*places, "logs")] == [2, 1, 1]


@pytest.mark.slow
def test_mlflow_shows_the_run_and_goes_on_with_it(here: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{here}/mlflow.db"
    call("run", *SMALL, "--folder", "one", "--track", f"mlflow:{uri}")
    call("run", "--resume", "--folder", "one", "--rounds", "4")
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("fedfew")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])  # one, not two
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "one"
    assert run.data.params["method.models"] == "2"
    history = fedfew.load("one").history
    told = sorted(client.get_metric_history(run.info.run_id, "served/mean"), key=lambda metric: metric.step)
    assert [metric.step for metric in told] == [1, 2, 3, 4]
    assert [metric.value for metric in told] == pytest.approx(history.served_accuracy.mean(1))
    assert {"curves.png", "config.yaml", "scores.json"} <= {file.path for file in client.list_artifacts(run.info.run_id)}


@pytest.mark.slow
def test_a_server_that_is_down_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    result = call("run", *SMALL, "--folder", "one", "--track", "mlflow:http://127.0.0.1:9")
    assert result.stdout.count("failed, training continues without it") == 1
    assert fedfew.load("one").round == 3


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log, which an offline run is: 7 bytes, then blocks of 32 KiB with a header before each part."""
    at, record = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left  # too little for a header: the block is padded
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


@pytest.mark.slow
def test_wandb_writes_the_run_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_X_SERVICE_WAIT", "600")  # its own process starts slowly on a busy machine
    monkeypatch.setattr("fedfew.tracking.wandb.PATIENCE", 600.0)
    call("run", *SMALL, "--folder", "one", "--track", "wandb:few")
    (written,) = Path("one/wandb").glob("offline-run-*/*.wandb")
    assert (written.parent / "files" / "curves.png").exists()
    rows, config, project = [], {}, ""
    for data in log_records(written.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item})
        elif kind == "run":
            project = record.run.project
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
    assert project == "few"
    assert config["method.models"] == 2
    history = fedfew.load("one").history
    assert [row["_step"] for row in rows] == [1, 2, 3]
    assert [row["served/mean"] for row in rows] == pytest.approx(history.served_accuracy.mean(1))
    assert "final/served/mean" in rows[-1]
    assert wandb.run is None  # finished
    known = json.loads(Path("one/tracking.json").read_text())["wandb:few"]
    assert known["run"] in written.name
    assert os.environ["WANDB_MODE"] == "offline"


def test_compare_tracks_every_run() -> None:
    pytest.importorskip("tensorboard")
    words = ["--methods", "local,fedavg", "--rounds", "1", "--clients", "4", "--device", "cpu", "--engine", "stacked"]
    call("compare", *words, "--folder", "both", "--track", "tensorboard")
    assert len(list(Path("both").glob("*/tensorboard/events*"))) == 2


def test_a_misspelt_tool_is_told_before_training() -> None:
    result = call("run", *SMALL, "--folder", "one", "--track", "tensorbord", code=2)
    assert "did you mean 'tensorboard'" in " ".join(result.stderr.split())
    assert not Path("one").exists()
