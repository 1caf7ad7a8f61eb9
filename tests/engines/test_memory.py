"""What a run may take of a device's memory."""

import torch

from fedfew.engines import memory

GPU = torch.device("cuda", 0)


def test_a_share_of_a_gpu_is_what_a_run_reckons_with(monkeypatch):
    fractions = {GPU: 1.0}
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda part, device: fractions.update({device: part}))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", fractions.__getitem__)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("GPU", (), {"total_memory": 8000}))
    assert memory.allowance(GPU) == 4000
    memory.share(GPU, 4)
    assert memory.allowance(GPU) == 1000


def test_a_cpu_is_not_shared_out():
    memory.share(torch.device("cpu"), 4)
    assert memory.allowance(torch.device("cpu")) == memory.ON_A_CPU
