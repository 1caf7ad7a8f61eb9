"""An export of the models that clients use themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedfew
from fedfew import export
from tests.helpers import call, refused

DATA = fedfew.data.digits(clients=3)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))


@pytest.mark.parametrize("method", ["ditto", "fedrep", "local", "fedfew"])
def test_each_client_has_the_model_that_was_scored(method: str, tmp_path: Path) -> None:
    run = fedfew.train(DATA, "mlp", method, rounds=2, label_prior="client", device="cpu")
    found = export.read(export.write_personal(run, tmp_path / "e"))
    assert len(found.models) == 3
    for client in range(3):
        x, y = DATA.test.of(client)
        outputs = found.model_of(client)(x)
        torch.testing.assert_close(outputs, run.model_of(client)(x))
        accuracy = float((outputs.argmax(1) == y).double().mean())
        assert accuracy == pytest.approx(float(run.history.served_accuracy[-1][client]))
    page = (tmp_path / "e" / "README.md").read_text()
    assert "Each client has the model that it uses here, in the order of the clients." in page
    assert "mixture" not in page.partition("## Settings")[0]


def test_what_has_no_model_per_client_is_refused(tmp_path: Path) -> None:
    memory = fedfew.train(DATA, "mlp", "knnper", rounds=1, device="cpu")
    for write in (export.write, export.write_personal):
        with pytest.raises(ValueError, match=r"clients of knnper predict with more than a model.*: predict from the run"):
            write(memory, tmp_path / "e")
    own = fedfew.train(DATA, normalised, "fedfew", rounds=1, serve="mixture", batch_norm="local", device="cpu")
    for write in (export.write, export.write_personal):
        with pytest.raises(
            ValueError, match=r"mixtures of models of their own: export with --distil .*, or predict from the run"
        ):
            write(own, tmp_path / "e")
    found = export.read(export.write_distilled(own, DATA, tmp_path / "e", epochs=1), normalised)
    assert found.predict(DATA.test.of(0)[0].numpy(), client=0).shape == (len(DATA.test.of(0)[0]),)
    mixed = fedfew.train(DATA, "linear", "fedfew", rounds=1, serve="mixture", device="cpu")
    with pytest.raises(ValueError, match=r"mixtures of the server's models.*export without --personal .*, or with --distil"):
        export.write_personal(mixed, tmp_path / "e")
    rng = torch.Generator().manual_seed(0)
    samples = [(torch.randn(12, 2, generator=rng), torch.randn(12, 1, generator=rng)) for _ in range(3)]
    numbers = fedfew.Federation.from_arrays(samples, samples, task="regression")
    regression = fedfew.train(numbers, "linear", "fedfew", rounds=1, serve="mixture", device="cpu")
    with pytest.raises(ValueError, match=r"with all that they use$"):  # --distil refuses numbers
        export.write_personal(regression, tmp_path / "e")


@pytest.mark.usefixtures("here")
def test_from_the_command_line() -> None:
    fedfew.train(DATA, "mlp", "fedrep", rounds=1, device="cpu").save("r")
    fedfew.train(DATA, "linear", "fedfew", rounds=1, serve="mixture", device="cpu").save("m")
    assert "export without --personal" in refused("export", "m", "-o", "e", "--personal")
    assert "--personal (fedfew.export.write_personal) writes the model of each client" in refused("export", "r", "-o", "e")
    assert "3 models" in call("export", "r", "-o", "e", "--personal").stdout
    assert "cannot be combined with --anonymous, --peft or --distil" in refused(
        "export", "r", "-o", "f", "--personal", "--anonymous"
    )
    assert "cannot be combined with --anonymous, --peft or --personal" in refused(
        "export", "r", "-o", "f", "--personal", "--distil"
    )
