"""Many methods in one run: the sites introduce themselves once, and nobody waits for Flower to start another run."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from tests.flower.small import tiny

from fedfew.flower.grid import FlowerNetwork
from fedfew.flower.plan import Plan
from fedfew.flower.server_loop import Course
from fedfew.training.aggregation import PerClient
from fedfew.util.files import folder_locked

AT_ONCE = 2
app = ServerApp()


class Unscored(Course):
    def _served(self, number):
        return PerClient(self.plan.clients)


@app.main()
def main(grid: Grid, context: Context) -> None:
    plan = Plan.read(context.run_config)
    kind = Course if context.run_config["test.score"] else Unscored
    methods = [method for method in context.run_config["test.methods"].split(";") if method]
    if not methods:
        with folder_locked(Path(plan.folder)):
            kind(plan, FlowerNetwork(grid), lambda data: tiny).run()
        return

    plans = [replace(plan, method=method, folder=str(Path(plan.folder) / str(i))) for i, method in enumerate(methods)]
    courses = [kind(one, FlowerNetwork(grid), lambda data: tiny) for one in plans]
    for course in courses:
        course.roster.members.update(courses[0].roster.members)
        course.begin()  # here, not in a thread: initial models are drawn from torch's one random generator
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(Course.go_on, courses))
