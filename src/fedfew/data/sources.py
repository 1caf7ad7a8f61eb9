"""The data sets known by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedfew.federation import Pixels

Kind = Literal["image", "text"]


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, its columns, its preparation, and the paper's partition."""

    name: str
    kind: Kind
    hub: str | None  # id on the Hugging Face hub
    input: str  # column
    label: tuple[str, ...]  # column; the first of these that is there
    classes: int
    megabytes: int  # size of the download
    files: str  # files expected in its folder
    rows: int | None  # how many rows the public set has, all splits together
    size: tuple[int, int, int] | None = None  # channels, height, width; images of another size are resized
    folders: tuple[str, ...] = ()  # further names of its folder
    group: str | None = None  # column whose rows stay in one split
    pixels: Pixels = "symmetric"
    clients: int = 20
    partition: str = "dirichlet:0.5"
    home: str | None = None  # address, for sets that are not on the hub
    note: str = ""

    @property
    def folder_names(self) -> tuple[str, ...]:
        """Names searched for in a data folder, in this order."""
        own = [self.name, self.name.replace("-", "_")]
        if self.hub:
            own += [self.hub, self.hub.replace("/", "___"), self.hub.replace("/", "--"), self.hub.split("/")[-1]]
        return tuple(dict.fromkeys([*own, *self.folders]))

    @property
    def address(self) -> str:
        return f"https://huggingface.co/datasets/{self.hub}" if self.hub else self.home or "(no public address)"


_TWO_SPLITS = "train-*.parquet and test-*.parquet"

# fmt: off
_SOURCES = (
    # name, kind, hub id, input, label, classes, megabytes, files, rows, sample
    Source("cifar10", "image", "uoft-cs/cifar10", "img", ("label",), 10, 144, _TWO_SPLITS, 60_000, (3, 32, 32)),
    Source("cifar100", "image", "uoft-cs/cifar100", "img", ("fine_label",), 100, 142, _TWO_SPLITS, 60_000, (3, 32, 32)),
    Source("tiny-imagenet", "image", "zh-plus/tiny-imagenet", "image", ("label",), 200, 161,
           "train-*.parquet and valid-*.parquet", 110_000, (3, 64, 64),
           folders=("tiny_imagenet20",), clients=10, note="research use"),
    Source("femnist", "image", "flwrlabs/femnist", "image", ("character",), 62, 210, "train-*.parquet", 814_277, (1, 28, 28),
           partition="by:writer_id"),
    Source("ag-news", "text", "fancyzhx/ag_news", "text", ("label",), 4, 20, _TWO_SPLITS, 127_600),
    Source("kvasir", "image", None, "image", ("label",), 8, 1200,
           "eight folders of JPEG images, one per class", None, (3, 64, 64),
           folders=("kvasir-dataset", "kvasir-dataset-v2"), pixels="unit", clients=5, home="https://datasets.simula.no/kvasir"),
    Source("fed-isic2019", "image", "flwrlabs/fed-isic2019", "image", ("label",), 8, 144, _TWO_SPLITS, 23_247, (3, 224, 224),
           pixels="unit", clients=6, partition="by:center", note="CC BY-NC 4.0"),
    Source("mnist", "image", "ylecun/mnist", "image", ("label", "character"), 10, 18, _TWO_SPLITS, 70_000, (1, 28, 28),
           folders=("mnist_writers",)),
    Source("fashion-mnist", "image", "zalando-datasets/fashion_mnist", "image", ("label",), 10, 36, _TWO_SPLITS, 70_000,
           (1, 28, 28)),
    Source("mnist-writers", "image", None, "image", ("character",), 10, 16, _TWO_SPLITS, 70_000, (1, 28, 28),
           partition="by:writer_id", note="MNIST with its NIST writers"),
    Source("ham10000", "image", None, "image", ("label",), 7, 12, "*.parquet", 10_015, (3, 28, 28),
           group="lesion_id", clients=10, partition="by:localization",
           note="CC BY-NC; one lesion stays at one client and in one split"),
)
# fmt: on
SOURCES = {source.name: source for source in _SOURCES}


def names() -> list[str]:
    """The names that :func:`fedfew.data.load` knows."""
    return ["digits", *SOURCES]
