"""Runs that several commands are tried on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedfew
from fedfew import export
from tests.cli.small import SMALL
from tests.helpers import call


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of FedFew with two models."""
    folder = tmp_path_factory.mktemp("runs") / "fedfew"
    call("run", *SMALL, "--models", "2", "--mu", "0.003", "--folder", str(folder))
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    call("run", *SMALL, "--rounds", "20", "--models", "2", "--recipe", "plain", "--folder", str(folder))
    return folder


@pytest.fixture
def exported(here: Path, run_folder: Path) -> str:
    out = call("export", str(run_folder), "-o", "e").stdout
    assert export.sha256_of_card(Path("e")) in out
    x, y = fedfew.data.digits(4).train.of(1)
    np.savez("mine.npz", x=x.numpy(), y=y.numpy())
    return "e"
