"""Small federations, and comparisons of runs, for all tests."""

from __future__ import annotations

import numpy as np
import torch
from click.testing import CliRunner, Result
from torch import nn
from typer.main import get_command

import fedfew
from fedfew.cli import app
from fedfew.stack import named_leaves


def federation(sizes=(23, 40, 7, 31), classes=3, features=5, seed=0) -> fedfew.Federation:
    """Clients of unequal sizes, each with a linear rule of its own."""
    rng = np.random.default_rng(seed)
    train, test = [], []
    for size in sizes:
        rule = rng.normal(size=(features, classes))
        for part, n in ((train, size), (test, 6)):
            x = rng.normal(size=(n, features)).astype(np.float32)
            part.append((x, (x @ rule).argmax(1)))
    return fedfew.Federation.from_arrays(train, test, classes=classes)


def linear(features=5, classes=3) -> nn.Module:
    return nn.Linear(features, classes)


def difference(a: fedfew.Run, b: fedfew.Run) -> float:
    """The largest difference between the parameters of two runs, server's and clients' own."""
    pairs = zip(
        named_leaves({"s": a.state.server, "o": a.state.own}), named_leaves({"s": b.state.server, "o": b.state.own}), strict=True
    )
    differences = []
    for (name_a, x), (name_b, y) in pairs:
        assert name_a == name_b
        differences.append(float((x.double() - y.double()).abs().max()))
    return max(differences)


def same_history(a: fedfew.Run, b: fedfew.Run, tolerance: float = 0.0) -> None:
    """All columns but the seconds are equal."""
    assert a.history.columns == b.history.columns
    for name in a.history.columns:
        if name != "seconds":
            np.testing.assert_allclose(a.history[name], b.history[name], rtol=tolerance, atol=tolerance, err_msg=name)


def same_run(a: fedfew.Run, b: fedfew.Run) -> None:
    """Equal to the last bit."""
    assert a.round == b.round
    assert difference(a, b) == 0
    same_history(a, b)
    assert torch.equal(a.choice, b.choice)


COMMAND = get_command(app)  # once: building all commands takes as long as most of them run


def call(*words: str, code: int = 0) -> Result:
    """What a command answers, once it has ended with this code."""
    result = CliRunner().invoke(COMMAND, list(words), prog_name="fedfew")
    assert result.exit_code == code, result.output
    return result


def refused(*words: str) -> str:
    """The one paragraph that a mistake is answered with."""
    result = call(*words, code=2)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.replace("│", " ").split())
