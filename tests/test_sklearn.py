"""Estimators in scikit-learn's manner."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn import set_config
from sklearn.base import clone
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedfew
from fedfew.sklearn import FedFewClassifier, FedFewRegressor

QUICK = {"engine": "sequential", "rounds": 10, "model": "linear", "lr": 0.5}
PART = np.array(["Basel", "Bern"]).repeat(60)


def opposite(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two clients whose labels are the opposite of each other's."""
    x = np.random.default_rng(seed).normal(size=(120, 4))
    return x, np.where((x[:, 0] > 0) == (PART == "Basel"), "ill", "well")


@pytest.mark.slow  # half a minute
@parametrize_with_checks([made(engine="sequential", rounds=10, model="linear") for made in (FedFewClassifier, FedFewRegressor)])
def test_what_scikit_learn_expects(estimator, check) -> None:
    """All checks of its version; it leaves out by itself what an estimator does not claim (sparse input, sample weights)."""
    check(estimator)


def test_every_client_has_its_model() -> None:
    x, y = opposite()
    few = FedFewClassifier(n_models=2, **QUICK).fit(x, y, groups=PART)
    assert few.clients_.tolist() == ["Basel", "Bern"]
    assert few.classes_.tolist() == ["ill", "well"]
    assert few.score(x, y, groups=PART) > 0.95
    assert FedFewClassifier(n_models=1, **QUICK).fit(x, y, groups=PART).score(x, y, groups=PART) < 0.7  # no one model fits both
    np.testing.assert_allclose(few.predict_proba(x, groups=PART).sum(1), 1)
    assert (few.predict(x[:5], groups=["Basel"] * 5) != few.predict(x[:5], groups=["Bern"] * 5)).all()


@pytest.mark.parametrize("numbers", [[1, 2], [10.0, 1.0], [0, 1]])
def test_numbers_as_groups_are_names_not_positions(numbers: list[float]) -> None:
    """Of the clients 1 and 2 the second one was predicted for by the model of the first, whose name is its position."""
    x, y = opposite()
    groups = np.where(np.asarray(PART) == "Basel", *numbers)
    few = FedFewClassifier(n_models=2, **QUICK).fit(x, y, groups=groups)
    for number in numbers:
        at = groups == number
        assert few.score(x[at], y[at], groups=groups[at]) > 0.95
        assert few.score(x[at], y[at], groups=[int(number)] * at.sum()) > 0.95


def test_mistakes_are_named() -> None:
    x, y = opposite()
    with pytest.raises(ValueError, match=r"groups has values of types that cannot be compared .*: give all as text"):
        FedFewClassifier(**QUICK).fit(x, y, groups=[None, *PART[1:]])
    for name, parameter in (("lr", "lr"), ("seed", "random_state")):
        with pytest.raises(ValueError, match=f"settings: {name} is the parameter {parameter} of the estimator"):
            FedFewClassifier(**QUICK, settings={name: 1}).fit(x, y, groups=PART)


def test_groups_are_needed_where_models_differ() -> None:
    x, y = opposite()
    few = FedFewClassifier(n_models=2, **QUICK).fit(x, y, groups=PART)
    with pytest.raises(ValueError, match=r"groups is missing: the estimator was fitted for 2 clients.*predict\(X, groups=…\)"):
        few.predict(x)
    with pytest.raises(ValueError, match=r"clients that took no part in fit: Chur, Genf\. .*for_new_client"):
        few.predict(x[:2], groups=["Genf", "Chur"])
    with pytest.raises(ValueError, match="groups has 3 values for 2 rows"):
        few.predict(x[:2], groups=PART[:3])
    with pytest.raises(ValueError, match=r"groups is one value, 'Basel': give one per row"):
        few.predict(x[:2], groups="Basel")
    one = FedFewClassifier(n_models=1, method="fedavg", **QUICK).fit(x, y, groups=PART)
    np.testing.assert_array_equal(one.predict(x), one.predict(x, groups=PART))


def test_without_groups_there_is_one_client() -> None:
    x, y = opposite()
    alone = FedFewClassifier(n_models=3, **QUICK).fit(x[:60], y[:60])
    assert (len(alone.clients_), len(alone.run_.models)) == (1, 1)
    assert alone.score(x[:60], y[:60]) > 0.95


@pytest.mark.slow
def test_numbers_have_a_model_per_client_too() -> None:
    x = np.random.default_rng(0).normal(3, 10, size=(120, 4))
    y = np.where(PART == "Basel", 1, -1) * x[:, 0] + 1000
    few = FedFewRegressor(n_models=2, **QUICK).fit(x, y, groups=PART)
    assert few.score(x, y, groups=PART) > 0.95
    assert FedFewRegressor(n_models=1, **QUICK).fit(x, y, groups=PART).score(x, y, groups=PART) < 0.5  # no one model fits both
    assert few.predict(x, groups=PART) == pytest.approx(y, abs=10)
    both = FedFewRegressor(**QUICK).fit(x[:60], np.stack([y[:60], 2 * y[:60]], axis=1))
    assert both.predict(x[:5]) == pytest.approx(np.stack([y[:5], 2 * y[:5]], axis=1), rel=0.02)


def test_features_are_standardised_unless_asked_not_to() -> None:
    x, y = opposite()
    x, y = 1000 + 100 * x[:60], y[:60]
    assert FedFewClassifier(**QUICK).fit(x, y).score(x, y) > 0.95
    plain = FedFewClassifier(**QUICK | {"lr": 1e-3}, standardize=False).fit(x, y)
    assert plain.score(x, y) < 0.9
    assert (plain.mean_.tolist(), plain.scale_.tolist()) == ([0], [1])


@pytest.mark.slow
def test_parameters_reach_the_training() -> None:
    x, y = opposite()
    made = clone(
        FedFewClassifier(**QUICK, settings={"optimizer": "adam", "score_every": 5}).set_params(n_models=2, random_state=7)
    )
    settings = made.fit(x, y, groups=PART).run_.settings
    wanted = {"rounds": 10, "lr": 0.5, "batch_size": 20, "local_epochs": 1, "seed": 7, "optimizer": "adam", "model": "linear"}
    assert {name: settings[name] for name in wanted} == wanted
    assert settings["method"]["models"] == 2
    assert len(made.run_.history) == 2
    own = FedFewClassifier(**QUICK | {"method": fedfew.Ditto(), "rounds": 1}).fit(x, y, groups=PART)
    assert own.run_.settings["method"]["name"] == "ditto"
    drawn = [FedFewClassifier(**QUICK, random_state=np.random.RandomState(s)).fit(x, y).run_.settings["seed"] for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(ValueError, match="there is no method 'fedfwe'"):
        FedFewClassifier(**QUICK | {"method": "fedfwe"}).fit(x, y)


def test_it_takes_data_frames_and_can_be_pickled() -> None:
    x, y = opposite()
    frame = pd.DataFrame(x, columns=list("abcd"))
    few = FedFewClassifier(n_models=2, **QUICK).fit(frame, pd.Series(y), groups=pd.Series(PART))
    assert few.feature_names_in_.tolist() == list("abcd")
    back = pickle.loads(pickle.dumps(few))
    np.testing.assert_array_equal(back.predict(frame, groups=PART), few.predict(frame, groups=PART))


@pytest.mark.slow
def test_in_a_pipeline_groups_are_routed() -> None:
    x, y = opposite()
    set_config(enable_metadata_routing=True)
    try:
        few = FedFewClassifier(n_models=2, **QUICK)
        few.set_fit_request(groups=True).set_score_request(groups=True)
        whole = make_pipeline(StandardScaler(), few)
        found = cross_validate(whole, x, y, params={"groups": PART}, cv=4, scoring=None)
        assert found["test_score"].mean() > 0.9
    finally:
        set_config(enable_metadata_routing=False)


@pytest.mark.parametrize("made", [FedFewRegressor, FedFewClassifier])
def test_clients_that_one_round_fits_to_any_model_find_their_groups(made) -> None:
    """With losses reported while clients train, which then hardly differ between models, R² was 0.5."""
    draw = np.random.default_rng(0)
    x, client = draw.normal(size=(1200, 1)), np.arange(1200) % 3
    y = np.where(client == 1, -1, 1) * x[:, 0] + 0.05 * draw.normal(size=1200)
    y = y if made is FedFewRegressor else y > 0
    settings = {} if made is FedFewRegressor else {"local_epochs": 5}
    few = made(n_models=2, engine="sequential", rounds=15, batch_size=10, **settings).fit(x, y, groups=client)
    assert few.run_.method == fedfew.FedFew(models=2, loss_at="received")
    assert few.score(x, y, groups=client) > 0.95
