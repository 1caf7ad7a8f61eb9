"""``fedfew run`` and studies take the settings of the data: columns, size, splits. Declared once, recorded, resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import fedfew
from fedfew.studies import availability
from fedfew.studies.layers import with_data_defaults
from fedfew.studies.plan import cells
from fedfew.training.from_settings import data_keywords, make_federation
from fedfew.training.resolve import resolve
from fedfew.training.settings import Settings
from tests.helpers import call, refused
from tests.studies.small import study

pytestmark = pytest.mark.usefixtures("here")
FLAGS = ["--dataset", "ward.csv", "--label", "outcome", "--client", "ward", "--input", "age", "--input", "blood pressure"]
QUICK = ["--method", "fedavg", "--rounds", "1", "--batch-size", "8", "--device", "cpu", "--engine", "stacked"]


@pytest.fixture
def ward(here: Path) -> None:
    rng = np.random.default_rng(0)
    rows = ["ward,patient,age,blood pressure,height,outcome"]
    for i in range(90):
        age, pressure = rng.normal(50, 9), rng.normal(120, 9)
        rows.append(f"{'ABC'[i % 3]},{i // 6},{age:.3f},{pressure:.3f},{rng.normal():.3f},{'ill' if age > 50 else 'well'}")
    (here / "ward.csv").write_text("\n".join(rows))


@pytest.mark.usefixtures("ward")
def test_a_run_takes_the_columns_and_records_and_resumes_them() -> None:
    call("run", *FLAGS, "--val-share", "0.2", "--scale", "global", *QUICK, "--folder", "r")
    run, config = fedfew.load("r"), yaml.safe_load(Path("r/config.yaml").read_text())
    assert run.settings["federation"]["shape"] == [2]  # not height, nor patient
    assert run.settings["federation"]["clients"] == 3
    assert json.loads(Path("r/federation.json").read_text())["client_names"] == ["A", "B", "C"]
    assert {name: config[name] for name in ("label", "client", "input", "val_share", "scale")} == {
        "label": "outcome",
        "client": "ward",
        "input": ["age", "blood pressure"],
        "val_share": 0.2,
        "scale": "global",
    }
    call("run", "--resume", "--folder", "r", "--rounds", "2")
    assert fedfew.load("r").round == 2
    call("run", "--config", "r/config.yaml", "--folder", "again")
    assert fedfew.load("again").settings["federation"] == run.settings["federation"]


@pytest.mark.usefixtures("ward")
def test_every_setting_of_the_data_reaches_the_federation() -> None:
    def made(**settings: object) -> fedfew.Federation:
        return make_federation(Settings(dataset="ward.csv", label="outcome", clients=3, partition="iid", **settings))[0]

    plain = made()
    assert made(input=("age",)).shape == (1,) != plain.shape
    assert made(test_share=0.5).test.count.sum() == 45
    assert made(val_share=0.2).val is not None
    assert plain.val is None
    assert made(group="patient").about["group"] == "patient"
    assert made(group="none").about["group"] is None
    assert made(stratify=True).about["stratify"] is True
    assert made(scale="none").train.x.max() > 100 > plain.train.x.max()
    assert made(sample=60).about["rows"] == 60


def test_the_keywords_of_load() -> None:
    found = data_keywords(resolve({"skip_bad": True, "input": ["text"], "vocabulary_from": "all", "size": 8}, {}))
    assert (found["on_bad"], found["input"], found["group"]) == ("skip", "text", None)
    assert (found["vocabulary_from"], found["size"]) == ("all", 8)


@pytest.mark.usefixtures("ward")
def test_mistakes_name_the_setting() -> None:
    assert "column 'dose'" in refused("run", "--dataset", "ward.csv", "--label", "dose")
    assert "scale must be client, global or none, not 'wide'" in refused("run", "--scale", "wide")
    assert "val_share must be in [0, 1), not 1.0" in refused("run", "--val-share", "1")


@pytest.mark.usefixtures("ward")
def test_a_study_takes_them_too() -> None:
    columns = {"wards": {"dataset": "ward.csv", "label": "outcome", "client": "ward", "input": ["age", "height"]}}
    one, *_ = cells(study(columns=columns))
    other, *_ = cells(study(columns={"wards": columns["wards"] | {"input": ["age"]}}))
    assert one.key != other.key
    assert (one.settings.client, one.settings.partition) == ("ward", None)
    assert len(make_federation(one.settings)[0]) == 3
    assert availability.missing([one.settings]) == {}


def test_a_study_of_a_folder_per_client_has_these_clients(here: Path) -> None:
    from PIL import Image

    for client in ("north", "south"):
        for label in ("cat", "dog"):
            (here / "photos" / client / label).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (4, 4), (60 * i, 0, 0)).save(here / "photos" / client / label / f"{i}.png")
    assert "partition" not in with_data_defaults({"dataset": "photos", "method": {"name": "fedavg"}})
    (here / "empty").mkdir()
    assert with_data_defaults({"dataset": "empty", "method": {"name": "fedavg"}})["partition"] == "dirichlet:0.5"
