"""``fedfew predict``: raw data in, names out."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import fedfew
from fedfew import export
from tests import hospitals
from tests.helpers import call, federation, refused

pytestmark = pytest.mark.usefixtures("here")
SHORT = {"rounds": 3, "engine": "sequential", "lr": 0.3, "batch_size": 8}
OWN = "import torch\ndef net():\n    open('imported', 'w').close()\n    return torch.nn.Linear(5, 3)\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and an export of it, and new patients without labels."""
    folder = tmp_path_factory.mktemp("hospitals")
    data = fedfew.data.load(hospitals.write(folder / "patients.csv"), label="diagnosis", client="hospital")
    run = fedfew.train(data, "linear", fedfew.FedFew(models=2), label_prior="client", serve="mixture", **SHORT)
    run.save(folder / "run")
    export.write(run, folder / "export")
    hospitals.write(folder / "new.csv", rows=12, seed=1, with_label=False)
    return folder


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("source", ["run", "export"])
def test_every_row_is_answered_by_its_client(place: Path, source: str) -> None:
    line = call("predict", str(place / source), "--data", str(place / "new.csv"), "--proba", "-o", "out.csv").stderr
    found, frame = rows(Path("out.csv").read_text()), pd.read_csv(place / "new.csv")
    expected = fedfew.load(place / "run").predict_proba(frame, client=frame["hospital"])
    assert [row["prediction"] for row in found] == [hospitals.CLASSES[i] for i in expected.argmax(1)]
    assert [row["row"] for row in found] == [str(i + 1) for i in range(12)]
    counts = Counter(row["prediction"] for row in found)
    assert all(f"{name}: {count}" in line for name, count in counts.items())
    probabilities = [[float(row[f"probability of {name}"]) for name in hospitals.CLASSES] for row in found]
    np.testing.assert_allclose(probabilities, expected, rtol=1e-5)
    assert [row["client"] for row in found[:3]] == ["'=Basel", r"[bold]Bern\x1b[31m", "$Chur_$"]
    assert "already exists" in refused("predict", str(place / source), "--data", str(place / "new.csv"), "-o", "out.csv")


@pytest.mark.parametrize(
    ("values", "suffix"),
    [
        ([0, 1], "csv"),
        ([True, False], "csv"),
        (["Bern", None], "csv"),
        ([2.5, 1.5], "csv"),
        (pd.Categorical(["b", "a"]), "parquet"),
        (pd.to_datetime(["2021-01-01", "2020-01-01"]), "parquet"),
    ],
)
def test_a_column_of_clients_of_any_type(values: Any, suffix: str) -> None:
    """The file that a run was trained on can be given again: rows find their clients."""
    site = pd.Series(values).take(np.repeat([0, 1], 20)).reset_index(drop=True)
    frame = pd.DataFrame({"a": np.arange(40.0) % 7, "site": site, "label": np.arange(40) % 7 > 3})
    frame.to_csv("t.csv", index=False) if suffix == "csv" else frame.to_parquet("t.parquet")
    data = fedfew.data.load(f"t.{suffix}", client="site")
    fedfew.train(data, "linear", "local", **SHORT).save("r")
    found = rows(call("predict", "r", "--data", f"t.{suffix}").stdout)
    assert [row["client"] for row in found] == [found[i]["client"] for i in (0, -1) for _ in range(20)]
    assert {row["client"] for row in found} == set(data.client_names)


def test_one_client_for_all_rows_on_standard_output(place: Path) -> None:
    found = rows(call("predict", str(place / "run"), "--data", str(place / "new.csv"), "--client", "=Basel").stdout)
    expected = fedfew.load(place / "run").predict(pd.read_csv(place / "new.csv"), client="=Basel")
    assert [row["prediction"] for row in found] == expected.tolist()
    assert list(found[0]) == ["row", "prediction"]


def test_a_client_that_took_no_part(place: Path) -> None:
    words = ["predict", str(place / "export"), "--data", str(place / "new.csv")]
    answer = refused(*words, "--client", "Genf")
    assert "client 'Genf' took no part in the training; there are =Basel, [bold]Bern\\x1b[31m, $Chur_$." in answer
    assert "fedfew predict --labels" in answer
    hospitals.write(Path("mine.csv"), rows=30, seed=2)
    frame, mine = pd.read_csv(place / "new.csv"), pd.read_csv("mine.csv")
    found = rows(call(*words, "--labels", "mine.csv").stdout)
    expected = export.read(place / "export").for_new_client(mine, mine.diagnosis).predict(frame)
    assert [row["prediction"] for row in found] == expected.tolist()
    assert "give one of them" in refused(*words, "--labels", "mine.csv", "--client", "0")
    answer = call(*words, "--new-client")
    expected = export.read(place / "export").for_new_client(frame).predict(frame)
    assert [row["prediction"] for row in rows(answer.stdout)] == expected.tolist()
    assert "the model and the label prior are chosen by the data alone" in answer.stderr
    assert "give one of them" in refused(*words, "--labels", "mine.csv", "--new-client")
    assert "has no labels (--label names their column)" in refused(*words, "--labels", str(place / "new.csv"))


def test_without_a_client_it_says_what_to_give(place: Path) -> None:
    pd.read_csv(place / "new.csv").drop(columns="hospital").to_csv("bare.csv", index=False)
    answer = refused("predict", str(place / "run"), "--data", "bare.csv")
    assert "give --client NAME (there are =Basel" in answer
    assert "or a column 'hospital' in bare.csv" in answer
    assert "--labels FILE" in answer


def test_rows_that_training_would_refuse_are_refused(place: Path) -> None:
    table = pd.read_csv(place / "new.csv")
    table.head(0).to_csv("empty.csv", index=False)
    assert "empty.csv has no rows" in refused("predict", str(place / "run"), "--data", "empty.csv")
    table["age"] = table["age"].astype(float)
    table.loc[4, "age"] = float("inf")
    table.to_csv("infinite.csv", index=False)
    answer = refused("predict", str(place / "run"), "--data", "infinite.csv")
    assert "the column 'age' holds an infinite value" in answer


def test_the_file_of_select_predicts_with_its_prior(place: Path) -> None:
    hospitals.write(Path("mine.csv"), rows=30, seed=2)
    select = ["select", str(place / "export"), "--data", "mine.csv", "-o", "model.safetensors", "--validation", "0"]
    shown = call(*select).stdout
    assert "used by" in shown
    assert "=Basel" in shown
    about = fedfew.export.model_file.note("model.safetensors")
    mine = pd.read_csv("mine.csv")
    counts = np.array([(mine.diagnosis == name).sum() for name in hospitals.CLASSES]) + 1
    np.testing.assert_allclose(about["log_prior"], np.log(counts / counts.sum()), rtol=1e-5)
    found = rows(call("predict", "model.safetensors", "--data", str(place / "new.csv"), "--proba").stdout)
    one = fedfew.load(place / "run").for_new_client(mine, mine.diagnosis)
    chosen = fedfew.load_model("model.safetensors")
    x = one.data.preprocessing.apply(pd.read_csv(place / "new.csv"))
    expected = chosen(torch.from_numpy(x)).softmax(1)[:, 0].tolist()
    assert [float(row["probability of ill"]) for row in found] == pytest.approx(expected, rel=1e-4)
    assert chosen.log_prior is not None


def test_select_takes_a_table_with_patients_held_out_together(place: Path) -> None:
    hospitals.write(Path("mine.csv"), rows=30, seed=2)
    words = ["select", str(place / "run"), "--data", "mine.csv", "--json"]
    document = json.loads(call(*words, "--group", "hospital").stdout)
    assert (document["samples"], document["validation_samples"]) == (30, 10)
    assert "no column 'ward' to group by (columns: patient_id, hospital, diagnosis)" in refused(*words, "--group", "ward")
    assert "mine.csv has no labels: the column 'other' is needed" in refused(*words, "--label", "other")
    Path("mine.txt").write_text("30 yes ill")
    assert "mine.txt cannot be given to these models: a table (.csv" in refused(
        "select", str(place / "run"), "--data", "mine.txt"
    )


def test_images_by_folder_and_alone() -> None:
    for label, shade in (("dark", 40), ("light", 200)):
        for i in range(8):
            folder = Path("pictures", ("Ann", "Bea")[i % 2], label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("L", (6, 6), shade + i).save(folder / f"{i}.png")
    fedfew.train(fedfew.data.load("pictures"), "linear", "local", **SHORT).save("run")
    Path("new/Bea").mkdir(parents=True)
    Image.new("L", (6, 6), 30).save("new/Bea/=1.png")
    assert rows(call("predict", "run", "--data", "new").stdout) == [{"file": "Bea/=1.png", "client": "Bea", "prediction": "dark"}]
    found = rows(call("predict", "run", "--data", "new/Bea/=1.png", "--client", "Ann").stdout)
    assert found == [{"file": "'=1.png", "prediction": "dark"}]
    assert "client 'new' took no part" in refused("predict", "run", "--data", ".")


def test_arrays_and_numbers_as_names() -> None:
    data = federation()
    fedfew.train(data, "linear", "fedavg", **SHORT).save("run")
    np.savez("new.npz", x=data.test.of(0)[0].numpy())
    found = rows(call("predict", "run", "--data", "new.npz").stdout)
    assert [int(row["prediction"]) for row in found] == fedfew.load("run").predict(data.test.of(0)[0]).tolist()


def test_rows_of_an_archive_without_a_client_are_one_client() -> None:
    x, site = np.arange(40, dtype=np.float32)[:, None] % 7, np.repeat([1.0, np.nan], 20)
    np.savez("d.npz", x=x, y=(x[:, 0] > 3) == (np.arange(40) < 20), site=site)
    data = fedfew.data.load("d.npz", client="site")
    assert data.client_names == ("1", "(missing)")
    assert "20 rows have no value in site: they are one client, (missing)" in data.about["notes"]
    run = fedfew.train(data, "linear", "local", **SHORT)
    run.save("run")
    found = rows(call("predict", "run", "--data", "d.npz").stdout)
    assert [row["client"] for row in found] == ["1"] * 20 + ["(missing)"] * 20
    assert [row["prediction"] for row in found] == [str(one) for one in run.predict(x, client=site).tolist()]
    earlier = replace(run.data, client_names=("1.0", "nan"))  # as gaps were called before
    assert earlier.client_numbers(site, 2) == run.data.client_numbers(site, 2)


def test_names_of_classes_that_are_numbers_stay_numbers() -> None:
    frame = pd.DataFrame({"a": np.arange(40) / 3, "label": np.repeat(["-1", "=x"], 20)})
    fedfew.train(fedfew.data.load(frame, clients=2, partition="iid"), "linear", "fedavg", **SHORT, seed=1).save("run")
    frame.to_csv("new.csv", index=False)
    assert {row["prediction"] for row in rows(call("predict", "run", "--data", "new.csv").stdout)} == {"-1", "'=x"}


def test_nothing_that_a_folder_names_is_imported() -> None:
    Path("own_net.py").write_text(OWN)
    data = federation()
    fedfew.data.write_prepared(data, "d.fed")
    flags = ["--rounds", "1", "--engine", "sequential", "--method", "fedavg"]
    call("run", "--dataset", "d.fed", "--model", "own_net:net", *flags, "--folder", "r")
    Path("imported").unlink()
    np.savez("new.npz", x=data.test.of(0)[0].numpy())
    call("export", "r", "-o", "e", "--model", "own_net:net")
    Path("imported").unlink()
    for source in ("r", "e"):
        answer = refused("predict", source, "--data", "new.npz")
        assert "the run was made with the module 'own_net:net', which is not one of fedfew's own" in answer
        assert not Path("imported").exists()
        assert len(rows(call("predict", source, "--data", "new.npz", "--model", "own_net:net").stdout)) == 6
        Path("imported").unlink()


def test_numbers_are_written_with_all_their_digits() -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float32)[:, None]
    data = fedfew.Federation.from_arrays([(x, 12345.67 + 890 * x)] * 2, [(x, 12345.67 + 890 * x)] * 2)
    run = fedfew.train(data, "linear", "fedavg", rounds=20, lr=0.3, batch_size=24, engine="sequential")
    run.save("run")
    np.savez("new.npz", x=x)
    found = [float(row["prediction"]) for row in rows(call("predict", "run", "--data", "new.npz").stdout)]
    assert np.abs(run.predict(x)).max() > 10_000
    np.testing.assert_array_equal(np.float32(found), np.float32(run.predict(x)))


@pytest.mark.parametrize("classes", [(0, 1), (1, 2), (-1, 3)])
def test_whole_numbers_in_a_table_are_labels_of_a_new_client(classes: tuple[int, int]) -> None:
    frame = pd.DataFrame({"a": np.arange(40) % 7.0, "label": np.where(np.arange(40) % 7 > 3, *classes)})
    frame.to_csv("d.csv", index=False)
    run = fedfew.train(fedfew.data.load("d.csv", partition="iid", clients=2), "linear", fedfew.FedFew(models=2), **SHORT)
    run.save("run")
    assert "note: the model is chosen by the data" in call("predict", "run", "--data", "d.csv", "--new-client").stderr
    expected = run.for_new_client(frame, frame["label"].to_numpy()).predict(frame)
    found = rows(call("predict", "run", "--data", "d.csv", "--labels", "d.csv").stdout)
    assert [int(row["prediction"]) for row in found] == expected.tolist()
    chosen = json.loads(call("select", "run", "--data", "d.csv", "--validation", "0", "--json").stdout)
    x = torch.tensor(((frame.a - frame.a.mean()) / frame.a.std(ddof=0)).to_numpy(np.float32))[:, None]
    for model, scores in zip(run.models, chosen["models"], strict=True):
        with torch.no_grad():
            right = np.array(classes)[model(x).argmax(1).numpy()] == frame.label
        assert scores["accuracy"] == pytest.approx(right.mean())
