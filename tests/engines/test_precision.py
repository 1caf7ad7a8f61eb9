from __future__ import annotations

import pytest
import torch

import fedfew
from fedfew.engines.precision import products


def switches():
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision


@pytest.mark.parametrize(("precision", "inside"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_switches_are_set_for_a_gpu_and_put_back(precision, inside):
    before = switches()
    with products(precision, torch.device("cpu")):
        assert switches() == before
    with products(precision, torch.device("cuda")):
        assert switches() == (inside, inside)
    assert switches() == before
    with pytest.raises(KeyError), products(precision, torch.device("cuda")):
        raise KeyError
    assert switches() == before


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="precision must be fp32, tf32 or bf16, not 'half'"):
        fedfew.train(fedfew.data.digits(), rounds=1, precision="half")


def test_the_precision_is_kept_with_the_run():
    run = fedfew.train(fedfew.data.digits(), method="local", rounds=1, precision="fp32")
    assert run.settings["precision"] == "fp32"
