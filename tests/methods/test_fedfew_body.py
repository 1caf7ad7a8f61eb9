"""FedFew with one body and K heads: a round against plain autograd, what travels, and its limits."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedfew
from fedfew import FedAvg, FedFew, random_streams, scalarization
from fedfew.stack import named_leaves
from tests.helpers import difference, federation, same_history

FEDERATION = federation(sizes=(16, 24, 8), classes=3)
MU = 0.05


def model():
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def train(method, rounds=1, **settings):
    return fedfew.train(
        FEDERATION, model, method, rounds=rounds, **({"batch_size": 8, "lr": 0.3, "engine": "stacked"} | settings)
    )


def fresh(k):
    with torch.random.fork_rng():
        torch.manual_seed(int(random_streams.count(random_streams.INIT, 0, k)))
        return model()


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
def test_two_rounds_by_plain_autograd(engine):
    """Written out for each client: heads step along their own loss, the body along Σ_k w_k L_k; then α and α·w on the server."""
    run = train(FedFew(models=2, mu=MU, share="body", scale_free=False), rounds=2, engine=engine)
    body, heads = fresh(0)[0], [fresh(k)[2] for k in range(2)]
    server = [*body.parameters(), *heads[0].parameters(), *heads[1].parameters()]
    share = FEDERATION.train.count / FEDERATION.train.count.sum()
    w = torch.full((3, 2), 0.5)
    for number in (1, 2):
        order = random_streams.order(0, number, FEDERATION.ids, 1, 0, FEDERATION.train.count, FEDERATION.train.longest)
        updates, losses = [], torch.zeros(3, 2)
        for i in range(3):
            x, y = FEDERATION.train.of(i)
            params = [p.detach().clone().requires_grad_() for p in server]
            for batch in order[i, 0, : len(y)].split(8):
                features = torch.tanh(F.linear(x[batch], params[0], params[1]))
                each = [F.cross_entropy(F.linear(features, params[2 + 2 * k], params[3 + 2 * k]), y[batch]) for k in range(2)]
                for_body = torch.autograd.grad(sum(w[i, k] * each[k] for k in range(2)), params[:2], retain_graph=True)
                for_heads = torch.autograd.grad(sum(each), params[2:])
                losses[i] += torch.stack(each).detach() * len(batch) / len(y)
                params = [(p - 0.3 * g).detach().requires_grad_() for p, g in zip(params, (*for_body, *for_heads), strict=True)]
            updates.append([(p - q).detach() for p, q in zip(params, server, strict=True)])
        alpha, weight = scalarization.weights(share[:, None] * losses, MU)
        w = weight
        alpha_w = alpha[:, None] * weight
        normalised = alpha_w / alpha_w.sum(0)
        moves = [sum(alpha[i] * updates[i][j] for i in range(3)) for j in range(2)]
        moves += [sum(normalised[i, j // 2] * updates[i][2 + j] for i in range(3)) for j in range(4)]
        server = [p + m for p, m in zip(server, moves, strict=True)]
    state = dict(named_leaves(run.state.server))
    expected = {"body/0.weight": server[0][None], "body/0.bias": server[1][None]}
    expected |= {"heads/2.weight": torch.stack(server[2::2]), "heads/2.bias": torch.stack(server[3::2])}
    for name, value in expected.items():
        assert torch.allclose(state[name], value, atol=1e-5), name
    assert np.allclose(run.history.losses[-1], losses, atol=1e-5)


def test_a_message_carries_one_body_and_k_heads():
    run = train(FedFew(models=3, share="body"))
    body, head = 5 * 4 + 4, 4 * 3 + 3
    assert run.history.bytes_down[-1] == 3 * 4 * (body + 3 * head)
    assert run.history.bytes_up[-1] == 3 * 4 * (body + 3 * head + 3)
    bodies = {tuple(m[0].weight.flatten().tolist()) for m in run.models}
    heads = {tuple(m[2].weight.flatten().tolist()) for m in run.models}
    assert (len(bodies), len(heads)) == (1, 3)


def test_one_head_is_the_paper_s_single_model():
    one, other = train(FedFew(models=1, share="body"), rounds=3), train(FedFew(models=1), rounds=3)
    same_history(one, other, 1e-5)
    whole = {path.split("/")[1]: t for path, t in named_leaves(one.state.server)}
    for name, t in named_leaves(other.state.server):
        assert torch.allclose(whole[name], t, atol=1e-6)


def test_engines_and_chunks_agree_with_preferences_and_absentees():
    method = FedFew(models=2, mu=0.3, share="body", preference=(1.0, 3.0, 0.5), ideal=(0.1, 0.0, 0.2))
    settings = {"rounds": 4, "participation": 0.7, "momentum": 0.5, "local_epochs": 2}
    runs = [train(method, **settings, engine=e, chunk=c) for e, c in (("stacked", None), ("sequential", None), ("stacked", 1))]
    assert difference(runs[0], runs[1]) < 1e-5
    assert difference(runs[0], runs[2]) < 1e-5
    plain = train(FedFew(models=2, mu=0.3, share="body"), **settings)
    assert np.abs(runs[0].history.served_loss - plain.history.served_loss).max() > 1e-4


def test_large_mu_and_equal_clients_make_the_body_fedavg_s():
    """All weights alike, one head: FedAvg where clients have equally many samples."""
    equal = federation(sizes=(16, 16))
    settings = {"rounds": 3, "batch_size": 8, "lr": 0.3, "engine": "stacked"}
    run = fedfew.train(equal, model, FedFew(models=1, mu=1e6, share="body"), **settings)
    average = fedfew.train(equal, model, FedAvg(), **settings)
    assert np.allclose(run.history.served_loss, average.history.served_loss, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": "head"}, "share must be 'none' or 'body'"),
        ({"share": "body", "send": "gradient"}, "send must be 'update' where share is 'body'"),
        ({"share": "body", "init_models": "copies"}, "init_models must be 'distinct' where share is 'body'"),
        ({"head": "2"}, "head must be None where share is 'none'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        FedFew(models=2, **settings)


def test_the_head_can_be_named():
    named, found = train(FedFew(models=2, share="body", head="2")), train(FedFew(models=2, share="body"))
    assert difference(named, found) == 0
    with pytest.raises(ValueError, match="no head in the model called 'fc'"):
        train(FedFew(models=2, share="body", head="fc"))
