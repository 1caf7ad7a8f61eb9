"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("no deadline", deadline=None)  # how long a test takes depends on what else the machine does
hypothesis.settings.load_profile("no deadline")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run without a GPU; Triton asks for it when they are first imported

if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # as in what a script starts with &: the processes that tests stop by Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)  # would inherit it

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def checkout_stays_as_it_is(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests work in a temporary folder, and whatever one adds to, changes in or removes from the repository fails the session."""
    before = files_of(ROOT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("working-folder"))
        yield
    changed = sorted(name for name, _ in before ^ files_of(ROOT))
    assert not changed, f"files in the repository were written or removed while its tests ran: {', '.join(changed)}"


def files_of(root: Path) -> set[tuple[str, int]]:
    """Names and times of change of all files but those of tools: hidden ones and compiled Python."""
    found = set()
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__" and ".egg-info" not in name]
        paths = [Path(folder, name) for name in names if not name.startswith(".")]
        found |= {(str(path.relative_to(root)), path.stat().st_mtime_ns) for path in paths}
    return found


@pytest.fixture(scope="session", autouse=True)
def every_checkpoint_is_written() -> Iterator[None]:
    """A run leaves a checkpoint out where writing takes long beside training: on a busy machine that would depend on chance."""
    from fedfew.training import checkpoint_writer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_writer, "PATIENCE", 0)
        yield


@pytest.fixture
def shared() -> Path:
    """Samples of real data, in a folder beside the checkout; without it these tests are left out, except in CI."""
    if not SHARED.is_dir():
        absent = "there is no shared/data beside this checkout, where the tests find real data"
        if os.environ.get("CI"):
            pytest.fail(absent)
        pytest.skip(absent)
    return SHARED


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh folder to work in, and a terminal of a usual width."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.fixture
def exact() -> Iterator[None]:
    """PyTorch multiplies in float32 on a GPU too."""
    from fedfew.engines.precision import products

    with products("fp32", torch.device("cuda" if torch.cuda.is_available() else "cpu")):
        yield
