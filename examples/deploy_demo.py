"""A federation of four sites on this machine, with TLS and keys; one site is killed and restarted.

    make deploy-demo

A SuperLink and four SuperNodes are started. Each site has its own file of hand-written digits: two have them upright, two
rotated by 90 degrees. FedFew trains two models, one for each of these groups. One site is killed after a round and restarted a
minute later. Then come the scores, the export, and a fifth site that never took part and selects its model offline. Everything
is written to a temporary folder, and no process is left running, however the demonstration ends.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from localhost import Localhost, ProgramError, free_port

import fedfew
from fedfew.flower import certs

APP = Path(__file__).parent / "flower"
SITES = ("north", "east", "south", "west")
KILLED = SITES.index("west")
GROUPS = (0, 1, 0, 1)  # by how many quarter turns a site's digits are rotated
NEW_SITE = "new"
ROUNDS, EPOCHS, LR = 7, 5, 0.2
METHOD = "fedfew:models=2,mu=0.02"  # with the default, mu=0.2, the two models hardly differ after so few rounds
BACK_AFTER = 60.0  # seconds: until then the SuperLink counts the killed node as online, and refuses its key
BEGIN = time.monotonic()


def report(line: str) -> None:
    print(f"[{time.monotonic() - BEGIN:5.0f} s] {line}", flush=True)


def write_data(folder: Path) -> None:
    """One file per site, with training and test samples that no other site has."""
    digits = fedfew.data.digits(8)  # client i has them rotated by i mod 4 quarter turns
    clients = {name: 4 * (i // 2) + GROUPS[i] for i, name in enumerate(SITES)}
    for name, client in clients.items():
        (x, y), (x_test, y_test) = digits.train.of(client), digits.test.of(client)
        np.savez(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    upright = (
        digits.train.x[digits.train.rows(2)].rot90(2, (2, 3)),
        digits.train.of(2)[1],
    )  # of a client that is not one of the sites
    np.savez(folder / f"{NEW_SITE}.npz", x=upright[0], y=upright[1])


class Demo:
    def __init__(self, here: Localhost, rounds: int, epochs: int, kill_after: int, deadline: float) -> None:
        self.here = here
        self.rounds = rounds
        self.epochs = epochs
        self.kill_after = kill_after
        self.deadline = deadline
        self.port = free_port()
        self.secrets = here.folder / "certs"

    def run(self) -> None:
        self.start_superlink()
        self.register_sites()
        for name in SITES:
            self.start_site(name)
        report(f"{len(SITES)} SuperNodes started, each with its own key and its own file of digits")
        self.train()
        self.show()

    def start_superlink(self) -> None:
        certs.write(self.secrets, ["127.0.0.1"], SITES)
        report("a CA, a certificate for the SuperLink and a key pair for every site are written")
        (self.here.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "demo"\n\n[superlink.demo]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.secrets / "ca.crt"}"\n'
        )
        self.here.start(
            "superlink",
            *("flower-superlink", "--ssl-ca-certfile", str(self.secrets / "ca.crt")),
            *("--ssl-certfile", str(self.secrets / "server.pem"), "--ssl-keyfile", str(self.secrets / "server.key")),
            *("--enable-supernode-auth", "--host", "127.0.0.1", "--port", str(self.port)),
        )
        self.here.wait_for(self.superlink_is_ready, "the SuperLink", alive=("superlink",))
        report(f"SuperLink ready on port {self.port}, with TLS, for registered keys only")

    def superlink_is_ready(self) -> bool:
        return "Uvicorn running" in self.here.programs["superlink"].text()

    def register_sites(self) -> None:
        for name in SITES:
            self.here.call("flwr", "supernode", "register", str(self.secrets / "sites" / f"{name}.pub"), "demo", "--name", name)
        report(f"keys registered: {', '.join(SITES)}")

    def start_site(self, name: str) -> None:
        config = f'client={SITES.index(name)} data="{self.here.folder / name}.npz" classes=10 device="cpu"'
        self.here.start(
            name,
            *("flower-supernode", "--root-certificates", str(self.secrets / "ca.crt")),
            *("--auth-supernode-private-key", str(self.secrets / "sites" / name)),
            *("--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port()), "--node-config", config),
        )

    def train(self) -> None:
        """``flwr run``, during which one site is killed after a round and restarted a minute later."""
        config = {
            "method": f'"{METHOD}"',
            "clients": len(SITES),
            "sites": f'"{",".join(SITES)}"',
            "rounds": self.rounds,
            "local-epochs": self.epochs,
            "lr": LR,
            "score-every": self.rounds,
            "deadline": self.deadline,
            "folder": f'"{self.here.folder / "run"}"',
        }
        words = " ".join(f"{key}={value}" for key, value in config.items())
        program = self.here.start("run", "flwr", "run", str(APP), "demo", "--stream", "--run-config", words)
        name, seen, killed_at, back = SITES[KILLED], 0, 0.0, False
        while program.running():
            lines = re.findall(r"(?:INFO|WARNING|ERROR).*?:\s+(.*)", program.text())
            for line in lines[seen:]:
                if re.search(r"round \d|client|resumed|Error", line):
                    report(f"  server: {_plain(line)}")
                if _plain(line).startswith(f"round {self.kill_after} of") and not killed_at:
                    self.here.kill(name)
                    killed_at = time.monotonic()
                    report(f"site {name} killed")
            seen = len(lines)
            if killed_at and not back and time.monotonic() - killed_at > BACK_AFTER:
                self.start_site(name)
                back = True
                report(f"site {name} started again, with the same key and the same state")
            time.sleep(0.5)
        if program.popen.returncode or not (self.here.folder / "run").exists():
            raise ProgramError(f"the run failed: {program.text()[-2000:]}")

    def show(self) -> None:
        from rich.console import Console

        from fedfew.report import tables

        run = fedfew.load(self.here.folder / "run")
        report(f"training is over: {run!r}")
        history, console = run.history, Console(width=100)
        table = tables.empty("test accuracy, %", "site", "digits rotated by", "model", "served", "adapted", "rounds it trained")
        for i, name in enumerate(SITES):
            scores = (tables.percent(float(history.last(f"{score}_accuracy")[i])) for score in ("served", "adapted"))
            model = "–" if run.choice[i] < 0 else str(int(run.choice[i]))  # –: it was not present when models were chosen
            table.add_row(name, f"{90 * GROUPS[i]}°", model, *scores, str(self.rounds_trained(i)))
        console.print(table)
        exported = self.fedfew("export", "run", "-o", "export")
        report(f"exported {exported['models']} models with their card")
        selected = self.fedfew("select", "export", "--data", f"{NEW_SITE}.npz", "--adapt-epochs", "3")
        choice = "the adapted one" if selected["adapted"] else "the model as exported"
        same = [name for i, name in enumerate(SITES) if run.choice[i] == selected["model"]]
        report(
            f"a fifth site, upright digits, never took part: model {selected['model']} fits it best, which "
            f"{' and '.join(same) or 'no other site'} chose, too; accuracy on "
            f"{selected['validation_samples']} samples held out {selected['before']['accuracy']:.1%} as exported, "
            f"{selected['after']['accuracy']:.1%} adapted; by its loss it takes {choice}"
        )

    def rounds_trained(self, client: int) -> int:
        """From the site's audit log."""
        log = self.here.folder / "sites" / f"client-{client}" / "audit.jsonl"
        messages = [json.loads(line) for line in log.read_text().splitlines()]
        return len({message["values"]["round"] for message in messages if message["kind"] == "train"})

    def fedfew(self, *words: str) -> dict[str, Any]:
        """The JSON that a command of fedfew prints."""
        printed: dict[str, Any] = json.loads(self.here.call(sys.executable, "-m", "fedfew", *words, "--json"))
        return printed


def _plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--local-epochs", type=int, default=EPOCHS)
    parser.add_argument("--kill-after", type=int, default=2, help="the round after which a site is killed")
    parser.add_argument("--deadline", type=float, default=90, help="seconds that a round waits for answers")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder, with all logs")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedfew-demo-"))
    report(f"everything goes to {folder}")
    here = Localhost(folder, {"FEDFEW_SITES": str(folder / "sites")})
    failed = True
    try:
        with here:
            write_data(folder)
            Demo(here, options.rounds, options.local_epochs, options.kill_after, float(options.deadline)).run()
            failed = False
    except ProgramError as error:
        report(f"failed: {error}")
    except KeyboardInterrupt:
        report("stopped")
    finally:
        report(f"processes left: {len(here.alive())}")
        if options.keep or failed:
            report(f"the logs are in {folder}")
        else:
            shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
