from __future__ import annotations

import pytest
import torch

import fedfew
from fedfew.engines import LocalTraining, Sequential, Stacked, base
from fedfew.engines.precision import products
from fedfew.local import LocalEpochs, cross_entropy
from tests.helpers import federation, linear


def switches():
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision


@pytest.mark.parametrize(("precision", "inside"), [("fp32", "ieee"), ("tf32", "tf32"), ("fp16", "tf32")])
def test_switches_are_set_for_a_gpu_and_put_back(precision, inside):
    before = switches()
    with products(precision, torch.device("cpu")):
        assert switches() == before
    with products(precision, torch.device("cuda")):
        assert switches() == (inside, inside)
        assert not torch.is_autocast_enabled("cuda")
    assert switches() == before
    with pytest.raises(KeyError), products(precision, torch.device("cuda")):
        raise KeyError
    assert switches() == before


@pytest.mark.parametrize("cls", [Sequential, Stacked])
def test_bf16_sees_the_weights_that_the_last_step_left(cls, monkeypatch):
    """As a GPU would do it, on the CPU: eight steps with rounded factors end within some percent of eight exact ones."""
    on_a_gpu = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda _, dtype, **options: on_a_gpu("cpu", dtype, **options))
    monkeypatch.setattr(base, "products", lambda precision, _: products(precision, torch.device("cuda")))
    data = federation(sizes=(64, 64))

    def moved(precision):
        torch.manual_seed(0)
        engine = cls(linear(), LocalTraining(lr=0.5, batch_size=8, precision=precision), 0)
        start = engine.module.state_dict()["weight"].expand(2, 1, 3, 5)
        params, _ = engine.train(
            LocalEpochs({"weight": start, "bias": torch.zeros(2, 1, 3)}, data.train, data.ids, 1, cross_entropy, {}, 1)
        )
        return params["weight"] - start

    exact = moved("fp32")
    off = (moved("bf16") - exact).norm() / exact.norm()
    assert 0 < off < 0.02


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="precision must be fp32, tf32, bf16 or fp16, not 'half'"):
        fedfew.train(fedfew.data.digits(), rounds=1, precision="half")


def test_the_precision_is_kept_with_the_run():
    run = fedfew.train(fedfew.data.digits(), method="local", rounds=1, precision="fp32")
    assert run.settings["precision"] == "fp32"
