"""NumPy archives: one reader for load, select and Flower sites."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfew.data import DataError, load
from fedfew.data.readers.npz import read_arrays
from tests.data.layouts import everything, two


def test_npz(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 9, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=pixels, y=np.arange(40) % 4, site=np.arange(40) % 5)
    federation = load(tmp_path / "a.npz", partition="by:site")
    assert (len(federation), federation.shape, federation.train.x.dtype) == (5, (3, 9, 8), torch.uint8)
    np.savez(
        tmp_path / "b.npz",
        x_train=pixels[:30, ..., 0],
        y_train=np.arange(30) % 2,
        x_test=pixels[30:, ..., 0],
        y_test=np.arange(10) % 2,
    )
    assert (two(tmp_path / "b.npz").shape, everything(two(tmp_path / "b.npz"))) == ((1, 9, 8), 40)
    np.savez(tmp_path / "c.npz", x=rng.normal(size=(20, 7)), y=np.arange(20) % 2)
    assert two(tmp_path / "c.npz").train.x.dtype == torch.float32
    np.savez(tmp_path / "d.npz", x=np.arange(40).reshape(20, 2), y=np.arange(20) % 2)
    assert two(tmp_path / "d.npz").train.x.dtype == torch.int64
    assert "whole numbers are read as token ids" in two(tmp_path / "d.npz").about["notes"][0]
    features = two(tmp_path / "d.npz", input="features")
    assert (features.train.x.dtype, features.about["notes"]) == (torch.float32, [])
    np.savez(
        tmp_path / "e.npz", x=rng.random((20, 3)) > 0.5, y=np.array([b"no", b"yes"] * 10), site=np.array([b"a"] * 9 + [b"b"] * 11)
    )
    flags = load(tmp_path / "e.npz", client="site")
    assert (flags.train.x.dtype, flags.class_names, flags.client_names) == (torch.float32, ("no", "yes"), ("a", "b"))
    np.savez(tmp_path / "f.npz", x_train=pixels, y_train=np.arange(40) % 2, x_test=pixels / 255, y_test=np.arange(40) % 2)
    with pytest.raises(DataError, match=r"the samples of one split are bytes \(pixels\)"):
        two(tmp_path / "f.npz")


def read_for_select(path: Path, about: dict[str, Any], *class_names: str) -> tuple[np.ndarray, np.ndarray]:
    from fedfew.cli.selection import Source, read
    from fedfew.tasks import criterion
    from fedfew.training.data_record import DataRecord

    x, y, *_ = read(path, Source([], about, {}, {}, DataRecord(class_names=class_names), criterion("auto"), None), None, None)
    return x, y


def hwc(n: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 6, 5, 3), dtype=np.uint8)


def test_one_file_loads_alike_everywhere(tmp_path: Path) -> None:
    """Images with channels last and labels in words: the same samples for load, select and a Flower site."""
    from fedfew.flower.site_data import from_npz

    x, words, names = hwc(), np.array(["cat", "dog"] * 4), np.array(["ant", "cat", "dog"])
    path = tmp_path / "a.npz"
    np.savez(path, x=x, y=words, class_names=names)
    expected = {image.transpose(2, 0, 1).tobytes(): 1 + i % 2 for i, image in enumerate(x)}

    def pairs(*samples: tuple[np.ndarray, np.ndarray]) -> dict[bytes, int]:
        return {np.asarray(a).tobytes(): int(b) for xs, ys in samples for a, b in zip(xs, ys, strict=True)}

    loaded = load(path, clients=1, partition="iid")
    assert loaded.class_names == ("ant", "cat", "dog")
    about = {"shape": (3, 6, 5), "classes": 3, "dtype": "uint8"}
    chosen_x, chosen_y = read_for_select(path, about, "ant", "cat", "dog")
    site = from_npz(path, 3)
    assert pairs(loaded.train.of(0), loaded.test.of(0)) == expected
    assert pairs((chosen_x, chosen_y)) == expected
    assert pairs(site.train.of(0), site.test.of(0)) == expected
    assert read_for_select(path, about, "dog", "ant", "cat")[1].tolist() == [2, 0] * 4  # the models' names count


def test_words_need_class_names_where_numbers_are_shared(tmp_path: Path) -> None:
    from fedfew.flower.site_data import from_npz

    np.savez(tmp_path / "a.npz", x=hwc(4), y=np.array(["cat", "dog"] * 2))
    with pytest.raises(DataError, match="labels are words, and their class numbers are not known here"):
        from_npz(tmp_path / "a.npz", 2)
    np.savez(tmp_path / "a.npz", x=hwc(4), y=np.array(["cat", "dog", "secret", "cat"]), class_names=np.array(["cat", "dog"]))
    with pytest.raises(DataError, match=r"a\.npz, row 3: the label is none of the 2 classes \(cat, dog\)$"):
        from_npz(tmp_path / "a.npz", 2)


def test_one_hot_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((6, 2)), y=np.eye(3)[[2, 0, 1, 1, 0, 2]])
    (_, y) = read_arrays(tmp_path / "a.npz").splits["all"]
    assert y.tolist() == [2, 0, 1, 1, 0, 2]
    np.savez(tmp_path / "a.npz", x=np.ones((6, 2)), y=np.ones((6, 3)))
    assert read_arrays(tmp_path / "a.npz").splits["all"][1].shape == (6, 3)  # several labels per sample
    np.savez(tmp_path / "a.npz", x=np.ones((6, 2)), y=np.ones((6, 3, 2)))
    with pytest.raises(DataError, match=r"x has shape \[6, 2\] and y \[6, 3, 2\]; one label per sample"):
        read_arrays(tmp_path / "a.npz")


def test_a_split_without_rows_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz", x_train=np.zeros((4, 2)), y_train=[0, 1, 0, 1], x_test=np.zeros((0, 2)), y_test=[])
    with pytest.raises(DataError, match="x_test and y_test have no rows; at least one sample is needed"):
        read_arrays(tmp_path / "empty.npz")


def test_rows_that_are_one_hot_in_one_split_only_are_labels_of_a_multi_label_task(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", x_train=np.ones((2, 2)), y_train=np.array([[1, 1], [0, 1]]), x_test=np.ones((2, 2)), y_test=np.eye(2)
    )
    splits = read_arrays(tmp_path / "a.npz").splits
    assert splits["train"][1].shape == splits["test"][1].shape == (2, 2)


def test_arrays_that_are_not_used_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((8, 2)), y=np.arange(8) % 2, groups=np.zeros(7), weights=np.ones((8, 2)))
    assert load(tmp_path / "a.npz", clients=2, partition="iid").about["notes"] == ["a.npz: arrays not used: groups, weights"]
    with pytest.raises(ValueError, match="groups must have one value per sample, 8 in all"):
        read_for_select(tmp_path / "a.npz", {"shape": (2,), "classes": 2, "dtype": None})


def test_a_single_array_is_no_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"cannot be read as \.npz"):
        read_arrays(tmp_path / "a.npz")
    with pytest.raises(DataError, match="there is no file"):
        read_arrays(tmp_path / "none.npz")


@pytest.mark.parametrize("values", [[1.0, 2.5, 3.0], [True, False, True], [7, 8, 9]], ids=["numbers", "truth", "whole"])
def test_columns_are_named_as_those_of_a_table(values: list[Any], tmp_path: Path) -> None:
    x, y, site = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 2, np.repeat(values, 10)
    np.savez(tmp_path / "a.npz", x=x, y=y, site=site)
    lines = ["a,b,y,site", *(f"{a},{b},{c},{d}" for (a, b), c, d in zip(x, y, site.tolist(), strict=True))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    table = load(tmp_path / "a.csv", label="y", client="site")
    assert load(tmp_path / "a.npz", client="site").client_names == table.client_names


def test_files_of_pfllib_are_read_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for split, samples in (("train", 8), ("test", 3)):
        (tmp_path / "dataset" / "MNIST" / split).mkdir(parents=True)
        for client in range(20):
            x, y = rng.normal(size=(samples, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, samples)
            np.savez_compressed(tmp_path / "dataset" / "MNIST" / split / f"{client}.npz", data={"x": x, "y": y})
    with pytest.raises(DataError, match=r"holds Python objects where plain arrays are needed: .* docs/data\.md"):
        load("dataset/MNIST/train/0.npz")
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    section = page.partition("## Data that PFLlib")[2]
    (block,) = re.findall(r"^```python\n(import numpy.*?)^```$", section, re.DOTALL | re.MULTILINE)
    exec(compile(block, "data.md", "exec"), {})
    federation = load("mnist.fed")
    assert (federation.train.count.tolist(), federation.test.count.tolist()) == ([8] * 20, [3] * 20)
    assert torch.equal(federation.test.of(19)[1], torch.from_numpy(y))
