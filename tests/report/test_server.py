"""``fedfew watch``: what its server answers, to whom, and how a run's folder is followed."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedfew
from fedfew.report.page.of_folder import of_folder
from fedfew.report.page.server import Server, Watched, serving
from tests.helpers import federation


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run") / "mine"
    fedfew.train(
        federation(),
        "linear",
        fedfew.FedFew(models=2),
        rounds=4,
        engine="stacked",
        device="cpu",
        folder=place,
        checkpoint_every=2,
    )
    return place


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Watches a folder that is not there yet."""
    with serving(Watched(tmp_path / "mine"), 0) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=300)
    connection.request(method, path, headers={"Host": f"localhost:{server.server_port}"} | headers)
    answer = connection.getresponse()
    return answer, answer.read().decode()


def status(server: Server) -> dict[str, Any]:
    return json.loads(ask(server, "/status.json")[1])


def tell(folder: Path, **values: Any) -> None:
    told = {"round": 3, "rounds": 4, "served": 0.5, "adapted": 0.25, "state": "running"} | values
    (folder / "progress.json").write_text(json.dumps(told))


def test_only_this_machine_by_its_own_name_is_answered(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    for host in ("localhost", "127.0.0.1"):
        assert ask(server, "/", Host=f"{host}:{server.server_port}")[0].status == 200
    for host in (f"evil.example:{server.server_port}", "localhost", "localhost:1", ""):
        answer, text = ask(server, "/data.json", Host=host)
        assert answer.status == 421
        assert "tag" not in text


def test_there_are_three_things_to_get(server: Server) -> None:
    page = ask(server, "/")[0]
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.headers["X-Frame-Options"] == "DENY"
    assert page.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert ask(server, "/other")[0].status == 404
    assert ask(server, "/../etc/passwd")[0].status == 404
    answer, text = ask(server, "/", method="HEAD")
    assert (answer.status, text) == (200, "")
    assert ask(server, "/", method="POST")[0].status == 501


def test_a_run_is_waited_for_and_then_followed(server: Server, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert status(server)["words"] == "Waiting for a run: the folder mine is not there yet"
    assert json.loads(ask(server, "/data.json")[1])["waiting"] is True
    folder.mkdir()
    assert "has no checkpoint yet" in status(server)["words"]
    tell(folder, round=1)
    assert status(server)["more"] == "Served 50.0 %, adapted 25.0 % in the mean. Charts come with the first checkpoint"
    shutil.copytree(finished / "round-000002", folder / "round-000002")
    tell(folder)
    first = json.loads(ask(server, "/data.json")[1])
    assert first["rounds"] == [1, 2]
    now = status(server)
    assert now["words"] == "Round 3 of 4"
    assert now["tag"] == first["tag"]
    assert "The charts show round 2, the newest checkpoint" in now["more"]
    assert 0 <= now["age"] < 60
    shutil.copytree(finished / "round-000004", folder / "round-000004")
    tell(folder, round=4, state="finished")
    assert status(server)["tag"] != first["tag"]
    assert json.loads(ask(server, "/data.json")[1])["rounds"] == [1, 2, 3, 4]
    assert status(server)["words"] == "Finished: round 4 of 4"


def test_data_that_have_not_changed_are_not_sent_again(server: Server, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "mine")
    answer, text = ask(server, "/data.json")
    again, nothing = ask(server, "/data.json", **{"If-None-Match": answer.headers["ETag"]})
    assert (again.status, nothing) == (304, "")
    assert json.loads(text)["tag"] == answer.headers["ETag"].strip('"')
    assert ask(server, "/data.json", **{"If-None-Match": '"old"'})[0].status == 200


def test_states_in_words(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    tell(folder, state="stopped", why="by Ctrl-C")
    assert status(server)["words"] == "Stopped by Ctrl-C after round 3 of 4"
    tell(folder)
    os.utime(folder / "progress.json", (1, 1))
    assert "Nothing has been written since" in status(server)["more"]


def test_a_run_that_writes_no_progress_is_followed_by_its_checkpoints(server: Server, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "mine")
    assert status(server)["words"] == "Round 4"  # before anyone has asked for the data
    ask(server, "/data.json")
    assert status(server)["words"] == "Finished: round 4 of 4"
    assert status(server)["state"] == "finished"


def test_a_checkpoint_that_cannot_be_read_leaves_the_page_as_it_was(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(finished, folder)
    watched = Watched(folder)
    good = watched.document()
    (folder / "round-000005").mkdir()
    for path in folder.glob("round-*/state.json"):
        path.write_text("{")
    kept = watched.document()
    assert kept["rounds"] == good["rounds"]
    assert "can be used" in kept["error"]


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"--port is {port}, which cannot be had .*choose another, or 0"):
            serving(Watched(Path("x")), port).__enter__()


@pytest.mark.slow
def test_the_command_prints_its_address_and_ends_with_ctrl_c(finished: Path) -> None:
    command = [sys.executable, "-u", "-m", "fedfew", "watch", str(finished), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(re.search(r"http://localhost:(\d+)", line)[1])  # type: ignore[index]  # it is there, or the test fails
        connection = http.client.HTTPConnection("localhost", port, timeout=300)
        connection.request("GET", "/data.json")
        assert json.loads(connection.getresponse().read())["title"] == "fedfew on arrays"
        process.send_signal(signal.SIGINT)
        rest, wrong = process.communicate(timeout=300)
    assert process.returncode == 0
    assert rest == "Ended.\n"
    assert wrong == ""


# -- damaged files -----------------------------------------------------------------------------------------------------------

SIDE_FILES = ("config.yaml", "federation.json", "scores.json", "labels.npz", "costs.json", "progress.json", "confusion.npz")
DAMAGES = {
    "empty": b"",
    "half": b'{"round": 4, "rou',
    "another type": b"[1, 2]",
    "other values": b'{"round": 4, "train": 3, "groups": [{}, {}, {}, {}], "state": 7, "auc": {}, "steps": [], "macro_f1": "x"}',
    "not text": bytes(range(128, 256)),
    "nested": b"[" * 100_000,
}


@pytest.mark.parametrize("name", SIDE_FILES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_beside_the_checkpoints_does_not_end_it(server: Server, finished: Path, name: str, damage: bytes) -> None:
    shutil.copytree(finished, server.watched.folder)
    (server.watched.folder / name).write_bytes(damage)
    for path in ("/", "/data.json", "/status.json"):
        answer, _ = ask(server, path)
        assert answer.status == 200
    document = json.loads(ask(server, "/data.json")[1])
    assert document["run"]["round"] == 4
    assert json.loads(ask(server, "/status.json")[1])["words"].startswith("Finished: round 4 of 4")
    assert len(document["scores"]["served"]) > 3


def test_damaged_files_are_named_on_the_page(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(finished, folder)
    (folder / "costs.json").write_text("{")
    (folder / "labels.npz").write_bytes(b"PK")
    events = of_folder(folder)["events"]["newest"]
    assert [name for name in SIDE_FILES if any(name in event and "damaged" in event for event in events)] == [
        "labels.npz",
        "costs.json",
    ]
