"""Every data set by name, from real files where there are some, else from small files of the same layout."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from fedfew.data import DataError, SkippedWarning, digits, load, names
from fedfew.federation import Federation, as_input
from tests.data import layouts
from tests.data.layouts import everything


def same(a: Federation, b: Federation) -> bool:
    return a.fingerprint() == b.fingerprint()


# --- real data


def test_cifar10(shared: Path) -> None:
    federation = load("cifar10", clients=8, partition="dirichlet:0.5", data_dir=shared, sample=1000)
    assert federation.name == "cifar10-dirichlet-0.5"
    assert len(federation) == 8
    assert federation.shape == (3, 32, 32)
    assert federation.train.x.dtype == torch.uint8
    assert federation.class_names[:2] == ("airplane", "automobile")
    assert everything(federation) == 1000
    assert abs(int(federation.test.count.sum()) - 250) <= 8
    assert federation.about["notes"] == []
    assert same(federation, load("cifar10", clients=8, partition="dirichlet:0.5", data_dir=shared / "cifar10", sample=1000))
    assert not same(federation, load("cifar10", clients=8, partition="dirichlet:0.5", data_dir=shared, sample=1000, seed=1))
    inputs = as_input(federation.train.x[:50], federation.train.pixels)
    assert -1 <= float(inputs.min()) < -0.5
    assert 0.5 < float(inputs.max()) <= 1


def test_cifar10_pixels_are_those_of_the_files(shared: Path) -> None:
    import io

    import pyarrow.parquet as pq
    from PIL import Image

    path = shared / "cifar10" / "test-00000-of-00001.parquet"
    federation = load(path, clients=1, partition="iid", sample=20)
    drawn = np.sort(np.random.default_rng([0, 1]).choice(10_000, 20, replace=False))
    rows = pq.read_table(path).take(drawn).to_pylist()
    expected = {
        np.asarray(Image.open(io.BytesIO(row["img"]["bytes"]))).transpose(2, 0, 1).tobytes(): row["label"] for row in rows
    }
    for samples in (federation.train, federation.test):
        for x, y in zip(samples.x, samples.y, strict=True):
            assert expected.pop(x.numpy().tobytes()) == int(y)
    assert not expected


def test_ag_news(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFEW_DATA", str(shared))
    federation = load("ag-news", sample=2000)
    assert federation.shape == (200,)
    assert federation.vocabulary == 32_000
    assert federation.class_names == ("World", "Sports", "Business", "Sci/Tech")
    assert federation.about["notes"] == ["45,880 of the 127,600 rows of the public data set"]
    assert (federation.train.x[:, 0] == 1).all()
    inputs = as_input(federation.train.x)
    assert inputs.dtype == torch.int64
    assert int(inputs.min()) == 0
    assert int(inputs.max()) < 32_000
    training_words = set(inputs[:, 1:].unique().tolist())
    test_words = set(as_input(federation.test.x).unique().tolist())
    assert test_words - {0, 1, 2} <= training_words  # what training never saw is unknown
    assert 2 in test_words
    published = load("ag-news", sample=2000, vocabulary_from="all")
    assert 2 not in set(as_input(published.test.x).unique().tolist())


def test_mnist_by_writer(shared: Path) -> None:
    federation = load("mnist-writers", data_dir=shared, clients=6, sample=3000)
    assert federation.about["partition"] == "by:writer_id"
    assert federation.shape == (1, 28, 28)
    assert everything(federation) == 3000
    sizes = federation.train.count + federation.test.count
    assert int(sizes.max() - sizes.min()) < 60
    digits_only = load("mnist", data_dir=shared, sample=500, clients=4)
    assert digits_only.about["partition"] == "dirichlet:0.5"
    assert digits_only.classes == 10


def test_every_writer_a_client(shared: Path) -> None:
    with pytest.raises(DataError, match=r"client \d+ \(\d+\) has 1 sample, too few"):
        load("mnist-writers", data_dir=shared, partition="by:writer_id", sample=2000)
    with pytest.warns(SkippedWarning, match=r"left out \d+: client \d+ \(\d+\) has 1 sample"):
        federation = load("mnist-writers", data_dir=shared, partition="by:writer_id", sample=2000, on_bad="skip")
    assert len(federation) > 300
    assert everything(federation) + len(federation.about["skipped"]) == 2000


def test_ham10000_by_body_site_and_lesion(shared: Path) -> None:
    federation = load("ham10000", data_dir=shared, clients=6, sample=3000)
    assert federation.about["partition"] == "by:localization"
    assert federation.about["group"] == "lesion_id"
    assert federation.classes == 7
    free = load("ham10000", data_dir=shared, clients=6, sample=3000, group="none")
    assert everything(free) == everything(federation) == 3000
    assert not same(free, federation)


@pytest.mark.parametrize("partition", ["by:localization", "dirichlet:0.5", "iid", "pathological:3"])
def test_a_lesion_is_on_one_side(shared: Path, partition: str) -> None:
    from fedfew.data import finding, split
    from fedfew.data.decoded import DecodedData
    from fedfew.data.partition_spec import PartitionSpec
    from fedfew.data.raw import ColumnChoice

    raw = finding.find("ham10000", shared, ColumnChoice(), {}).read()
    rows = DecodedData(
        np.zeros((len(raw), 1), np.float32),
        np.array(raw.labels),
        raw.label_names or (),
        raw.columns,
        np.arange(len(raw)),
        len(raw),
        "",
    )
    lesion = rows.columns["lesion_id"].codes
    spec = PartitionSpec.parse(partition)
    parts = spec.partition(rows, 6, np.random.default_rng(0), at_least=None, fewest=2, units=lesion)
    cuts, _, _ = split.cut_clients(
        parts, spec.client_names(rows, parts), split.Cutter(0.25, 0.1, units=lesion, group="lesion_id"), "raise"
    )
    sides = [set(lesion[np.concatenate([getattr(cut, side) for cut in cuts])].tolist()) for side in ("train", "val", "test")]
    assert sum(map(len, sides)) == len(set(lesion.tolist()))
    assert sum(len(side) for cut in cuts for side in (cut.train, cut.val, cut.test)) == len(raw)
    if spec.kind != "by":
        owners = [set(lesion[part].tolist()) for part in parts]
        assert sum(map(len, owners)) == len(set(lesion.tolist()))


def test_tiny_imagenet(shared: Path) -> None:
    federation = load("tiny-imagenet", data_dir=shared, clients=5, sample=400)
    assert federation.shape == (3, 64, 64)
    assert federation.classes == 20
    assert "20 of the 200 classes of the public data set" in federation.about["notes"]


# --- layouts of sets that are not here


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


# --- the hub


def _fake_datasets(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    module = types.ModuleType("datasets")
    module.load_dataset = answer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


class _Split:
    """As much of datasets.Dataset as is used."""

    def __init__(self, table: pa.Table, names: list[str]) -> None:
        self.table = table
        self.features = {"img": object(), "label": types.SimpleNamespace(names=names)}

    def with_format(self, kind: str) -> pa.Table:
        assert kind == "arrow"
        return self.table


def test_from_the_hub_and_then_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(name: str) -> dict[str, _Split]:
        asked.append(name)
        rows = pa.table(
            {"img": layouts.images([layouts.picture(i, (32, 32), "RGB") for i in range(20)]), "label": [i % 2 for i in range(20)]}
        )
        return {"test": _Split(rows.slice(0, 8), ["cat", "dog"]), "train": _Split(rows.slice(8), ["cat", "dog"])}

    _fake_datasets(monkeypatch, answer)
    federation = load("cifar10", clients=2, partition="iid")
    assert asked == ["uoft-cs/cifar10"]
    assert federation.class_names == ("cat", "dog")
    assert everything(federation) == 20
    assert same(federation, load("cifar10", clients=2, partition="iid"))
    assert len(asked) == 1
    own = load("hub:someone/pets", clients=2, partition="iid", test_share=0.25)
    assert asked[1:] == ["someone/pets"]
    assert same(own, federation)


def test_offline_with_nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(DataError) as told:
        load("cifar100", data_dir=tmp_path)
    for word in (
        "cifar100",
        str(tmp_path),
        "train-*.parquet and test-*.parquet",
        "fine_label",
        "datasets/uoft-cs/cifar100",
        "142 MB",
        "fedfew[hub]",
        "FEDFEW_DATA",
    ):
        assert word in str(told.value)
    with pytest.raises(DataError, match=r"not on the hub.*datasets\.simula\.no/kvasir, about 1,200 MB"):
        load("kvasir")

    def unreachable(name: str) -> None:
        raise ConnectionError("no route")

    _fake_datasets(monkeypatch, unreachable)
    with pytest.raises(DataError, match="the hub gave an error: ConnectionError: no route"):
        load("femnist")
    with pytest.raises(DataError, match="someone/pets could not be loaded"):
        load("hub:someone/pets")


def test_the_library_itself_reads_the_same(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    real = datasets.load_dataset
    files = {split: str(shared / "ag_news" / f"{split}-00000-of-00001.parquet") for split in ("train", "test")}
    monkeypatch.setattr(datasets, "load_dataset", lambda name: real("parquet", data_files=files, cache_dir=str(tmp_path)))
    assert same(load("ag-news", sample=500, clients=3), load("ag-news", sample=500, clients=3, data_dir=shared))


# --- digits, shifts, settings


def test_digits_are_one_of_them() -> None:
    assert names()[0] == "digits"
    assert same(load("digits"), digits())
    assert same(load("digits", clients=5, partition="dirichlet:0.3", seed=2), digits(5, "dirichlet", alpha=0.3, seed=2))
    assert load("digits", partition="pathological:2", clients=10, sample=500).about["rows"] == 500
    with pytest.raises(ValueError, match="did you mean 'rotation'"):
        digits(partition="rotatoin")  # type: ignore[arg-type]


def test_further_partitions_by_name() -> None:
    published = load("digits", clients=8, partition="dirichlet-published:0.3")
    assert int((published.train.count + published.test.count).min()) >= 40
    skewed = load("digits", clients=8, partition="quantity:0.7", at_least=20)
    assert int((skewed.train.count + skewed.test.count).min()) >= 20
    assert everything(published) == everything(skewed) == 1797


def test_validation_cut_and_stratification() -> None:
    federation = load("digits", clients=4, partition="iid", val_share=0.2, stratify=True)
    assert federation.val is not None
    assert everything(federation) == 1797
    for i in range(4):
        sides = [torch.bincount(s.of(i)[1], minlength=10) for s in (federation.train, federation.val, federation.test)]
        total = sum(sides)
        assert ((sides[2] - total * 0.25).abs() <= 1.5).all()
        assert ((sides[1] - total * 0.2).abs() <= 1.5).all()
    some = federation.take([2, 0]).to("cpu")
    assert some.val is not None
    assert torch.equal(some.val.of(0)[1], federation.val.of(2)[1])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"on_bad": "ignore"}, "on_bad must be"),
        ({"vocabulary_from": "test"}, "vocabulary_from must be"),
        ({"test_share": 1.5}, "test_share must lie"),
        ({"sample": 1}, "sample must be ≥ 2"),
        ({"sample": 5000}, "there are only 1797 rows"),
        ({"partition": "by:writer"}, "no column 'writer'"),
        ({"group": "patient"}, "no column 'patient' to group by"),
        ({"group": "patient", "stratify": True}, "exclude each other"),
        ({"clients": 2000}, "too few for 2000 clients"),
        ({"partition": "label-permutation:2", "clients": 0}, "clients must be ≥ 1"),
    ],
)
def test_wrong_settings_are_explained(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load("digits", **settings)


def test_unknown_names_and_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(DataError, match="there is no file or folder"):
        load(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match=r"does not exist \(data_dir\)"):
        load("cifar10", data_dir=tmp_path / "nowhere")
    with pytest.raises(DataError, match="holds neither parquet files, nor idx files, nor images"):
        load(tmp_path)
    (tmp_path / "x.docx").write_text("")
    with pytest.raises(DataError, match=r"\.docx cannot be read"):
        load(tmp_path / "x.docx")
