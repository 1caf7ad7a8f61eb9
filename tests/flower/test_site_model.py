"""The model that a site uses is one file, which predicts there what the simulator predicts for this client."""

from __future__ import annotations

import csv
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedfew
from fedfew import models
from fedfew.cli import app
from fedfew.data.tensorfile import BrokenFileError
from fedfew.export import model_file
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.server_loop import ServerLoop
from tests.flower.support import FEDERATION, SETTINGS, fake_network, tiny
from tests.methods.tiers import tiered


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def trained(folder: Path, model, settings) -> tuple[list[Path], fedfew.Run]:
    """The sites' files, and the same run in the simulator."""
    network = fake_network(folder)
    for site in network.sites.values():
        site.model = model
    config = DeploymentConfig(**(SETTINGS | {"folder": str(folder / "run"), "rounds": 2} | settings))
    run = ServerLoop(config, network, lambda data: models.factory(model, (5,), 3), network.clock).run()
    names = ("rounds", "batch_size", "lr", "batch_norm", "adapters", "freeze", "serve", "label_prior")
    given = {name: getattr(config, name) for name in names}
    oracle = fedfew.train(FEDERATION, model, config.make_method(), engine="sequential", **given)
    return [folder / f"sites/client-{i}" / run.state.sites["run"] / "model.safetensors" for i in range(4)], oracle


@pytest.mark.parametrize(
    ("method", "model", "settings"),
    [
        *tiered(
            [
                ("fedfew:models=2", tiny, {}),
                ("fedfew:models=2", tiny, {"serve": "mixture", "label_prior": "client"}),
                ("ditto", tiny, {}),
                ("fedem:models=2", tiny, {}),
                ("fedrep", tiny, {"label_prior": "client"}),
                ("fedavg", normed, {"batch_norm": "batch"}),
                ("fedavg", normed, {"batch_norm": "local"}),
                ("fedfew:models=2", "mlp", {"adapters": "lora:rank=2", "serve": "mixture"}),
                ("fedavg", "mlp", {"freeze": "body"}),
            ]
        ),
        ("knnper", tiny, {}),
    ],
)
def test_a_site_s_file_predicts_as_the_simulator(method, model, settings, tmp_path):
    files, oracle = trained(tmp_path, model, {"method": method} | settings)
    own = None if isinstance(model, str) else model
    for client, path in enumerate(files):
        x = FEDERATION.test.of(client)[0]
        expected = oracle.predict_proba(x.numpy(), client=client)
        with torch.no_grad():
            np.testing.assert_allclose(fedfew.load_model(path, own)(x).softmax(1).numpy(), expected, atol=1e-5)
        np.testing.assert_allclose(model_file.selected(path, own).predict_proba(x.numpy()), expected, atol=1e-5)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_on_the_command_line(tmp_path):
    """With names for a module of one's own, and without for one of fedfew's."""
    files, oracle = trained(tmp_path, "mlp", {"method": "fedfew:models=2", "serve": "mixture", "label_prior": "client"})
    x = FEDERATION.test.of(2)[0].numpy()
    np.savez(tmp_path / "new.npz", x=x)
    answered = CliRunner().invoke(app, ["predict", str(files[2]), "--data", str(tmp_path / "new.npz"), "--proba"])
    assert answered.exit_code == 0, answered.output
    rows = list(csv.DictReader(answered.stdout.splitlines()))
    assert [int(row["prediction"]) for row in rows] == oracle.predict(x, client=2).tolist()
    wrong = CliRunner().invoke(app, ["select", str(files[2]), "--data", str(tmp_path / "new.npz")])
    assert wrong.exit_code != 0
    files, _ = trained(tmp_path / "own", tiny, {"method": "ditto"})
    unnamed = CliRunner().invoke(app, ["predict", str(files[2]), "--data", str(tmp_path / "new.npz")])
    assert "tests.flower.support:tiny" in " ".join(unnamed.output.split()) or "tests.flower.support:tiny" in str(
        unnamed.exception
    )


def test_a_damaged_file_is_refused(tmp_path):
    (path, *_), _ = trained(tmp_path, "mlp", {"method": "fedavg", "rounds": 1})
    contents = bytearray(path.read_bytes())
    contents[-3] ^= 1
    path.write_bytes(contents)
    with pytest.raises(BrokenFileError, match="is damaged: the checksum"):
        fedfew.load_model(path)
