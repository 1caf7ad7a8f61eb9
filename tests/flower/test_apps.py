"""The server app and the client app with Flower's own messages, but a grid in this process."""

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

import fedfew
from fedfew.flower import FedFewStrategy, client_app, server_app
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.grid import FlowerNetwork
from fedfew.flower.messages import TRAIN, RefusedError, SiteMessage
from fedfew.flower.server_loop import ServerLoop
from fedfew.util.files import HOLDER
from tests.flower.support import FEDERATION, tiny

CONFIG = {"method": "fedfew", "model": "mlp", "rounds": 2, "batch-size": 8, "lr": 0.1, "score-every": 2, "clients": 4}


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Flower's messages ask who writes them."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """Messages are answered by the client app when they are sent."""

    def __init__(self, folder, app) -> None:
        self.folder, self.app = folder, app
        self.sent: list[Message] = []
        self.replies: dict[str, Message] = {}
        self.errors: dict[str, Error] = {}  # by type of message: what client 3's node answers with instead

    def get_node_ids(self):
        return [100, 101, 102, 103]

    def get_nodes(self):
        return [NodeInfo(node_id=node) for node in self.get_node_ids()]

    def push_messages(self, messages):
        for message in messages:
            self.sent.append(message)
            message.metadata.__dict__["_message_id"] = f"m{len(self.sent)}"
            client = message.metadata.dst_node_id - 100
            node = {"client": client, "data": "tests.flower.support:make", "state": str(self.folder / "sites")}
            context = Context(1, 1, node, RecordDict(), CONFIG)
            error = self.errors.get(message.metadata.message_type) if client == 3 else None
            reply = self.app(message, context) if error is None else Message(error, reply_to=message)
            self.replies[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, ids):
        stray = Message(RecordDict(), reply_to=self.sent[0])
        stray.metadata.__dict__["_reply_to_message_id"] = "another's"
        return [stray, *(self.replies.pop(number) for number in list(ids) if number in self.replies)]


def run_config(folder):
    return Context(1, 1, {}, RecordDict(), CONFIG | {"folder": str(folder / "run")})


def test_the_apps_train_as_the_simulator_does(tmp_path):
    grid = Grid(tmp_path, client_app())
    server_app()(grid, run_config(tmp_path))
    run = fedfew.load(tmp_path / "run")
    oracle = fedfew.train(FEDERATION, "mlp", "fedfew", rounds=2, batch_size=8, lr=0.1, score_every=2, engine="sequential")
    for name in ("losses", "served_accuracy", "choice", "bytes_up", "bytes_down", "alpha"):
        np.testing.assert_allclose(run.history[name], oracle.history[name], rtol=1e-5, err_msg=name)
    assert [message.metadata.message_type for message in grid.sent[::4]] == ["query", "train", "train", "evaluate"]


def test_a_model_of_your_own_and_settings_that_override_the_configuration(tmp_path):
    grid = Grid(tmp_path, client_app(tiny))
    server_app(tiny, method="fedavg", local_epochs=2)(grid, run_config(tmp_path))
    run = fedfew.load(tmp_path / "run", tiny)
    oracle = fedfew.train(FEDERATION, tiny, "fedavg", rounds=2, batch_size=8, lr=0.1, local_epochs=2, engine="sequential")
    np.testing.assert_allclose(run.history.losses[-1], oracle.history.losses[-1], rtol=1e-5)


def test_an_error_of_flowers_is_named_by_its_code_and_its_text_is_not_repeated(tmp_path):
    grid = Grid(tmp_path, client_app(tiny))
    grid.errors["train"] = Error(5, "patient 4711")
    run = FedFewStrategy(DeploymentConfig.read(CONFIG | {"folder": str(tmp_path / "run"), "method": "fedavg"}), tiny).start(grid)
    assert run.state.events == [f"round {n}: client 3 is left out: the node is gone" for n in (1, 2)]
    grid.errors["train"] = Error(99, "patient 4711")
    ids = FlowerNetwork(grid).send({103: SiteMessage(TRAIN, {"round": 1})}, 5)
    ((number, reason),) = FlowerNetwork(grid).receive(dict.fromkeys(ids))
    assert isinstance(reason, RefusedError)
    assert str(reason) == "Flower reports error 99"
    assert ids == {number: 103}


def test_the_server_locks_the_runs_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(ServerLoop, "run", lambda self: (tmp_path / "run" / HOLDER).exists())
    config = DeploymentConfig.read(CONFIG | {"folder": str(tmp_path / "run")})
    assert FedFewStrategy(config, tiny).start(Grid(tmp_path, None)) is True


@pytest.mark.parametrize(
    ("model", "words"),
    [("mpl", "there is no model 'mpl'; did you mean 'mlp'"), ("no_such_module:net", "no_such_module")],
)
def test_a_model_that_is_not_there_is_refused_before_sites_are_asked(tmp_path, model, words):
    grid = Grid(tmp_path, client_app())
    with pytest.raises((ValueError, ImportError), match=words):
        FedFewStrategy(DeploymentConfig.read(CONFIG | {"folder": str(tmp_path / "run"), "model": model})).start(grid)
    assert grid.sent == []


def test_a_folder_that_cannot_be_written_is_refused_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    config = DeploymentConfig.read(CONFIG | {"folder": str(tmp_path / "file"), "method": "fedavg"})
    with pytest.raises(ValueError, match=r"file cannot be written: .*: Not a directory"):
        FedFewStrategy(config, tiny).start(Grid(tmp_path, None))
