"""Data in memory: what people have, given to load as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fedfew.data import DataError, load
from fedfew.federation import Federation
from tests.data.layouts import everything

N = 48
PLACES = ("Basel", "Bern", "Chur")
COLUMNS: dict[str, Any] = {
    "age": [40.0 + (7 * i) % 23 for i in range(N)],
    "sex": ["f", "m"] * (N // 2),
    "hospital": [PLACES[i % 3] for i in range(N)],
    "diagnosis": ["ill" if i % 4 == 0 else "well" for i in range(N)],
}


def frame(library: str) -> Any:
    if library == "arrow":
        return pa.table(COLUMNS)
    return pytest.importorskip(library).DataFrame(COLUMNS)


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_data_frames(library: str) -> None:
    federation = load(frame(library), label="diagnosis", client="hospital")
    assert federation.client_names == PLACES
    assert federation.class_names == ("ill", "well")
    assert federation.shape == (3,)  # age, sex=f, sex=m
    assert everything(federation) == N
    assert federation.fingerprint() == load(pa.table(COLUMNS), label="diagnosis", client="hospital").fingerprint()
    parted = load(frame(library), label="diagnosis", clients=4, partition="iid")
    assert parted.client_names == ("0", "1", "2", "3")


def test_the_index_of_a_pandas_frame_is_no_feature_but_can_name_clients() -> None:
    plain = frame("pandas")
    shuffled = plain.sample(frac=1, random_state=1)
    assert load(shuffled, label="diagnosis", client="hospital").about["columns"]["used"] == ["age", "sex"]
    indexed = plain.set_index("hospital")
    assert (
        load(indexed, label="diagnosis", client="hospital").fingerprint()
        == load(plain, label="diagnosis", client="hospital").fingerprint()
    )


def test_a_column_of_mixed_types_is_named_without_its_contents() -> None:
    pd = pytest.importorskip("pandas")
    mixed = pd.DataFrame({"a": pd.Series([1, "secret"] * 10, dtype=object), "label": [0, 1] * 10})
    with pytest.raises(DataError, match="the column 'a' of the data frame mixes types") as caught:
        load(mixed)
    assert "secret" not in str(caught.value)


def test_frames_one_per_client() -> None:
    plain = frame("pandas").drop(columns="hospital")
    parts = {place: plain[[i % 3 == k for i in range(N)]] for k, place in enumerate(PLACES)}
    federation = load(parts, label="diagnosis")
    assert federation.client_names == PLACES
    assert federation.fingerprint() == load(frame("pandas"), label="diagnosis", client="hospital").fingerprint()
    assert load(list(parts.values()), label="diagnosis").client_names == ("0", "1", "2")
    with pytest.raises(DataError, match="given one per client and have a column 'client'"):
        load({"a": plain.assign(client=1), "b": plain}, label="diagnosis")


def test_features_and_labels_apart_as_in_scikit_learn() -> None:
    whole = frame("pandas")
    x, y = whole.drop(columns="diagnosis"), whole["diagnosis"]
    assert load((x, y), client="hospital").fingerprint() == load(whole, label="diagnosis", client="hospital").fingerprint()
    from sklearn.datasets import load_iris

    iris = load_iris()
    assert load(iris, clients=3, partition="iid").shape == (4,)
    by_array = load((iris.data, iris.target), clients=3, partition="iid")
    assert by_array.fingerprint() == load(iris, clients=3, partition="iid").fingerprint()


def arrays(client: int, kind: type = np.float32, labels: Any = None) -> tuple[Any, Any]:
    x = (np.arange(32).reshape(8, 4) + client).astype(kind)
    return x, np.arange(8) % 2 if labels is None else labels


def samples_of(federation: Federation, client: int) -> list[tuple[list[float], int]]:
    pairs = [federation.train.of(client), federation.test.of(client)]
    return sorted((a.tolist(), int(b)) for x, y in pairs for a, b in zip(x, y, strict=True))


def test_arrays_one_pair_per_client() -> None:
    federation = load([arrays(0), arrays(100)])
    assert len(federation) == 2
    for client, offset in enumerate((0, 100)):
        x, y = arrays(offset)
        assert samples_of(federation, client) == sorted((a.tolist(), int(b)) for a, b in zip(x, y, strict=True))
    assert load({"Basel": arrays(0), "Bern": arrays(1)}).client_names == ("Basel", "Bern")


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["cat", "dog"] * 4),
        list(np.array(["cat", "dog"] * 4)),
        ["cat", "dog"] * 4,
        np.eye(2)[[0, 1] * 4],
        np.array([[0], [1]] * 4),
        [False, True] * 4,
    ],
)
def test_labels_of_all_kinds(labels: Any) -> None:
    federation = load([arrays(0, labels=labels), arrays(1, labels=labels)])
    assert federation.classes == 2
    if np.asarray(labels).dtype.kind == "U":
        assert federation.class_names == ("cat", "dog")
    y = torch.cat([federation.train.y, federation.test.y])
    assert sorted(y.tolist()) == [0] * 8 + [1] * 8


def test_features_of_all_kinds() -> None:
    assert load([arrays(0, bool), arrays(1, bool)]).train.x.dtype == torch.float32
    assert load([arrays(0, np.int32), arrays(1, np.int32)]).train.x.dtype == torch.float32
    assert load([arrays(0, np.int32), arrays(1, np.int32)], input="tokens").train.x.dtype == torch.int64
    with pytest.raises(DataError, match=r"input='age': arrays have no columns"):
        load([arrays(0), arrays(1)], input="age")
    assert load([(torch.ones(8, 3), torch.arange(8) % 2)] * 2).shape == (3,)
    images = np.random.default_rng(0).integers(0, 256, (8, 9, 7, 3), dtype=np.uint8)
    assert load([(images, np.arange(8) % 2)] * 2).shape == (3, 9, 7)


class Pictures(Dataset[Any]):
    """As torchvision's data sets: images of Pillow, class names, a transform."""

    transform = None

    def __init__(self, classes: tuple[str, ...] = ("cat", "dog", "owl")) -> None:
        self.classes = classes

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return Image.new("RGB", (6, 5), (i, 2 * i, 3)), i % 2


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.full((3,), float(i)), i % 2) for i in range(20)])


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"text": f"word {i}", "label": torch.tensor(i % 2)}


def test_torch_datasets() -> None:
    x, y = torch.arange(40.0).reshape(20, 2), torch.arange(20) % 2
    data = TensorDataset(x, y)
    federation = load(data, clients=2, partition="iid")
    assert federation.fingerprint() == load((x.numpy(), y.numpy()), clients=2, partition="iid").fingerprint()
    assert (
        load(DataLoader(data, batch_size=3, shuffle=True), clients=2, partition="iid").fingerprint() == federation.fingerprint()
    )
    parts = load([Subset(data, range(8)), Subset(data, range(8, 20))])
    assert (parts.train.count + parts.test.count).tolist() == [8, 12]
    assert everything(load(Stream(), clients=2, partition="iid")) == 20
    assert load(Texts(), clients=2, partition="iid").shape == (200,)


def test_images_of_pillow_keep_pixels_and_class_names() -> None:
    federation = load(Subset(Pictures(), range(10)), clients=2, partition="iid")
    assert (federation.shape, federation.class_names) == ((3, 5, 6), ("cat", "dog", "owl"))
    first = sorted(tuple(x[:, 0, 0].tolist()) for s in (federation.train, federation.test) for x in s.x)
    assert first == [(i, 2 * i, 3) for i in range(10)]
    assert load(Pictures(), clients=2, partition="iid", size=4).shape == (3, 4, 4)
    augmented = Pictures()
    augmented.transform = object()  # type: ignore[assignment]
    assert "random transforms" in load(augmented, clients=2, partition="iid").about["notes"][0]


def test_hugging_face_datasets() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"]), "site": datasets.Value("string")}
    )
    rows = {
        "text": [f"word {i}" for i in range(30)],
        "label": [i % 2 for i in range(30)],
        "site": [f"s{i % 3}" for i in range(30)],
    }
    whole = datasets.Dataset.from_dict(rows, features=features)
    federation = load(whole, client="site")
    assert (federation.class_names, federation.client_names) == (("bad", "good"), ("s0", "s1", "s2"))
    assert everything(load(whole.select(range(20)), client="site")) == 20
    both = datasets.DatasetDict({"test": whole.select(range(9)), "train": whole.select(range(9, 30))})
    split = load(both, client="site")
    assert split.test.count.tolist() == [3, 3, 3]
    assert split.train.count.tolist() == [7, 7, 7]
    assert load({"here": both, "there": both}).client_names == ("here", "there")


def test_a_given_split_of_arrays_is_kept() -> None:
    train, test = arrays(0), arrays(1000)
    federation = load({"train": train, "test": test}, clients=1, partition="iid")
    assert float(federation.train.x.max()) < 1000 <= float(federation.test.x.min())
    nested = load({"a": {"train": train, "test": test}, "b": {"train": train, "test": test}})
    assert nested.client_names == ("a", "b")
    assert nested.test.count.tolist() == [8, 8]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (3, "int cannot be loaded: a name, a path, a pandas or polars data frame"),
        ([], "the data is empty"),
        (
            iter([np.zeros((4, 2))]),
            "item 0 of the list_iterator .* nor a dict: give a list of data sets, one per client",
        ),
        ([arrays(0), (np.zeros((8, 5), np.float32), np.arange(8) % 2)], r"client 1 has samples of shape \[5\], the first \[4\]"),
        ([(np.zeros((8, 5)), np.arange(7) % 2)], "client 0 has 8 samples but 7 labels"),
        ([(np.array([["a", "b"]] * 4), np.arange(4) % 2)], "the samples are no numbers"),
        ((np.zeros((4, 2)), np.zeros((4, 3, 2))), r"labels of shape \[4, 3, 2\] cannot be used"),
        ([[1, 2, 3]], "int cannot be loaded"),
        ((np.zeros((4, 2)), ["a", float("nan"), "b", "a"]), "sample 2: the label is missing"),
        ([arrays(0), arrays(1, np.uint8)], r"client 1 has bytes \(pixels\), the first numbers"),
        ({"train": arrays(0), "test": arrays(1), "more": arrays(2)}, "either clients or splits, not 'train' beside 'more'"),
        ([Pictures(("cat", "dog")), Pictures(("dog", "cat"))], r"number their classes differently \(\('cat', 'dog'\) and"),
        ((np.full((4, 2), 1e300), [0, 1] * 2), "sample 1: a value is missing or not finite"),
    ],
)
def test_what_cannot_be_loaded_is_explained(data: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        load(data)


def test_objects_are_not_cached(own_cache: Path) -> None:
    load(pa.table(COLUMNS), label="diagnosis", client="hospital")
    assert not list(own_cache.iterdir())


def test_frames_that_are_lazy_and_streams() -> None:
    pl = pytest.importorskip("polars")
    lazy = load(pl.DataFrame(COLUMNS).lazy(), label="diagnosis", client="hospital")
    assert lazy.fingerprint() == load(pa.table(COLUMNS), label="diagnosis", client="hospital").fingerprint()
    datasets = pytest.importorskip("datasets")
    rows = {"text": [f"word {i}" for i in range(20)], "label": [i % 2 for i in range(20)]}
    stream = datasets.Dataset.from_dict(rows).to_iterable_dataset()
    assert everything(load(stream, clients=2, partition="iid")) == 20


class Shops(Dataset[Any]):
    """What a client is comes with each sample; some of what comes with it is no word or number."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, i: int) -> dict[str, Any]:
        shop = {"shop": f"s{i % 3}", "till": torch.tensor(i % 2), "boxes": [i, i]}
        return {"text": f"word {i}", "label": i % 2, **shop, **({"late": 1} if i else {})}


def test_samples_that_are_dicts_say_whose_they_are() -> None:
    data = Shops()
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({name: [data[i][name] for i in range(len(data))] for name in ("text", "label", "shop")})
    of_table = load(table, client="shop")
    for given in (data, DataLoader(data), table.to_iterable_dataset()):
        federation = load(given, client="shop")
        assert federation.client_names == of_table.client_names == ("s0", "s1", "s2")
        assert (federation.train.count + federation.test.count).tolist() == [10, 10, 10]
    assert load(data, client="till").client_names == ("0", "1")
    with pytest.raises(DataError, match="shop, till, late"):  # not the boxes
        load(data, client="boxes")


def test_tables_and_arrays_do_not_mix() -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match="Table cannot be loaded beside arrays"):
        load([arrays(0), pa.table(COLUMNS)])
    with pytest.raises(TypeError, match="Series cannot be loaded: a name, a path"):
        load(pd.Series([1, 2, 3]))
    with pytest.raises(DataError, match="sample 2: the label is missing"):
        load((np.zeros((4, 2)), pd.Series(["a", pd.NA, "b", "a"])))
