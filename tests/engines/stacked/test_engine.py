"""What only the stacked engine does."""

import torch

import fedfew
from fedfew.engines.stacked import batches
from fedfew.stack import leaves


def test_samples_gathered_at_once_or_batch_by_batch_are_the_same(monkeypatch):
    federation = fedfew.data.load("digits", partition="dirichlet:0.5", clients=4, sample=300)

    def trained() -> list[torch.Tensor]:
        run = fedfew.train(federation, method=fedfew.FedFew(models=2), rounds=3, batch_size=7, lr=0.1, engine="stacked")
        return leaves(run.state.server)

    at_once = trained()
    monkeypatch.setattr(batches, "AT_ONCE", 0)
    for a, b in zip(at_once, trained(), strict=True):
        assert torch.equal(a, b)
