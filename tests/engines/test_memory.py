"""What a run may take of a device's memory."""

import pytest
import torch

from fedfew.engines import memory


@pytest.mark.parametrize("device", [torch.device("cuda", 1), torch.device("cuda")])
def test_a_share_of_a_gpu_is_what_a_run_reckons_with(device, monkeypatch):
    """PyTorch takes the number of a GPU here, and no device without one."""
    fractions = {0: 0.0, 1: 1.0}
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda part, number: fractions.update({number: part}))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", fractions.__getitem__)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("GPU", (), {"total_memory": 12000}))
    assert memory.allowance(device) == 4000
    memory.share(device, 4)
    assert memory.allowance(device) == 1000


def test_a_cpu_is_not_shared_out():
    memory.share(torch.device("cpu"), 4)
    assert memory.allowance(torch.device("cpu")) == memory.ON_A_CPU
