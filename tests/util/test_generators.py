"""Global generators set for a while."""

import pytest
import torch

from fedfew.util.generators import seeded


def test_a_seed_gives_what_manual_seed_would():
    with seeded(7):
        within = torch.randn(5)
    torch.manual_seed(7)
    assert torch.equal(within, torch.randn(5))


def test_afterwards_the_generator_is_as_it_was():
    before = torch.get_rng_state()
    with seeded(7):
        torch.randn(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_traceback_is_formatted_for_no_device(monkeypatch):
    def unwanted(*_):
        raise AssertionError("torch.manual_seed does this once per kind of device")

    monkeypatch.setattr("traceback.format_stack", unwanted)
    with seeded(7):
        torch.randn(5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpus_in_use_are_seeded_and_restored():
    torch.zeros(1, device="cuda")
    before = torch.cuda.get_rng_state()
    with seeded(7):
        first = torch.randn(5, device="cuda")
    with seeded(7):
        assert torch.equal(torch.randn(5, device="cuda"), first)
    assert torch.equal(torch.cuda.get_rng_state(), before)
