from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from fedfew.methods import FedAvg, FedEM
from fedfew.models.served import ServedModel
from tests.methods.small import FULL_BATCH, assert_close, assert_same, clients_of, federation, linear, tensors, theta, train


def test_a_round_by_hand() -> None:
    """One step on all data: θ_k − lr·Σ_i p_i·mean_j q_ijk·∇loss_ij(θ_k), and π_ik = mean_j q_ijk. A full step: twice as far."""
    data = federation()
    settings = FULL_BATCH | {"rounds": 1, "local_epochs": 1}
    models = [theta(m.state_dict()) for m in train(FedEM(models=2), data, **(settings | {"lr": 1e-30})).models]
    share = (data.train.count / data.train.count.sum()).tolist()
    expected, pi = [m.clone() for m in models], []
    for p, (x, y) in zip(share, clients_of(data), strict=True):
        inputs = torch.cat([x, torch.ones(len(x), 1)], 1).double()
        joint = torch.stack([0.5 * (inputs @ m.T).softmax(1)[torch.arange(len(y)), y] for m in models])
        q = joint / joint.sum(0)
        pi.append(q.mean(1))
        for k, m in enumerate(models):
            residual = (inputs @ m.T).softmax(1) - torch.eye(3, dtype=torch.float64)[y]
            expected[k] -= settings["lr"] * p * (q[k][:, None] * residual).T @ inputs / len(y)
    for times in (1, 2):
        run = train(FedEM(models=2, full_step=times == 2), data, **settings)
        for k in range(2):
            assert_close(theta(run.models[k].state_dict()) - models[k], times * (expected[k] - models[k]))
    assert_close(run.state.own["pi"], torch.stack(pi))


def test_one_component_is_fedavg() -> None:
    for engine in ("sequential", "stacked"):
        em, fedavg = train(FedEM(models=1), engine=engine), train(FedAvg(), engine=engine)
        assert_same(dict(em.models[0].state_dict()), dict(fedavg.models[0].state_dict()), 2e-6)
        assert torch.equal(em.state.own["pi"], torch.ones(6, 1))


def test_clients_are_served_their_own_mixture() -> None:
    data = federation()
    run = train(FedEM(models=3), data)
    for client in range(len(data)):
        x, y = data.test.of(client)
        parts = torch.stack([model(x).softmax(1) for model in run.models])
        mixed = torch.einsum("k,kbc->bc", run.state.own["pi"][client], parts)
        expected = cross_entropy(mixed.log(), y)
        torch.testing.assert_close(torch.tensor(run.history.last("served_loss")[client]), expected.detach(), rtol=1e-4, atol=1e-5)
        assert isinstance(run.model_of(client), ServedModel)
    assert run.choice.tolist() == run.state.own["pi"].argmax(1).tolist()
    assert float(run.state.own["pi"].std(0).max()) > 0.01  # clients differ


def test_the_mixtures_weights_do_not_depend_on_how_mixtures_are_served() -> None:
    """serve="mixture" weighs by losses; FedEM has learned its weights."""
    events: list[str] = []
    plain, mixed = train(FedEM()), train(FedEM(), serve="mixture", on_round=lambda progress: events.extend(progress.events))
    assert_same(tensors(plain), tensors(mixed))
    assert events == ["serve is mixture, but fedem learns the weights of its mixture: temperature has no effect"]


def test_weights_of_a_mixture_stay_with_the_client() -> None:
    run, model = train(FedEM(models=2), rounds=1, participation=1.0, model=linear), 4 * (4 * 3 + 3)
    assert run.history.last("bytes_up") == len(federation()) * (2 * model + 2 * 4)


def test_it_tells_groups_of_clients_apart() -> None:
    """Clients 0 and 3, 1 and 4, 2 and 5 see the same blobs: in the end they weigh the models alike."""
    run = train(
        FedEM(models=3),
        federation((16,) * 6),
        rounds=30,
        momentum=0.0,
        participation=1.0,
        engine="stacked",
        lr=0.5,
        score_every=30,
    )
    apart = torch.cdist(run.state.own["pi"], run.state.own["pi"])
    assert float(apart[torch.arange(3), torch.arange(3) + 3].max()) < float(apart[:3, :3][~torch.eye(3, dtype=torch.bool)].min())


def test_a_new_clients_weights_are_the_shares_of_samples_that_each_model_explains() -> None:
    certain = torch.tensor([[0.0, 0.0, 0.0, torch.inf], [torch.inf, torch.inf, torch.nan, 0.0]])
    assert_close(FedEM.learned_mixture(certain), torch.tensor([0.75, 0.25]))
    assert FedEM.learned_mixture(torch.full((2, 3), torch.inf)) is None


def test_a_new_clients_weights_are_the_most_likely_ones() -> None:
    """At the maximum of Σ_j log Σ_k π_k exp(−l_jk) the mean over j of exp(−l_jk) / Σ_k π_k exp(−l_jk) is 1 for every k in use."""
    losses = torch.tensor([[0.1, 2.0, 0.3, 1.5, 0.7], [1.0, 0.2, 1.1, 0.1, 0.8]])
    pi = FedEM.learned_mixture(losses)
    likelihood = (-losses).exp()
    torch.testing.assert_close((likelihood / (pi @ likelihood)).mean(1), torch.ones(2), rtol=0, atol=1e-4)
    assert 0.05 < float(pi[0]) < 0.95


def test_a_client_that_took_no_part_gets_what_it_would_have_learned() -> None:
    data = federation()
    run = train(FedEM(models=2), data, rounds=30)
    for client, (x, y) in enumerate(clients_of(data)):
        weights, own = run.for_new_client(x, y).module.log_weights.exp(), run.state.own["pi"][client]
        assert len(weights) == 2
        torch.testing.assert_close(weights, own, rtol=0, atol=0.1)
