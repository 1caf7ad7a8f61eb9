"""A new client without labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

import fedfew
from fedfew.training import unlabelled
from fedfew.training.label_prior import SMOOTHING, estimated_log_prior
from tests.training.small import federation, linear

SHORT = {"rounds": 2, "batch_size": 5, "lr": 0.1, "device": "cpu"}


def test_models_weigh_by_their_entropy():
    """Two classes: one model gives 0.9 and 0.1 for all inputs, the other 0.6 and 0.4."""
    p = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64)
    logits = [row.log().expand(7, 2) for row in p]
    entropy = -(p * p.log()).sum(1)
    weights, prior = unlabelled.choose(logits, 0.0, mixture=True)
    torch.testing.assert_close(weights, (-entropy / unlabelled.TEMPERATURE).softmax(0))
    assert prior is None
    assert unlabelled.choose(logits, 0.0, mixture=False)[0].tolist() == [1, 0]


def test_the_prior_counts_what_the_weighted_models_say():
    """Nine inputs of which a certain model puts six in class 0; the other model says nothing of any."""
    certain = 100 * torch.eye(3)[torch.tensor([0] * 6 + [1] * 2 + [2])]
    weights, prior = unlabelled.choose([torch.zeros(9, 3), certain], 2.0, mixture=False)
    assert weights.tolist() == [0, 1]
    counts = torch.tensor([6, 2, 1], dtype=torch.float64) + SMOOTHING
    torch.testing.assert_close(prior, 2 * (counts / counts.sum()).log(), rtol=1e-4, atol=1e-4)


def test_the_prior_counts_in_the_entropies_and_the_weights_in_the_prior():
    """The same by scipy and numpy, for two models that disagree."""
    logits = np.random.default_rng(0).normal([0.0, 0.5, 1.0], [[[1.5]], [[2.5]]], size=(2, 40, 3))

    def prior_of(scores):
        return estimated_log_prior(torch.from_numpy(scores), 3).numpy()

    entropies = np.array([entropy(softmax(one + prior_of(one), 1), axis=1).mean() for one in logits])
    v = softmax(-entropies / unlabelled.TEMPERATURE)
    expected = prior_of(np.log(v @ softmax(logits, 2).reshape(2, -1)).reshape(40, 3))
    weights, prior = unlabelled.choose([torch.from_numpy(one) for one in logits], 1.0, mixture=True)
    assert 0.05 < v[0] < 0.95  # both count
    np.testing.assert_allclose(weights, v)
    np.testing.assert_allclose(prior, expected)


def test_a_model_that_is_not_finite_has_no_weight():
    weights, prior = unlabelled.choose([torch.full((4, 2), torch.nan), torch.tensor([[3.0, 0.0]] * 4)], 1.0, mixture=True)
    assert weights.tolist() == [0, 1]
    assert prior is not None
    assert prior.isfinite().all()


@pytest.mark.parametrize("serve", ["best", "mixture"])
def test_a_run_serves_a_client_without_labels(serve):
    data = federation()
    run = fedfew.train(data, linear, fedfew.FedFew(models=2), label_prior="client", serve=serve, **SHORT)
    x = data.test.of(0)[0]
    new = run.for_new_client(x)
    with torch.no_grad():
        logits = [model(x) for model in run.models]
        weights, prior = unlabelled.choose(logits, 1.0, mixture=serve == "mixture")
        expected = sum(w * (scores + prior).softmax(1) for w, scores in zip(weights, logits, strict=True))
    np.testing.assert_allclose(new.predict_proba(x), expected, rtol=1e-4)
    assert len(new.module.models) == {"best": 1, "mixture": 2}[serve]


def test_what_needs_labels_says_so():
    data = federation()
    one = fedfew.train(data, linear, "fedavg", **SHORT)
    x = data.test.of(0)[0]
    np.testing.assert_array_equal(one.for_new_client(x).predict(x), one.predict(x))  # nothing to choose
    run = fedfew.train(data, linear, **SHORT)
    for leaf in run.state.server.values():
        for tensor in leaf.values() if isinstance(leaf, dict) else [leaf]:
            tensor.fill_(torch.nan)
    with pytest.raises(ValueError, match="none of the 3 models has finite outputs"):
        run.for_new_client(x)


def test_a_client_without_samples_is_refused():
    run = fedfew.train(federation(), linear, fedfew.FedFew(models=2), **SHORT)
    with pytest.raises(ValueError, match="x is empty: at least one sample is needed to choose by"):
        run.for_new_client(federation().test.x[:0].numpy())


def test_a_method_without_whole_models_on_the_server_has_none_for_a_new_client():
    run = fedfew.train(federation(), "mlp", "fedrep", **SHORT)
    with pytest.raises(ValueError, match="fedrep keeps no whole models on the server, so a client that took no part has none"):
        run.for_new_client(federation().test.x.numpy())
