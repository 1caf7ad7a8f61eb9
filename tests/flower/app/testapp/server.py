"""Many methods in one run: the sites join once, and nobody waits for Flower to start another run."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from tests.flower.support import tiny

from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.grid import FlowerNetwork
from fedfew.flower.server_loop import ServerLoop
from fedfew.training.per_client import PerClient
from fedfew.util.files import folder_locked

AT_ONCE = 2
app = ServerApp()


class Unscored(ServerLoop):
    def _score_clients(self, number):
        return PerClient(self.config.clients)


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = DeploymentConfig.read(context.run_config)
    kind = ServerLoop if context.run_config["test.score"] else Unscored
    methods = [method for method in context.run_config["test.methods"].split(";") if method]
    if not methods:
        with folder_locked(Path(config.folder)):
            kind(config, FlowerNetwork(grid), lambda data: tiny).run()
        return

    plans = [replace(config, method=method, folder=str(Path(config.folder) / str(i))) for i, method in enumerate(methods)]
    loops = [kind(one, FlowerNetwork(grid), lambda data: tiny) for one in plans]
    for loop in loops:
        loop.registry.members.update(loops[0].registry.members)
        loop.begin()  # here, not in a thread: initial models are drawn from torch's one random generator
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(ServerLoop.train, loops))
