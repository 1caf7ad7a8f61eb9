"""Data sets by name in a data folder, in the layouts of the hub; names and paths that do not exist."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from fedfew.data import DataError, load
from fedfew.federation import Federation, as_input
from tests.data import layouts
from tests.data.layouts import everything


def same(a: Federation, b: Federation) -> bool:
    return a.fingerprint() == b.fingerprint()


def test_cifar100_layout(tmp_path: Path) -> None:
    extra = {"coarse_label": pa.array([i % 20 for i in range(300)])}
    layouts.labelled(
        tmp_path / "cifar100" / "cifar100",
        "train-00000-of-00001.parquet",
        300,
        100,
        image="img",
        label="fine_label",
        mode="RGB",
        side=32,
        **extra,
    )
    layouts.labelled(
        tmp_path / "cifar100" / "cifar100",
        "test-00000-of-00001.parquet",
        300,
        100,
        image="img",
        label="fine_label",
        mode="RGB",
        side=32,
        **extra,
    )
    federation = load("cifar100", data_dir=tmp_path, clients=10, partition="pathological:10")
    assert federation.shape == (3, 32, 32)
    assert federation.classes == 100
    assert everything(federation) == 600
    held = [len(set(federation.train.of(i)[1].tolist()) | set(federation.test.of(i)[1].tolist())) for i in range(10)]
    assert held == [10] * 10


def test_femnist_layout(tmp_path: Path) -> None:
    writers = pa.array([f"f{i % 30:04d}_14" for i in range(620)])
    hsf = pa.array([i % 8 for i in range(620)])
    layouts.labelled(
        tmp_path / "femnist" / "data", "train-00000-of-00001.parquet", 620, 62, label="character", writer_id=writers, hsf_id=hsf
    )
    federation = load("femnist", data_dir=tmp_path, clients=5)
    assert federation.about["partition"] == "by:writer_id"
    assert (federation.shape, federation.classes, everything(federation)) == ((1, 28, 28), 62, 620)
    assert len(load("femnist", data_dir=tmp_path, partition="by:writer_id")) == 30
    assert len(load("femnist", data_dir=tmp_path, partition="by:hsf_id", clients=4)) == 4


def test_fed_isic2019_layout(tmp_path: Path) -> None:
    centres = pa.array([i % 6 for i in range(48)])
    folder = tmp_path / "flwrlabs" / "fed-isic2019"
    files = [layouts.picture(i, (300, 224), "RGB", "JPEG") for i in range(48)]
    layouts.write(
        folder / "data" / "train-00000-of-00001.parquet",
        {"image": layouts.images(files), "center": centres, "label": [i // 6 for i in range(48)]},
        {"label": list("abcdefgh")},
    )
    federation = load("fed-isic2019", data_dir=tmp_path)
    assert (len(federation), federation.shape, federation.classes) == (6, (3, 224, 224), 8)
    assert federation.train.pixels == "unit"
    inputs = as_input(federation.train.x, federation.train.pixels)
    assert 0 <= float(inputs.min()) <= float(inputs.max()) <= 1


def test_kvasir_layout(tmp_path: Path) -> None:
    layouts.image_folder(tmp_path / "kvasir-dataset-v2", classes=8, each=12, side=90)
    federation = load("kvasir", data_dir=tmp_path, clients=2)
    assert (federation.shape, federation.classes, everything(federation)) == ((3, 64, 64), 8, 96)
    assert federation.train.pixels == "unit"
    assert federation.class_names[0] == "kind0"


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_mnist_layouts(name: str, tmp_path: Path) -> None:
    layouts.labelled(tmp_path / name, "train-00000-of-00001.parquet", 100, 10)
    layouts.labelled(tmp_path / name, "test-00000-of-00001.parquet", 40, 10)
    federation = load(name, data_dir=tmp_path, clients=3, partition="iid")
    assert (federation.shape, federation.classes, everything(federation)) == ((1, 28, 28), 10, 140)


def test_labels_without_names_keep_their_numbers(tmp_path: Path) -> None:
    files = layouts.images([layouts.picture(i) for i in range(20)])
    layouts.write(tmp_path / "mnist" / "train.parquet", {"image": files, "label": [3, 7] * 10})
    federation = load("mnist", data_dir=tmp_path, clients=2, partition="iid")
    assert federation.classes == 10
    assert set(federation.train.y.tolist()) == {3, 7}


def test_unknown_names_and_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(DataError, match="there is no file or folder"):
        load(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match=r"does not exist \(data_dir\)"):
        load("cifar10", data_dir=tmp_path / "nowhere")
    pfllib = tmp_path / "MNIST" / "train" / "0.npz"
    pfllib.parent.mkdir(parents=True)
    pfllib.touch()
    with pytest.raises(DataError, match=r"holds neither .*; files of PFLlib \(train/0\.npz\) are read as docs/data\.md says$"):
        load(pfllib.parents[1])
    with pytest.raises(DataError, match=r"holds neither parquet files, nor .*, nor idx files, nor images"):
        load(tmp_path)
    (tmp_path / "x.docx").write_text("")
    with pytest.raises(DataError, match=r"\.docx cannot be read;.*Save it as one of these; in Python a data frame can be given"):
        load(tmp_path / "x.docx")
