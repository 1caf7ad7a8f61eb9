"""The guard that keeps tests from writing into the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, files_of


def test_what_counts_as_a_change(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("1")
    before = files_of(tmp_path)
    for tools in (".pytest_cache", "__pycache__"):
        (tmp_path / tools).mkdir()
        (tmp_path / tools / "file").write_text("")
    assert files_of(tmp_path) == before
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "stray.npz").write_text("")
    assert {name for name, _ in files_of(tmp_path) ^ before} == {"e/stray.npz"}
    (tmp_path / "kept.txt").unlink()
    assert {name for name, _ in files_of(tmp_path) ^ before} == {"e/stray.npz", "kept.txt"}


def test_a_relative_path_leads_out_of_the_repository() -> None:
    assert not Path.cwd().is_relative_to(ROOT)


@pytest.mark.slow
def test_a_test_that_writes_into_the_repository_fails_the_session(tmp_path: Path) -> None:
    guard = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(guard)
    (tmp_path / "tests" / "test_it.py").write_text(
        "from pathlib import Path\n\ndef test_it():\n    Path(__file__).with_name('stray.npz').touch()\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path / "tests")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "written or removed while its tests ran: tests/stray.npz" in done.stdout
