"""Two real processes that train one federation: the same as one, in both; nothing lost, nobody left waiting."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedfew
from fedfew.cli import app
from fedfew.stack import tree_map
from fedfew.training import checkpoint, distributed
from fedfew.training.distributed import Group, shares, stoppable
from tests.held_method import GO_ON, Hold
from tests.methods import small
from tests.methods.properties import CLOSE
from tests.methods.small import assert_same, federation, normalised, tensors, train

pytestmark = pytest.mark.slow  # other processes are started

ROOT = Path(__file__).parents[2]


def spiked():
    """A federation of which one client's loss is never finite."""
    clients = small.clients_of(federation())
    clients[1] = (clients[1][0] * 1e30, clients[1][1])
    return fedfew.Federation.from_arrays(clients, [federation().test.of(i) for i in range(6)], classes=3)


CASES = {
    "fedfew": lambda: train(fedfew.FedFew(models=2), participation=0.7, engine="stacked"),
    "fedfew in chunks": lambda: train(fedfew.FedFew(models=2, share="body"), chunk=1),
    "ditto": lambda: train(fedfew.methods.make("ditto"), participation=0.7),  # clients keep a model
    "fedamp": lambda: train(fedfew.methods.make("fedamp")),  # the server keeps every client's model
    "local": lambda: train(fedfew.methods.make("local"), participation=0.7),  # nothing is sent
    "one client a round": lambda: train(fedfew.methods.make("ditto"), participation=0.1),  # one process has nothing to do
    "two clients, three rounds": lambda: train(fedfew.FedAvg(), federation((5, 9)), participation=1.0),
    "a client left out": lambda: train(fedfew.FedAvg(), spiked(), participation=1.0),
    "batch norm at home": lambda: train(fedfew.FedAvg(), federation((7, 12, 6, 10, 16, 8)), model=normalised, batch_norm="local"),
    "auto": lambda: train(fedfew.FedAvg(), engine="auto"),
    "stopped by a callback": lambda: train(fedfew.FedAvg(), rounds=6, on_round=lambda p: "stop" if p.round == 2 else None),
    "six rounds": lambda: train(fedfew.FedFew(models=2), rounds=6),
    "the strong recipe": lambda: train(fedfew.FedFew(models=2), recipe="strong"),
    "checked losses": lambda: train(fedfew.FedFew(models=2, mu=0.002), check_share=0.3, participation=1.0, seed=7),
    "a robust mean": lambda: train(fedfew.FedAvg(), aggregator="trimmed-mean", participation=1.0),
    "differential privacy": lambda: train(fedfew.FedAvg(), dp_noise=1.0, dp_clip=0.5),
    "a metric of one's own": lambda: train(fedfew.FedAvg(), metrics={"largest": lambda outputs, y: float(outputs.amax())}),
} | {f"method {name}": partial(train, fedfew.methods.make(name), rounds=2) for name in fedfew.methods.METHODS}

BEGIN = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
rank, folder = int(sys.argv[1]), sys.argv[2]
import torch, torch.distributed as dist
torch.set_num_threads(1)
from tests.training.test_distributed import *
dist.init_process_group("gloo", init_method="file://" + folder + "/meeting", rank=rank, world_size=2)
"""
CASE_BY_CASE = """
try:
    train(fedfew.FedAvg(), lr=0.1 + rank)
except distributed.PeerError as error:
    refused = str(error)
results = {name: tensors(case()) for name, case in CASES.items()}
told = []
keep = {"folder": folder + "/run", "on_round": lambda progress: told.append(progress.round)}
if rank == 1:
    checkpoint.write = None  # would fail if called
train(fedfew.FedFew(models=2), rounds=3, **keep)
results["resumed"] = tensors(train(fedfew.FedFew(models=2), rounds=6, resume=True, **keep))
torch.save((refused, told, results), folder + f"/{rank}.pt")
dist.destroy_process_group()
"""
ONE_FAILS = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Fails(fedfew.FedAvg):
    def client(self, received, own, local):
        if rank == 1 and local.round == 3:
            raise MemoryError("no room left")
        return super().client(received, own, local)

try:
    train(Fails(), rounds=6, folder=folder + "/run", checkpoint_every=100)
finally:
    dist.destroy_process_group()  # as PyTorch asks for and fedfew run does: without, a process may abort as it ends
"""


def two_processes(program, folder):
    """Run a program as rank 0 and rank 1: exit codes and what was said on stderr."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + program, str(rank), str(folder)], stderr=subprocess.PIPE, text=True, env=environment
        )
        for rank in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=1200)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], said


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    codes, said = two_processes(CASE_BY_CASE, folder)
    assert codes == [0, 0], said
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_what_one_does(case, together):
    first, second = (results[case] for _, _, results in together)
    assert_same(first, second)
    assert_same(tensors(CASES[case]()), first, CLOSE)


def test_a_resumed_run_is_the_same_to_the_last_bit_and_the_first_alone_writes_and_tells(together):
    (_, told, results), (_, told_second, _) = together
    assert_same(results["six rounds"], results["resumed"])
    assert (told, told_second) == ([1, 2, 3, 4, 5, 6], [])


def test_processes_that_train_something_else_are_refused_by_name(together):
    assert "lr is 0.1 in process 1, but 1.1 in process 2" in together[0][0]
    assert "lr is 1.1 in process 2, but 0.1 in process 1" in together[1][0]


@pytest.mark.slow
def test_one_that_fails_ends_both_and_no_round_is_lost(tmp_path):
    codes, said = two_processes(ONE_FAILS, tmp_path)
    assert codes == [1, 1]
    assert "MemoryError: no room left" in said[1]
    assert "PeerError: process 1 of 2 cannot reach the others any more: one of them has ended" in said[0]
    assert [p.name for p in checkpoint.checkpoints(tmp_path / "run")] == ["round-000002"]


def torchrun(*arguments, folder, program="fedfew", **environment):
    """--standalone: on a free port, not on torchrun's own, which another test may use at the same time."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", program, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"} | environment
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


@pytest.mark.slow
def test_ctrl_c_under_torchrun_keeps_the_last_round_and_one_process_goes_on(tmp_path):
    settings = ("--clients", "4", "--method", "local", "--rounds", "20", "--score-every", "10", "--checkpoint-every", "20")
    hold = Hold(tmp_path)
    reach = {GO_ON: hold.environment[GO_ON]}
    process = torchrun("run", *settings, "--folder", "run", folder=tmp_path, program="tests.held_method", **reach)
    try:
        hold.wait(processes=2)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        shown, said = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert "local on digits" in shown
    assert process.returncode != 0
    (kept,) = checkpoint.checkpoints(tmp_path / "run")
    done = checkpoint.read(kept).round
    assert done == 3  # each was held in the fourth
    assert said.count(f"Stopped after round {done}. To continue: fedfew run --resume --folder run") == 1
    more = ["run", "--resume", "--folder", str(tmp_path / "run"), "--rounds", str(done + 2)]
    assert CliRunner().invoke(app, more).exit_code == 0
    assert fedfew.load(tmp_path / "run").round == done + 2


@pytest.mark.slow
def test_the_command_line_speaks_once(tmp_path):
    process = torchrun("run", "--clients", "3", "--rounds", "2", "--json", folder=tmp_path)
    shown, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert shown.count('"folder": "runs/digits-fedfew-0"') == 1
    assert said.count("round 2/2") == 1
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["digits-fedfew-0"]


# -- without other processes -----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 5))
def test_shares_are_whole_and_even(counts, parts):
    dealt = shares(counts, parts)
    assert sorted(i for part in dealt for i in part) == list(range(len(counts)))
    assert all(part == sorted(part) for part in dealt)
    loads = [sum(counts[i] for i in part) for part in dealt]
    assert max(loads) - min(loads) <= max(counts, default=0)
    assert dealt == shares(counts, parts)


def test_a_group_of_one_does_nothing():
    alone = distributed.group()
    assert (alone.first, alone.size) == (True, 1)
    clients = torch.tensor([3, 1, 2])
    assert alone.share(clients, torch.tensor([5, 6, 7])) is clients
    assert alone.everyones("word") == ["word"]
    tree = tree_map(torch.clone, {"a": clients})
    assert next(alone.everyones_trees(tree, torch.device("cpu"))) is tree
    with distributed.joined() as first:
        assert first
    assert distributed.device_of(alone, torch.device("cuda", 3)) == torch.device("cuda", 3)


def test_a_gpu_for_each_process(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    second = Group(1, 2)
    assert distributed.device_of(second, torch.device("cuda")) == torch.device("cuda", 1)
    assert chosen == [1]
    assert distributed.device_of(second, torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(ValueError, match=r"device is 'cuda:0', but there are 2 processes.*use 'cuda'"):
        distributed.device_of(second, torch.device("cuda:0"))
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match=r"this machine has 2 GPUs, too few.*--nproc-per-node 2"):
        distributed.device_of(Group(2, 3), torch.device("cuda"))


def test_what_runs_in_one_process_says_so(monkeypatch):
    distributed.only_alone("compare")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="'fedfew compare' runs in one process, but torchrun started 3"):
        distributed.only_alone("compare")


def test_only_the_first_of_several_signals_stops_a_run():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stopped = 0
    with stoppable(Group(rank=0, size=2)):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            try:
                os.kill(os.getpid(), number)
            except KeyboardInterrupt:
                stopped += 1
    assert stopped == 1
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
