"""The outcome version: short runs of every method compared with the outcomes recorded for it.

When a change to training, scoring or data changes these numbers on purpose, raise ``OUTCOME_VERSION`` in
``fedfew/studies/key.py`` and record them anew: ``python -m tests.studies.test_outcomes``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedfew.methods import METHODS, Method
from fedfew.studies.key import OUTCOME_VERSION
from tests.methods.small import normalised, train

GOLDEN = Path(__file__).with_name("outcomes.json")
ROUNDS = 3
CASES = {
    **{name: cls() for name, cls in METHODS.items()},
    **{f"{name}, published": cls.as_published() for name, cls in METHODS.items() if cls.as_published() != cls()},
}


def outcome(method: Method) -> dict[str, list[float]]:
    """What the clients of a short run are served and report, round by round: means over clients."""
    plain = train(method, rounds=ROUNDS).history
    with_batch_norm = train(method, rounds=ROUNDS, model=normalised, participation=1.0, batch_size=9).history
    return {
        "served_loss": plain["served_loss"].astype(float).mean(1).tolist(),
        "served_accuracy": plain["served_accuracy"].astype(float).mean(1).tolist(),
        "served_loss, BatchNorm": with_batch_norm["served_loss"].astype(float).mean(1).tolist(),
    }


def test_the_recorded_outcomes_are_those_of_this_version():
    assert json.loads(GOLDEN.read_text())["version"] == OUTCOME_VERSION, "record them anew: see the docstring of this file"


@pytest.mark.parametrize("case", CASES)
def test_a_run_ends_as_it_did_when_the_version_was_set(case: str):
    recorded = json.loads(GOLDEN.read_text())["outcomes"][case]
    for name, values in outcome(CASES[case]).items():
        assert values == pytest.approx(recorded[name], rel=1e-4, abs=1e-5), f"{name} of {case} changed: raise OUTCOME_VERSION"


if __name__ == "__main__":
    outcomes = {case: outcome(method) for case, method in CASES.items()}
    GOLDEN.write_text(json.dumps({"version": OUTCOME_VERSION, "outcomes": outcomes}, indent=1) + "\n")
