"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run without a GPU; Triton asks for it when they are first imported

SHARED = Path(__file__).parents[1].parent / "shared" / "data"


@pytest.fixture
def shared() -> Path:
    """Samples of real data, in a folder beside the checkout; without it these tests are left out, except in CI."""
    if not SHARED.is_dir():
        absent = "there is no shared/data beside this checkout, where the tests find real data"
        if os.environ.get("CI"):
            pytest.fail(absent)
        pytest.skip(absent)
    return SHARED
