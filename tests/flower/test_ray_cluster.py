"""Flower's simulation on a Ray cluster of two nodes: clients are trained on both, and the result is the simulator's."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from examples.localhost import FOLDER, free_port

import fedfew
from tests.flower import support
from tests.flower.support import APP, deployment, same_as_simulated, simulated, tiny

DOC = Path(__file__).parents[2] / "docs" / "several-devices.md"


def make(config):
    """The data of one client; leaves a file that is named after the Ray node it is loaded on."""
    import ray

    Path(os.environ[FOLDER], f"node-{ray.get_runtime_context().get_node_id()}").touch()
    return support.make(config)


@pytest.mark.deploy
def test_clients_are_trained_on_both_nodes_and_the_result_is_the_same(tmp_path, monkeypatch):
    address, sessions = f"127.0.0.1:{free_port()}", tempfile.mkdtemp(prefix="ray-")  # a socket's path must be short
    monkeypatch.setitem(support.ENVIRONMENT, "RAY_ADDRESS", address)
    runs = tmp_path / "run"
    try:
        with deployment(tmp_path, simulation=True) as here:
            one = ("--num-cpus", "1", "--num-gpus", "0", "--object-store-memory", "200000000", "--block")
            head = ("--head", "--port", address.partition(":")[2], "--temp-dir", sessions, "--include-dashboard", "false")
            for name, words in (("head", head), ("worker", ("--address", address))):
                node = here.start(name, "ray", "start", *words, *one)
                here.wait_for(lambda node=node: "Ray runtime started" in node.text(), f"Ray's {name}", 600, alive=(name,))
            config = {"data": "tests.flower.test_ray_cluster:make", "method": "ditto", "rounds": 3, "folder": str(runs)}
            output = here.run(APP, config, nodes=4)
            assert runs.is_dir(), output[-3000:]
            assert len(list(tmp_path.glob("node-*"))) == 2, output[-3000:]
            same_as_simulated(fedfew.load(runs, tiny), simulated(method="ditto", rounds=3), tmp_path / "sites")
    finally:
        shutil.rmtree(sessions, ignore_errors=True)


def test_the_commands_of_the_docs_are_those_that_are_tested():
    text = DOC.read_text(encoding="utf-8")
    for words in (
        "ray start --head --port 6379",
        "ray start --address MAIN:6379",
        "export RAY_ADDRESS=MAIN:6379",
        "num-supernodes=100",
    ):
        assert words in text
