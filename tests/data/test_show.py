"""Counts, the heterogeneity figure, table, picture, and the commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedfew.cli.data import app
from fedfew.data import load, show
from tests.data import layouts


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "100"})
    return result.exit_code, result.output


def test_the_list_fits_a_terminal_of_80_columns(shared: Path) -> None:
    def listed(columns: str) -> str:
        return CliRunner().invoke(app, ["list", "--data-dir", str(shared)], env={"COLUMNS": columns}).output

    assert max(map(len, listed("80").splitlines())) <= 80
    assert "zh-plus/tiny-imagenet" in listed("100")
    assert "…" not in listed("80")
    assert {"zh-plus/", "tiny-imagenet"} <= set(listed("80").split())


def printed(table: object, width: int) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    return console.export_text()


def test_counts_are_all_samples() -> None:
    federation = load("digits", clients=5, partition="dirichlet:0.3", val_share=0.1)
    counted = show.counts(federation)
    assert counted.shape == (5, 10)
    assert counted.sum(axis=0).tolist() == np.bincount(__import__("sklearn.datasets").datasets.load_digits().target).tolist()


def test_heterogeneity_by_hand() -> None:
    assert show.heterogeneity(np.array([[5, 5], [1, 1]])) == 0
    assert show.heterogeneity(np.array([[5, 0, 0], [0, 2, 0], [0, 0, 9]])) == 1
    # pairs: ½(|1−½|+|0−½|) = ½, ½·2 = 1, ½
    assert show.heterogeneity(np.array([[4, 0], [1, 1], [0, 3]])) == pytest.approx((0.5 + 1 + 0.5) / 3)
    assert show.heterogeneity(np.array([[4, 0]])) == 0


def test_table_shows_every_number_or_a_summary(tmp_path: Path) -> None:
    federation = load("digits", clients=4, partition="pathological:5", val_share=0.1)
    text = printed(show.table(federation, 100), 100)
    assert "…" not in text
    for count in show.counts(federation).ravel():
        assert str(count) in text or count == 0
    narrow = printed(show.table(federation, 60), 60)
    assert "its share" in narrow
    assert "…" not in narrow
    layouts.image_folder(tmp_path, classes=3, each=8)
    folded = printed(show.table(load(tmp_path, clients=2, partition="iid"), 38), 38)
    assert "…" not in folded


@pytest.mark.parametrize("style", ["auto", "bars", "bubbles"])
def test_picture(tmp_path: Path, style: str) -> None:
    from PIL import Image

    path = show.picture(load("digits", clients=4), tmp_path / "below" / "a.png", style)  # type: ignore[arg-type]
    with Image.open(path) as image:
        assert min(image.size) > 300
        assert len(image.convert("RGB").getcolors(10**6) or []) > 5
    with pytest.raises(ValueError, match="style must be"):
        show.picture(load("digits", clients=4), tmp_path / "a.png", "pie")  # type: ignore[arg-type]


def test_colours_are_told_apart_without_red_and_green() -> None:
    """Simulated deuteranopia (Viénot 1999, linear RGB): no two colours fall together."""
    rgb = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in show.COLOURS]) / 255
    linear = rgb**2.2
    blind = linear @ np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]).T
    seen = np.clip(blind, 0, 1) ** (1 / 2.2)
    distance = np.linalg.norm(seen[:, None] - seen[None], axis=2) + np.eye(len(seen))
    assert distance.min() > 0.08


def test_command_list(shared: Path) -> None:
    code, out = run("list", "--data-dir", shared)
    assert code == 0
    for name in ("digits", "cifar100", "fed-isic2019", "uoft-cs/cifar10"):
        assert name in out
    assert run("list")[0] == 0
    assert run("list", "--data-dir", "/nowhere")[0] == 2


def test_command_show(shared: Path, tmp_path: Path) -> None:
    code, out = run("show", "cifar10", "--data-dir", shared, "--sample", 500, "--clients", 4, "--picture", tmp_path / "a.png")
    assert code == 0
    assert "mean pairwise label distance: 0." in out
    assert (tmp_path / "a.png").stat().st_size > 5000
    assert "45,880 of the 127,600" in run("show", "ag-news", "--data-dir", shared, "--sample", 500, "--clients", 4)[1]


def test_command_prepare(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "a,b,c,kind\n" + "".join(f"{i}.5,{-i}.5,7,{i % 3}\n" if i != 4 else f"{i}.5,inf,8,{i % 3}\n" for i in range(40))
    )
    code, out = run("prepare", file, "--label", "kind", "--clients", 2, "--partition", "iid", "-o", tmp_path / "a.fed")
    assert code == 2
    assert "Error: a.csv, row 5: a value is infinite" in out
    code, out = run(
        "prepare",
        file,
        "--label",
        "kind",
        "--clients",
        2,
        "--partition",
        "iid",
        "--skip-bad",
        "--stratify",
        "-o",
        tmp_path / "a.fed",
    )
    assert code == 0
    assert "left out 1" in out
    assert "39 samples" in out
    assert run("show", tmp_path / "a.fed")[0] == 0
    columns = ["--input", "a", "--input", "c"]
    code, out = run("prepare", file, "--label", "kind", *columns, "--clients", 2, "--partition", "iid", "-o", tmp_path / "b.fed")
    assert code == 0
    assert load(tmp_path / "b.fed").shape == (2,)
    assert "must end in .fed" in run("prepare", "digits", "-o", tmp_path / "a.bin")[1]
    assert "did you mean 'digits'" in run("show", "digit")[1]


def test_clients_and_classes_have_their_names(tmp_path: Path) -> None:
    lines = [f"{i}.5,{('Basel', '[red]Bern', 'Chur')[i % 3]},{'ill' if i % 4 else 'well'}" for i in range(40)]
    (tmp_path / "a.csv").write_text("age,hospital,outcome\n" + "\n".join(lines) + "\n")
    code, out = run("show", tmp_path / "a.csv", "--label", "outcome", "--client", "hospital")
    assert code == 0
    for name in ("Basel", "[red]Bern", "Chur", "ill", "well", "columns used: age"):
        assert name in out
    assert "columns left out: hospital (client or group), outcome (the label)" in out


def test_show_and_list_as_json(tmp_path: Path) -> None:
    lines = [f"{i}.5,{('Basel', 'Bern')[i % 2]},{'ill' if i % 4 == 0 else 'well'}" for i in range(16)]
    (tmp_path / "a.csv").write_text("age,hospital,outcome\n" + "\n".join(lines) + "\n")
    words = ["show", str(tmp_path / "a.csv"), "--label", "outcome", "--client", "hospital", "--json"]
    answer = json.loads(CliRunner().invoke(app, words).stdout)
    assert answer["clients"] == [
        {"name": "Basel", "samples": 8, "train": 6, "test": 2, "classes": {"ill": 4, "well": 4}},
        {"name": "Bern", "samples": 8, "train": 6, "test": 2, "classes": {"ill": 0, "well": 8}},
    ]
    assert answer["label_distance"] == 0.5
    assert answer["about"]["columns"]["used"] == ["age"]
    listed = json.loads(CliRunner().invoke(app, ["list", "--json", "--data-dir", str(tmp_path)]).stdout)
    assert [entry["name"] for entry in listed][:2] == ["digits", "cifar10"]
    assert listed[1] | {"here": False, "rows": 60_000, "shape": [3, 32, 32]} == listed[1]
    (tmp_path / "cifar10").mkdir()
    listed = json.loads(CliRunner().invoke(app, ["list", "--json", "--data-dir", str(tmp_path)]).stdout)
    assert listed[1]["here"] is True


def test_scale_and_test_share_reach_load(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a,kind,site\n" + "".join(f"{i}.5,{i % 2},{i % 3}\n" for i in range(40)))
    plain = ["prepare", file, "--label", "kind", "--client", "site", "-o"]
    run(*plain, tmp_path / "a.fed")
    run(*plain, tmp_path / "b.fed", "--scale", "none")
    run(*plain, tmp_path / "c.fed", "--test-share", 0.5)
    a, b, c = (load(tmp_path / f"{name}.fed") for name in "abc")
    assert float(b.train.x.max()) > 30 > float(a.train.x.max())
    assert int(c.test.count.sum()) > int(a.test.count.sum())
