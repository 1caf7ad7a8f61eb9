"""Nothing lost: checkpoints, resuming to the last bit, killed processes, damaged and foreign files."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import fedfew
from fedfew import FedAvg, FedFew, LocalOnly
from fedfew.training import checkpoint, checkpoint_writer, loop, round_record, serving
from tests.helpers import federation, linear, same_run

FEDERATION = federation()
SETTINGS = {
    "rounds": 6,
    "batch_size": 8,
    "lr": 0.1,
    "momentum": 0.5,
    "participation": 0.75,
    "engine": "stacked",
    "checkpoint_every": 2,
}


def train(folder, method="fedfew", **settings):
    return fedfew.train(FEDERATION, "linear", method, folder=folder, **(SETTINGS | settings))


@pytest.mark.parametrize("method", [FedFew(models=2, ideal=(0.1, 0.0, 0.2, 0.0)), FedAvg(), LocalOnly()])
def test_save_and_load(method, tmp_path):
    run = fedfew.train(FEDERATION, "linear", method, **SETTINGS)
    run.save(tmp_path)
    back = fedfew.load(tmp_path)
    same_run(run, back)
    assert back.method == method
    assert back.settings == run.settings
    x = FEDERATION.test.x
    assert torch.equal(run.model_of(1)(x), back.model_of(1)(x))


def test_nothing_is_pickled(tmp_path):
    train(tmp_path / "run")
    files = {p.name for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert files == {"state.json", "state.safetensors", ".lock"}
    assert (tmp_path / "run" / ".lock").read_bytes() == b""
    for path in (tmp_path / "run").rglob("*.json"):
        json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("method", [FedFew(models=2), FedAvg(), LocalOnly()])
@pytest.mark.parametrize("stop", [1, 2, 5])
def test_resumed_run_ends_like_an_uninterrupted_one(method, stop, tmp_path):
    def stop_after(progress):
        if progress.round == stop:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        train(tmp_path / "run", method, on_round=stop_after, checkpoint_every=1)
    resumed = train(tmp_path / "run", method, resume=True)
    same_run(resumed, train(None, method))


def test_ctrl_c_keeps_the_last_complete_round(tmp_path):
    def interrupt(progress):
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(fedfew.Interrupted, match="stopped after round 3") as caught:
        train(tmp_path / "run", on_round=interrupt, checkpoint_every=100)
    assert caught.value.run.round == 3
    same_run(train(tmp_path / "run", resume=True), train(None))


def test_checkpoints_take_a_share_of_the_time_at_most(tmp_path, monkeypatch):
    """A tenth, by our own clock: a round takes 1 s, writing 0.1, 0.5 or 2 s. The last round and Ctrl-C's are always written."""
    now, written = 0.0, []
    original = checkpoint.write

    def write(folder, state):
        nonlocal now
        now += takes
        written.append(state.round)
        return original(folder, state)

    def on_round(progress):
        nonlocal now
        now += 1
        if progress.round == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write", write)
    monkeypatch.setattr(checkpoint_writer.time, "perf_counter", lambda: now)
    monkeypatch.setattr(checkpoint_writer, "PATIENCE", 10)
    cases = [(0.1, None, [2, 4, 6, 8]), (0.5, None, [2, 8]), (2.0, None, [2, 22, 42, 50]), (2.0, 27, [2, 22, 27])]
    for takes, stop, want in cases:
        written.clear()
        with suppress(fedfew.Interrupted):
            train(tmp_path / f"{takes}-{stop}", rounds=8 if takes < 1 else 50, on_round=on_round)
        assert written == want


@pytest.mark.parametrize(("owner", "name"), [(serving.Serving, "score"), (LocalOnly, "client"), (loop, "put")])
def test_ctrl_c_in_the_middle_of_a_round_undoes_it(owner, name, tmp_path, monkeypatch):
    """Interrupted while scoring, training, or writing back the clients' own models: the round has not happened."""
    calls = 0
    original = getattr(owner, name)

    def interrupted(*arguments, **keywords):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(fedfew.Interrupted):
        train(tmp_path / "run", LocalOnly(), checkpoint_every=100)
    monkeypatch.undo()
    same_run(train(tmp_path / "run", LocalOnly(), resume=True), train(None, LocalOnly()))


def test_ctrl_c_while_a_round_is_noted_down_comes_after_it(tmp_path, monkeypatch):
    """Held back until the round is complete, which is then not undone: neither on the server nor at the clients."""
    original = round_record.record

    def interrupted(aggregation, state, *arguments):
        if state.round == 2:
            os.kill(os.getpid(), signal.SIGINT)
        original(aggregation, state, *arguments)

    monkeypatch.setattr(round_record, "record", interrupted)
    with pytest.raises(fedfew.Interrupted, match="stopped after round 2"):
        train(tmp_path / "run", LocalOnly(), checkpoint_every=100)
    monkeypatch.undo()
    same_run(train(tmp_path / "run", LocalOnly(), resume=True), train(None, LocalOnly()))


def test_clients_left_out_between_scored_rounds_are_not_forgotten(tmp_path):
    clients = [FEDERATION.train.of(i) for i in range(4)]
    clients[1] = (clients[1][0] * 1e30, clients[1][1])
    spiked = fedfew.Federation.from_arrays(clients, [FEDERATION.test.of(i) for i in range(4)], classes=3)
    settings = SETTINGS | {"score_every": 4, "rounds": 8, "participation": 1.0, "checkpoint_every": 1}

    def stop(progress):
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(fedfew.Interrupted):
        fedfew.train(spiked, "linear", "fedavg", folder=tmp_path / "run", on_round=stop, **settings)
    resumed = fedfew.train(spiked, "linear", "fedavg", folder=tmp_path / "run", resume=True, **settings)
    assert resumed.history.left_out.tolist() == [4, 4]


# It begins the next round when it is sent a line, and writes every checkpoint, however long that takes.
PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from tests.training.test_checkpoint import *
torch.set_num_threads(1)
checkpoint_writer.PATIENCE = 0
def on_round(progress):
    print(progress.round, flush=True)
    input()
fedfew.train(FEDERATION, "linear", FedFew(models=3), folder={folder!r}, resume=True, on_round=on_round,
             **(SETTINGS | {{"rounds": 60, "checkpoint_every": 3}}))
"""


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_resumes_to_the_same_bits(kill, tmp_path):
    folder = str(tmp_path / "run")
    program = PROGRAM.format(root=str(Path(__file__).parents[2]), folder=folder)
    for moment in (1, 10, 33):  # killed at three moments, the first before any checkpoint
        process = subprocess.Popen([sys.executable, "-c", program], **PIPES, stderr=subprocess.DEVNULL)
        for line in process.stdout:
            process.stdin.write("\n")
            process.stdin.flush()
            if int(line) >= moment:
                time.sleep(0.002 * moment)  # somewhere within the next round, or at its end
                process.send_signal(kill)
                break
        process.communicate(timeout=600)
        assert process.returncode != 0
    finished = subprocess.run([sys.executable, "-c", program], input="\n" * 60, capture_output=True, text=True, check=True)
    first = int(finished.stdout.split()[0])
    assert first in (34, 35) if kill == signal.SIGINT else first == 34, "it went on from a checkpoint"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    straight = fedfew.train(FEDERATION, "linear", FedFew(models=3), **(SETTINGS | {"rounds": 60}))
    torch.set_num_threads(threads)
    same_run(fedfew.load(folder), straight)


def test_old_checkpoints_go_and_a_half_written_one_is_ignored(tmp_path):
    train(tmp_path / "run", rounds=8, checkpoint_every=1)
    leftover = tmp_path / "run" / ".partial-abc"
    leftover.mkdir()
    (leftover / "state.json").write_text("{")
    assert [p.name for p in checkpoint.checkpoints(tmp_path / "run")] == ["round-000007", "round-000008"]
    assert train(tmp_path / "run", rounds=9, resume=True).round == 9
    assert not leftover.exists()


def test_a_failed_write_leaves_the_old_checkpoints(tmp_path, monkeypatch):
    run = train(tmp_path / "run")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        run.save(tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


def damage_tensors(path):
    file = path / "state.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def truncate_tensors(path):
    file = path / "state.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def damage_json(path):
    (path / "state.json").write_text('{"format": 1, "round"')


def other_format(path):
    about = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(about | {"format": 99}))


def foreign(path):
    about = json.loads((path / "state.json").read_text())
    about["settings"]["lr"] = 7.0
    about = about
    (path / "state.json").write_text(json.dumps(about | {"own_sha256": checkpoint._own_sha256(about)}))


DAMAGES = [
    (damage_tensors, "its hash does not fit"),
    (truncate_tensors, "its hash does not fit"),
    (damage_json, "is damaged"),
    (other_format, "has format 99"),
    (foreign, "belongs to another run: its lr is 7.0, not 0.1"),
    (lambda path: (path / "state.safetensors").unlink(), "is damaged"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_a_bad_checkpoint_is_refused_and_the_previous_one_used(damage, reason, tmp_path):
    train(tmp_path / "run", rounds=4)
    damage(tmp_path / "run" / "round-000004")
    events = []
    resumed = train(tmp_path / "run", resume=True, on_round=lambda p: events.extend(p.events))
    assert any("refused" in e and reason in e for e in events), events
    same_run(resumed, train(None))


def test_load_warns_where_it_reads_an_older_round(tmp_path):
    train(tmp_path / "run", rounds=4)
    damage_tensors(tmp_path / "run" / "round-000004")
    with pytest.warns(UserWarning, match="run is read as it was after round 2: round-000004 is damaged"):
        assert fedfew.load(tmp_path / "run", linear).round == 2


def test_no_usable_checkpoint_at_all(tmp_path):
    train(tmp_path / "run", rounds=4)
    for path in checkpoint.checkpoints(tmp_path / "run"):
        damage_tensors(path)
    with pytest.raises(checkpoint.CheckpointError, match=r"no checkpoint in .* can be used: round-000004 is damaged"):
        train(tmp_path / "run", resume=True)
    with pytest.raises(checkpoint.CheckpointError, match="there is no checkpoint"):
        fedfew.load(tmp_path / "nothing")


def test_a_run_with_other_settings_or_data_is_refused(tmp_path):
    train(tmp_path / "run", rounds=4)
    with pytest.raises(checkpoint.CheckpointError, match=r"its seed is 0, not 1.*\. With other settings, start a new run"):
        train(tmp_path / "run", resume=True, seed=1)
    with pytest.raises(checkpoint.CheckpointError, match="its method is"):
        train(tmp_path / "run", "fedavg", resume=True)
    other = federation(seed=1)
    with pytest.raises(checkpoint.CheckpointError, match="its data differ in fingerprint"):
        fedfew.train(other, "linear", "fedfew", folder=tmp_path / "run", resume=True, **SETTINGS)


def test_a_folder_is_not_overwritten_by_accident(tmp_path):
    train(tmp_path / "run", rounds=4)
    with pytest.raises(ValueError, match="already holds a run"):
        train(tmp_path / "run")
    with pytest.raises(ValueError, match="has already done 4"):
        train(tmp_path / "run", resume=True, rounds=3)


def test_a_finished_run_can_be_prolonged(tmp_path):
    train(tmp_path / "run", rounds=4)
    longer = train(tmp_path / "run", resume=True, rounds=6)
    straight = train(None, rounds=6)
    assert longer.history.round.tolist() == [1, 2, 3, 4, 5, 6]
    assert np.array_equal(longer.history.losses, straight.history.losses, equal_nan=True)


def test_a_module_of_ones_own_is_asked_for_when_it_is_needed(tmp_path):
    run = fedfew.train(FEDERATION, linear, "fedavg", **SETTINGS)
    run.save(tmp_path)
    with pytest.raises(ValueError, match=r"the module 'tests.helpers:linear', which is not one of fedfew's own"):
        fedfew.load(tmp_path).models  # noqa: B018  # the access is the test
    same_run(fedfew.load(tmp_path, model=linear), run)


def test_a_second_run_in_the_same_folder_is_refused_and_names_the_first(tmp_path):
    """An attack on a run's files: another run is started in its folder after every round, resumed or not."""
    refusals = []

    def attack(progress):
        for resume in (True, False):
            with ThreadPoolExecutor(1) as other:
                error = other.submit(train, tmp_path / "run", resume=resume).exception()
            refusals.append(str(error))

    disturbed = train(tmp_path / "run", on_round=attack)
    words = rf"process {os.getpid()} on .* is using .*run: stop it, or choose another folder"
    assert len(refusals) == 2 * disturbed.round
    assert all(re.fullmatch(words, text) for text in refusals), refusals
    same_run(disturbed, train(None))
    same_run(fedfew.load(tmp_path / "run"), disturbed)
    assert train(tmp_path / "run", resume=True).round == disturbed.round  # the lock went with the run


def test_no_mutation_of_a_checkpoints_head_goes_unnoticed(tmp_path):
    """A byte changed at 400 places: the checkpoint is refused, or (white space) says what it said before."""
    run = fedfew.train(federation(), linear, FedAvg(), rounds=1, device="cpu")
    path = checkpoint.write(tmp_path, run.state)
    whole, state = (path / "state.json").read_bytes(), checkpoint.read(path)
    draw = np.random.default_rng(0)
    refused = 0
    for at in draw.choice(len(whole), 400):
        mutated = bytearray(whole)
        mutated[at] = draw.choice([b for b in range(32, 127) if b != whole[at]])
        (path / "state.json").write_bytes(mutated)
        try:
            found = checkpoint.read(path)
        except checkpoint.CheckpointError:
            refused += 1
        else:
            assert (found.settings, found.events, found.round) == (state.settings, state.events, state.round), bytes(mutated)
    assert refused > 200


def test_a_checkpoint_without_its_hash_is_refused(tmp_path):
    run = fedfew.train(federation(), linear, FedAvg(), rounds=1, device="cpu")
    path = checkpoint.write(tmp_path, run.state)
    about = json.loads((path / "state.json").read_text())
    del about["own_sha256"]
    (path / "state.json").write_text(json.dumps(about))
    with pytest.raises(checkpoint.CheckpointError, match="damaged"):
        checkpoint.read(path)


def test_the_newest_settings_are_those_of_the_newest_intact_head(tmp_path):
    assert checkpoint.newest_settings(tmp_path) == {}
    fedfew.train(federation(), linear, FedAvg(), rounds=4, device="cpu", folder=tmp_path, checkpoint_every=2)
    assert checkpoint.newest_settings(tmp_path)["rounds"] == 4
    newest = checkpoint.checkpoints(tmp_path)[-1] / "state.json"
    newest.write_text(newest.read_text().replace('"lr": 0.05', '"lr": 0.06'))
    assert checkpoint.newest_settings(tmp_path)["lr"] == 0.05  # the one before


def test_checkpoints_are_in_the_order_of_their_rounds_and_a_link_is_none(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("kept")
    folder = tmp_path / "run"
    for number in (1_000_000, 999_999, 2):
        (folder / f"round-{number:06d}").mkdir(parents=True)
    (folder / "round-000001").symlink_to(elsewhere)
    (folder / "round-3").mkdir()  # not one of ours
    assert [path.name for path in checkpoint.checkpoints(folder)] == ["round-000002", "round-999999", "round-1000000"]
    train(tmp_path / "other", rounds=3)
    (tmp_path / "other" / "round-000000").symlink_to(elsewhere)
    train(tmp_path / "other", rounds=5, resume=True)
    assert (elsewhere / "precious").read_text() == "kept"  # old checkpoints are removed, what a link leads to is not
    assert checkpoint.checkpoints(tmp_path / "other")[-1].name == "round-000005"


@pytest.mark.parametrize("method", ["cfl", "pacfl"])
def test_clusters_of_the_servers_are_written_after_a_round_that_is_not_scored(method, tmp_path):
    train(tmp_path, method, rounds=3, score_every=3, on_round=lambda progress: "stop")
    stopped = fedfew.load(tmp_path)
    assert stopped.round == 1
    assert torch.equal(stopped.choice, stopped.state.server["cluster"])
    resumed = train(tmp_path, method, rounds=3, score_every=3, resume=True)
    same_run(resumed, train(None, method, rounds=3, score_every=3))
