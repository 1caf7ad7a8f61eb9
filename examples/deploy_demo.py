"""A federation of four sites on this machine, as between real ones: TLS, keys, a site that dies and comes back.

    make deploy-demo

A SuperLink and four SuperNodes are started, each site with a file of its own: hand-written digits, which two of the sites hold
upright and two turned by a quarter. FedFew trains two models. One site is killed in the middle and brought back a minute later.
At the end come the table, the export, and a fifth site that never took part and chooses its model offline. Everything is written
to a temporary folder, and no process is left when it ends, however it ends.
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

import fedfew
from fedfew.flower import certs
from fedfew.flower.localhost import Localhost, ProgramError, free_port

APP = Path(__file__).parent / "flower"
SITES = ("north", "east", "south", "west")
KILLED = SITES.index("west")
GROUPS = (0, 1, 0, 1)  # by how many quarters a site's digits are turned
NEWCOMER = "new"
BACK_AFTER = 60.0  # seconds: until then the SuperLink holds the killed node for alive, and refuses its key
BEGIN = time.monotonic()


def say(line: str) -> None:
    print(f"[{time.monotonic() - BEGIN:5.0f} s] {line}", flush=True)


def write_data(folder: Path) -> None:
    """A file a site: training and test samples of its own, none of which is anybody else's."""
    digits = fedfew.data.digits(8)  # client i sees them turned by i mod 4 quarters
    dealt = {name: 4 * (i // 2) + GROUPS[i] for i, name in enumerate(SITES)}
    for name, client in dealt.items():
        (x, y), (x_test, y_test) = digits.train.of(client), digits.test.of(client)
        np.savez(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    upright = digits.train.x[digits.train.rows(2)].rot90(2, (2, 3)), digits.train.of(2)[1]  # of a client that is no site
    np.savez(folder / f"{NEWCOMER}.npz", x=upright[0], y=upright[1])


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
        say(f"{len(SITES)} SuperNodes started, each with its own key and its own file of digits")
        self.train()
        self.show()

    def start_superlink(self) -> None:
        certs.write(self.secrets, ["127.0.0.1"], SITES)
        say("a CA, a certificate for the SuperLink and a key pair for every site are written")
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
        say(f"SuperLink ready on port {self.port}, TLS on, only registered keys let in")

    def superlink_is_ready(self) -> bool:
        return "Uvicorn running" in self.here.log("superlink").read_text()

    def register_sites(self) -> None:
        for name in SITES:
            self.here.call("flwr", "supernode", "register", str(self.secrets / "sites" / f"{name}.pub"), "demo", "--name", name)
        say(f"keys registered: {', '.join(SITES)}")

    def start_site(self, name: str) -> None:
        config = f'client={SITES.index(name)} data="{self.here.folder / name}.npz" classes=10 device="cpu"'
        self.here.start(
            name,
            *("flower-supernode", "--root-certificates", str(self.secrets / "ca.crt")),
            *("--auth-supernode-private-key", str(self.secrets / "sites" / name)),
            *("--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port()), "--node-config", config),
        )

    def train(self) -> None:
        """``flwr run``, and what happens meanwhile: a site dies after a round and comes back a minute later."""
        config = {
            "method": '"fedfew:models=2"',
            "clients": len(SITES),
            "rounds": self.rounds,
            "local-epochs": self.epochs,
            "lr": 0.2,
            "score-every": self.rounds,
            "deadline": self.deadline,
            "folder": f'"{self.here.folder / "run"}"',
        }
        words = " ".join(f"{key}={value}" for key, value in config.items())
        run = self.here.start("run", "flwr", "run", str(APP), "demo", "--stream", "--run-config", words)
        name, seen, killed_at, back = SITES[KILLED], 0, 0.0, False
        while run.poll() is None:
            lines = re.findall(r"(?:INFO|WARNING|ERROR).*?:\s+(.*)", self.here.log("run").read_text(errors="replace"))
            for line in lines[seen:]:
                if re.search(r"round \d|client|resumed|Error", line):
                    say(f"  server: {_plain(line)}")
                if _plain(line).startswith(f"round {self.kill_after} of") and not killed_at:
                    self.here.kill(name)
                    killed_at = time.monotonic()
                    say(f"site {name} killed, as by a power cut")
            seen = len(lines)
            if killed_at and not back and time.monotonic() - killed_at > BACK_AFTER:
                self.start_site(name)
                back = True
                say(f"site {name} started again, with the same key and the same state")
            time.sleep(0.5)
        if run.returncode or not (self.here.folder / "run").exists():
            raise ProgramError(f"the run failed: {self.here.log('run').read_text()[-2000:]}")

    def show(self) -> None:
        from rich.console import Console

        from fedfew.report import tables

        run = fedfew.load(self.here.folder / "run")
        say(f"training is over: {run!r}")
        history, console = run.history, Console(width=100)
        table = tables.empty("test accuracy, %", "site", "digits turned by", "model", "served", "adapted", "rounds it trained")
        for i, name in enumerate(SITES):
            scores = (tables.percent(float(history.last(f"{score}_accuracy")[i])) for score in ("served", "adapted"))
            model = "–" if run.choice[i] < 0 else str(int(run.choice[i]))  # –: it was not there to choose
            table.add_row(name, f"{90 * GROUPS[i]}°", model, *scores, str(self.rounds_trained(i)))
        console.print(table)
        exported = self.fedfew("export", "run", "-o", "export")
        say(f"exported {exported['models']} models with their card")
        told = self.fedfew("select", "export", "--data", f"{NEWCOMER}.npz", "--adapt-epochs", "3")
        taken = "the adapted one" if told["adapted"] else "the model as it came"
        say(
            f"a fifth site, upright digits, never took part: model {told['model']} fits it best, accuracy on "
            f"{told['validation_samples']} samples held out {told['before']['accuracy']:.1%} as it came, "
            f"{told['after']['accuracy']:.1%} adapted; by its loss it takes {taken}"
        )

    def rounds_trained(self, client: int) -> int:
        """From the site's own log of what left it."""
        log = self.here.folder / "sites" / f"client-{client}" / "left.jsonl"
        letters = [json.loads(line) for line in log.read_text().splitlines()]
        return len({letter["values"]["round"] for letter in letters if letter["kind"] == "train"})

    def fedfew(self, *words: str) -> dict[str, Any]:
        """A command of fedfew's, and the JSON that it prints."""
        told: dict[str, Any] = json.loads(self.here.call(sys.executable, "-m", "fedfew", *words, "--json"))
        return told


def _plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--local-epochs", type=int, default=5)
    parser.add_argument("--kill-after", type=int, default=2, help="the round after which a site is killed")
    parser.add_argument("--deadline", type=float, default=90, help="seconds that a round waits for answers")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder, with all logs")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedfew-demo-"))
    say(f"everything goes to {folder}")
    here = Localhost(folder, {"FEDFEW_SITES": str(folder / "sites"), "OMP_NUM_THREADS": "1"})
    failed = True
    try:
        with here:
            write_data(folder)
            Demo(here, options.rounds, options.local_epochs, options.kill_after, float(options.deadline)).run()
            failed = False
    except ProgramError as error:
        say(f"failed: {error}")
    except KeyboardInterrupt:
        say("stopped")
    finally:
        say(f"processes left: {len(here.alive())}")
        if options.keep or failed:
            say(f"the logs are in {folder}")
        else:
            shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
