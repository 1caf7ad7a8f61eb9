"""Devices are named in words that say what is possible."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedfew.util.devices import device_named


@pytest.mark.parametrize("name", ["gpu", "mps", "xpu", "meta", torch.device("meta"), None, 3.5])
def test_a_device_on_which_nothing_is_trained_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or cuda:N, not"):
        device_named(name)


def test_a_gpu_that_this_machine_has_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_named("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match="device is 'cuda:7', but the GPUs that torch can use here are cuda:0 to cuda:1"):
        device_named("cuda:7")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device is 'cuda', but this machine has no CUDA GPU"):
        device_named("cuda")
