"""A real SuperLink that is killed in a round and started again, with four real SuperNodes."""

import pytest

import fedfew
from tests.flower.support import APP, deployment, node_config, same_as_simulated, simulated, tiny

pytestmark = pytest.mark.deploy


def test_a_killed_superlink_loses_at_most_the_round_under_way(tmp_path):
    """Ditto, whose sites keep models of their own: the resumed run ends as one that was never stopped."""
    with deployment(tmp_path) as here:
        nodes = {i: here.node(i, node_config(i)) for i in range(4)}
        folder = here.folder / "killed"
        settings = {"method": "ditto", "rounds": 3, "folder": str(folder), "score-every": 3}
        before = here.start_run(APP, settings | {"test.faults": "0:2:hang"})
        here.wait_for((here.folder / "sites" / "client-0" / "hanging").exists, "round 2", 600)
        here.superlink.crash()
        before.end()
        assert fedfew.load(folder, tiny).round == 1
        here.start_superlink()
        for i, node in nodes.items():  # a SuperLink without its database refuses them: they end, and are started again
            node.end()
            here.node(f"{i}-restarted", node_config(i))
        output = here.run(APP, settings)
        run = fedfew.load(folder, tiny)
        assert run.round == 3, output[-3000:]
        assert run.state.events == ["resumed after round 1"]
        same_as_simulated(run, simulated(method="ditto", rounds=3, score_every=3), here.folder / "sites")
