"""The study ``costs``: the cost of each method per round, counted, beside the paper's claims."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.studies.folder import write_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedfew.evaluation.costs import Cost

CLIENTS, MODELS, SAMPLES, BATCH = 20, 3, 60_000, 50  # M, K; CIFAR-10, a quarter of which is for test


def study(folder: Path, console: Console) -> bool:
    """Count, print, and keep ``costs.json``; whether the paper's claims hold."""
    costs = counted()
    claimed = claims(costs)
    write_json(folder / "costs.json", {"costs": {name: asdict(c) for name, c in costs.items()}, "claims": claimed})
    console.print(_costs_table(costs), _claims_table(claimed))
    return all(claim["holds"] for claim in claimed)


def counted() -> dict[str, Cost]:
    """Costs of every method with its default settings; samples are distributed evenly, since only their mean matters."""
    import torch

    from fedfew.evaluation.costs import cost
    from fedfew.federation import Federation, Samples
    from fedfew.methods import METHODS, make

    each = SAMPLES * 3 // 4 // CLIENTS
    count = torch.full((CLIENTS,), each)
    pixels = torch.zeros(1, 3, 32, 32, dtype=torch.uint8).expand(each * CLIENTS, 3, 32, 32)  # never looked at, so never there
    samples = Samples(pixels, torch.zeros(each * CLIENTS, dtype=torch.int64), count.cumsum(0) - count, count, each)
    federation = Federation(samples, samples, classes=10, ids=torch.arange(CLIENTS))
    made = {
        name: make(name, **({"models": MODELS} if "models" in cls.__dataclass_fields__ else {})) for name, cls in METHODS.items()
    }
    return {name: cost(method, "cnn", federation, 1, BATCH) for name, method in made.items()}


def claims(costs: dict[str, Cost]) -> list[dict[str, Any]]:
    """The costs of FedFew in the paper's analysis, and as counted here."""
    few, one = costs["fedfew"], costs["fedavg"]
    return [
        _claim("training, against a single model", "K times", MODELS, few.steps / one.steps),
        _claim("inference, against a single model", "the same", 1, few.inference_passes / one.inference_passes),
        _claim("bytes to a client, against a single model", "linear in K", MODELS, few.bytes_down / one.bytes_down),
        # The losses that a client reports travel as well: K numbers beside K models.
        _claim("bytes from a client, against a single model", "linear in K", MODELS, few.bytes_up / one.bytes_up),
        _claim("models on the server instead of M, fewer by", "M / K, above 6", CLIENTS / MODELS, CLIENTS / few.server_models),
    ]


def _claim(what: str, says: str, expected: float, found: float) -> dict[str, Any]:
    return {"what": what, "paper": says, "expected": expected, "counted": found, "holds": abs(found / expected - 1) < 1e-4}


def _costs_table(costs: dict[str, Cost]) -> Table:
    from rich.table import Table

    table = Table(title=f"A round on CIFAR-10, {CLIENTS} clients, K = {MODELS}, CNN, one local epoch in batches of {BATCH}")
    heads = (
        "MB down",
        "MB up",
        "steps",
        "models on server",
        "models on client",
        "models run to predict",
        "models to choose from",
    )
    table.add_column("method", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right")
    for name, c in costs.items():
        numbers = (c.bytes_down / 1e6, c.bytes_up / 1e6, c.steps, c.server_models, c.client_models, c.inference_passes)
        table.add_row(name, *(f"{n:.4g}" for n in (*numbers, max(1, c.selection_passes))))
    return table


def _claims_table(claimed: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(title="FedFew, what the paper says and what is counted")
    for head in ("", "paper", "expected", "counted", ""):
        table.add_column(head)
    for claim in claimed:
        holds = "[green]holds[/green]" if claim["holds"] else "[red]does not hold[/red]"
        table.add_row(claim["what"], claim["paper"], f"{claim['expected']:.3f}", f"{claim['counted']:.3f}", holds)
    return table
