"""``fedfew.train``: seeds, memory, devices, and settings that are refused."""

import gc

import pytest
import torch

import fedfew
from fedfew import FedAvg, FedFew
from tests.helpers import difference, federation, same_run
from tests.training.small import FEDERATION, train


def test_learning_helps():
    run = train(FedAvg(), data=fedfew.data.digits(clients=5, partition="iid"), model="mlp", rounds=15)
    assert run.history.served_accuracy[-1].mean() > 0.85 > 0.7 > run.history.served_accuracy[0].mean()


def test_the_seed_decides_everything():
    same_run(train(seed=4), train(seed=4))
    assert difference(train(seed=4), train(seed=5)) > 0.01
    same_run(train(model="linear", seed=1), train(model="linear", seed=1))


def test_chunks_are_chosen_to_fit(monkeypatch):
    assert train().settings["chunk"] == 4
    monkeypatch.setattr("fedfew.engines.memory.ON_A_CPU", 1)
    assert train().settings["chunk"] == 1


def test_a_full_gpu_is_answered_with_what_to_change(monkeypatch):
    def full(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 11 GiB. GPU 0 has …")

    monkeypatch.setattr("fedfew.training.api.RoundLoop.run", full)
    words = r"full with 4 clients at once, 2 models each: .*\(--chunk 2\).* PyTorch says: CUDA out of memory$"
    with pytest.raises(MemoryError, match=words):
        train(FedFew(models=2))


def test_features_that_stay_in_host_memory_train_the_same(monkeypatch):
    kept = []
    original = fedfew.Federation.to
    monkeypatch.setattr("fedfew.training.api.too_large", lambda *_: True)
    monkeypatch.setattr(fedfew.Federation, "to", lambda self, *a, **k: kept.append(k) or original(self, *a, **k))
    same_run(train(seed=3), train(seed=3))
    assert kept == [{"stream": True}] * 2
    streamed = FEDERATION.to("meta", stream=True)  # a device that holds no numbers: what stayed behind still has them
    assert torch.equal(streamed.train.x, FEDERATION.train.x)
    assert streamed.train.y.is_meta


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number ≥ 1, not 0"),
        ({"local_epochs": 0}, "local_epochs must be"),
        ({"seed": 2**64}, "seed must be a whole number from −2⁶³ to 2⁶⁴ − 1, not 18446744073709551616"),  # of 64 bits all 0
        ({"batch_size": 0}, "batch_size must be"),
        ({"lr": -1}, "lr must be"),
        ({"lr": float("nan")}, "lr must be"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"weight_decay": -0.1}, "weight_decay must be"),
        ({"participation": 0}, "participation must be"),
        ({"score_every": 0}, "score_every must be"),
        ({"checkpoint_every": 0}, "checkpoint_every must be"),
        ({"chunk": 0}, "chunk must be"),
        ({"engine": "fast"}, "engine must be"),
        ({"device": "gpu"}, "device must be"),
        ({"method": "fedfw"}, "did you mean 'fedfew'"),
        ({"model": "mpl"}, "did you mean 'mlp'"),
        ({"method": FedFew(models=5)}, r"models must be at most the number of clients \(4\), not 5"),
        ({"method": FedFew(models=2, preference=(1.0,))}, "preference must be one number for each of 4 clients"),
        ({"resume": True}, "resume needs folder"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        train(**settings)


def test_data_that_are_not_loaded_are_answered_with_what_loads_them():
    with pytest.raises(TypeError, match=r"train needs a Federation, not str: fedfew\.data\.load"):
        fedfew.train("digits")


@pytest.mark.parametrize(("method", "named"), [(FedFew, "the class FedFew"), (3, "3")])
def test_what_is_no_method_is_named(method, named):
    with pytest.raises(TypeError, match=rf"a name or a method with its settings, such as FedFew\(models=4\), not {named}"):
        train(method=method)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_no_gpu():
    with pytest.raises(ValueError, match="no CUDA GPU that torch can use: choose cpu, or auto"):
        train(device="cuda")


def test_data_given_to_load_are_answered_with_what_loads_data(tmp_path):
    (tmp_path / "patients.csv").write_text("age,label\n30,1\n")
    for given, named in ((FEDERATION, "a Federation was given"), (tmp_path / "patients.csv", "patients.csv is a file")):
        with pytest.raises(
            TypeError, match=rf"reads the folder of a run, but .*{named}\. Data are loaded with fedfew\.data\.load"
        ):
            fedfew.load(given)


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
def test_it_trains_inside_no_grad_and_inference_mode_too(engine):
    data = federation()
    expected = fedfew.train(data, "linear", "fedfew", rounds=2, engine=engine)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            run = fedfew.train(data, "linear", "fedfew", rounds=2, engine=engine)
        assert (run.history.served_loss == expected.history.served_loss).all()


@pytest.mark.parametrize("engine", ["sequential", "threaded", "stacked"])
def test_a_run_leaves_nothing_of_its_models_in_memory(engine):
    def parameters() -> int:
        gc.collect()
        return sum(type(kept) is torch.nn.Parameter for kept in gc.get_objects())

    train(model="mlp", engine=engine)
    before = parameters()
    train(model="mlp", engine=engine)
    assert parameters() == before
