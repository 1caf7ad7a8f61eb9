"""Features that are mapped from a file stay there: nothing in training copies all of them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.many_clients import federation, rounds_of

import fedfew
from fedfew.data import prepared

LINUX = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
SMALL = argparse.Namespace(
    clients=40, samples=20, features=8, participation=0.1, rounds=5, score_every=2, device="cpu", folder=None, json=False
)


def file_at(address: int) -> str:
    """The file that is mapped at this address of this process; empty, or [heap], for memory of its own."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        ends, *_, name = line.split(maxsplit=5) if line.count(" ") > 5 else [line.split()[0], ""]
        begin, end = (int(part, 16) for part in ends.split("-"))
        if begin <= address < end:
            return name.strip()
    return ""


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npy", "fed"])
def test_trained_samples_are_those_of_the_file(tmp_path: Path, kind: str) -> None:
    data, sources = federation(tmp_path, SMALL), {tmp_path / "train.npy", tmp_path / "test.npy"}
    if kind == "fed":
        sources = {prepared.write(data, tmp_path / "all.fed")}
        data = fedfew.data.load(*sources)
    seen: list[int] = []
    original = fedfew.federation.Samples.inputs

    def inputs(self: fedfew.federation.Samples, rows: object) -> object:
        seen.append(self.x.data_ptr())
        return original(self, rows)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedfew.federation.Samples, "inputs", inputs)
        fedfew.train(data, "mlp", rounds=2, batch_size=5, participation=0.5)
    assert {file_at(address) for address in seen} == {str(source.resolve()) for source in sources}


@LINUX
def test_every_round_is_recorded_and_scored_ones_are_marked(tmp_path: Path) -> None:
    found = rounds_of(federation(tmp_path, SMALL), SMALL)
    assert [row["round"] for row in found] == [1, 2, 3, 4, 5]
    assert [row["scored"] for row in found] == [False, True, False, True, True]
    assert all(row["seconds"] > 0 and row["allocated"] > 50 for row in found)


@LINUX
@pytest.mark.slow
def test_training_allocates_less_than_the_features_take() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "many_clients.py"
    sizes = ["--clients", "1000", "--features", "1600", "--rounds", "4", "--score-every", "4"]
    done = subprocess.run([sys.executable, str(script), *sizes], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["feature_mib"] == 1000 * 25 * 1600 * 4 // 2**20
    assert found["allocated_at_most"] - found["allocated_before"] < found["feature_mib"] / 2
