"""Samples per client and class: counts, heterogeneity, a table and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew.federation import Federation
from fedfew.tasks import IGNORED
from fedfew.util.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

Style = Literal["auto", "bars", "bubbles"]

# Paul Tol's "muted" colours are distinct for all kinds of colour vision; in this order neighbours also differ in lightness.
COLOURS = ("#332288", "#88CCEE", "#117733", "#DDCC77", "#882255", "#44AA99", "#CC6677", "#999933", "#AA4499", "#DDDDDD")
HATCHES = ("", "///")  # from the eleventh class on the colours repeat, hatched


def has_classes(federation: Federation) -> bool:
    """Whether there are classes or labels to count."""
    return federation.task in ("classification", "multi-label")


def counts(federation: Federation) -> NDArray[np.int64]:
    """Samples [clients, classes], all splits together; with several labels per sample, those that have the label."""
    if not has_classes(federation):
        raise ValueError(f"there are no classes to count: the task is {federation.task}")
    found = torch.zeros(len(federation), federation.classes, dtype=torch.int64)
    for samples in federation.splits.values():
        for client in range(len(federation)):
            y = samples.of(client)[1].cpu()
            several = federation.task == "multi-label"
            found[client] += y.long().sum(0) if several else torch.bincount(y, minlength=federation.classes)
    return found.numpy()


def target_statistics(federation: Federation) -> NDArray[np.float64]:
    """Mean and standard deviation of every target, all splits together: [clients + 1, targets, 2], last all clients together."""
    splits = federation.splits.values()
    of_clients = [np.concatenate([s.of(i)[1].cpu().numpy() for s in splits]) for i in range(len(federation))]
    return np.stack([np.stack([y.mean(0), y.std(0)], -1) for y in (*of_clients, np.concatenate(of_clients))]).astype(np.float64)


def token_counts(federation: Federation) -> list[int]:
    """Of language modelling: tokens per client without padding, all splits together."""
    splits = federation.splits.values()
    return [sum(int((s.of(i)[1] != IGNORED).sum()) for s in splits) for i in range(len(federation))]


def heterogeneity(counted: NDArray[np.int64]) -> float:
    """Mean over pairs of clients of the total-variation distance ½ Σ_c |p_ic − p_jc| of their label distributions.

    0: all alike; 1: no two clients share a class.
    """
    share = counted / np.maximum(counted.sum(axis=1, keepdims=True), 1)
    clients = len(share)
    if clients < 2:
        return 0.0
    total = sum(float(np.abs(share[i] - share[i + 1 :]).sum()) / 2 for i in range(clients - 1))
    return total / (clients * (clients - 1) / 2)


def document(federation: Federation) -> dict[str, Any]:
    """The figures of ``fedfew data show`` as JSON values."""
    sides = federation.counts()
    counted = counts(federation) if has_classes(federation) else None
    clients = [
        {"name": name, "samples": sum(numbers[i] for numbers in sides.values())}
        | {side: numbers[i] for side, numbers in sides.items()}
        | described
        for i, (name, described) in enumerate(zip(federation.client_names, _described(federation, counted), strict=True))
    ]
    return {
        "name": federation.name,
        "shape": list(federation.shape),
        "dtype": str(federation.train.x.dtype).removeprefix("torch."),
        "task": federation.task,
        "class_names": [] if federation.task == "language-modelling" else list(federation.class_names),
        "label_distance": None if counted is None else heterogeneity(counted),
        "clients": clients,
        "about": dict(federation.about),
    }


def _described(federation: Federation, counted: NDArray[np.int64] | None) -> list[dict[str, Any]]:
    """Of each client what its targets are like: counts of classes, or mean and standard deviation, or the number of tokens."""
    if federation.task == "language-modelling":
        return [{"tokens": number} for number in token_counts(federation)]
    values = target_statistics(federation).tolist()[:-1] if counted is None else counted.tolist()
    return [{"targets" if counted is None else "classes": dict(zip(federation.class_names, one, strict=True))} for one in values]


def column_lines(federation: Federation) -> list[str]:
    """The columns used and left out; empty if the data is no table."""
    columns = federation.about.get("columns")
    if not columns:
        return []
    left_out = ", ".join(f"{name or '(no name)'} ({reason})" for name, reason in columns["left_out"].items())
    return [f"columns used: {', '.join(columns['used'])}", *([f"columns left out: {left_out}"] if left_out else [])]


def table(federation: Federation, width: int = 100) -> Table:
    """Counts for a terminal of that width: one column per class, or a summary if those do not fit; of numbers mean and std."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    sides = federation.counts()
    samples = [sum(of_client) for of_client in zip(*sides.values(), strict=True)]
    fixed = {"client": [*map(printable, federation.client_names), "all"]}
    fixed |= {name: [*map(str, count), str(sum(count))] for name, count in {"samples": samples, **sides}.items()}
    room = width - 2 - sum(1 + max(len(name), *map(len, cells)) for name, cells in fixed.items())
    described, headed = _of_classes(federation, room) if has_classes(federation) else _of_targets(federation)
    result = Table(title=Text(printable(federation.name)), title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    columns = [*fixed.items(), *described]
    for place, (name, cells) in enumerate(columns):
        narrow = place >= len(fixed) and not headed  # long class names are folded, numbers never
        result.add_column(
            Text(name), justify="right", overflow="fold", no_wrap=not narrow, width=max(map(len, cells)) if narrow else None
        )
    for i, row in enumerate(zip(*(cells for _, cells in columns), strict=True)):
        if i == len(federation):
            result.add_section()
        result.add_row(*map(Text, row))  # names are no markup
    return result


def _of_targets(federation: Federation) -> tuple[list[tuple[str, list[str]]], bool]:
    if federation.task == "language-modelling":
        tokens = token_counts(federation)
        return [("tokens", [str(number) for number in (*tokens, sum(tokens))])], True
    found = target_statistics(federation)
    names = [printable(name) for name in federation.class_names]
    words = [(target, of, f"{name}: {word}") for target, name in enumerate(names) for of, word in enumerate(("mean", "std"))]
    return [(name, [f"{value:.4g}" for value in found[:, target, of].tolist()]) for target, of, name in words], True


def _of_classes(federation: Federation, room: int) -> tuple[list[tuple[str, list[str]]], bool]:
    """Columns, and whether their names fit above them in so much room."""
    counted = counts(federation)
    names = [printable(name) for name in federation.class_names]
    per_class = [
        (name, [*(str(n) if n else "·" for n in column), str(sum(column))])
        for name, column in zip(names, counted.T.tolist(), strict=True)
    ]
    most = counted.argmax(axis=1)
    share = counted.max(axis=1) / np.maximum(counted.sum(axis=1), 1)
    summary = [
        ("classes", [*map(str, (counted > 0).sum(axis=1).tolist()), str(int((counted.sum(axis=0) > 0).sum()))]),
        ("largest", [*(names[label] for label in most), ""]),
        ("its share", [*(f"{part:.0%}" for part in share), ""]),
    ]
    fits = sum(1 + max(map(len, cells)) for _, cells in per_class) <= room
    headed = sum(1 + max(len(name), *map(len, cells)) for name, cells in per_class) <= room
    return (per_class, headed) if fits else (summary, True)


def picture(federation: Federation, path: str | Path, style: Style = "auto") -> Path:
    """Counts as a figure: stacked bars (up to ten classes) or bubbles (more)."""
    from matplotlib.figure import Figure

    counted = counts(federation)
    names = [printable(name) for name in federation.class_names]
    clients, classes = counted.shape
    if style == "auto":
        style = "bars" if classes <= len(COLOURS) else "bubbles"
    if style not in ("bars", "bubbles"):
        raise ValueError(f"style must be auto, bars or bubbles, not {style!r}")
    bars = style == "bars"
    width, height = (7.5, 1.2 + 0.24 * clients) if bars else (max(4.5, 2.0 + 0.24 * clients), min(14.0, 1.4 + 0.24 * classes))
    figure = Figure(figsize=(width, max(2.4 if bars else 3.0, height)), layout="constrained")
    axes = figure.add_subplot()
    (_draw_bars if bars else _draw_bubbles)(axes, counted, names, list(federation.client_names))
    if bars:
        figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    largest = "" if bars else f"\nlargest bubble: {int(counted.max()):,} samples"
    axes.set_title(
        f"{federation.name}\nmean pairwise label distance {heterogeneity(counted):.2f}{largest}", loc="left", fontsize=9
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    return target


def _draw_bars(axes: Any, counted: NDArray[np.int64], classes: list[str], clients: list[str]) -> None:
    left = np.zeros(len(counted))
    for label, name in enumerate(classes):
        look = {"color": COLOURS[label % len(COLOURS)], "hatch": HATCHES[label // len(COLOURS) % 2], "edgecolor": "white"}
        axes.barh(range(len(counted)), counted[:, label], left=left, lw=0.4, label=name, **look)
        left += counted[:, label]
    axes.invert_yaxis()
    axes.set(xlabel="samples", ylabel="client")
    axes.set_yticks(*_ticks(len(counted), clients))


def _draw_bubbles(axes: Any, counted: NDArray[np.int64], classes: list[str], clients: list[str]) -> None:
    at_class, at_client = np.nonzero(counted.T)
    size = counted.T[at_class, at_client]
    axes.scatter(at_client, at_class, s=130 * size / counted.max(), color=COLOURS[0], alpha=0.8, linewidths=0)
    axes.set(xlabel="client", ylabel="class", xlim=(-0.7, len(counted) - 0.3), ylim=(len(classes) - 0.3, -0.7))
    axes.set_xticks(*_ticks(len(counted), clients))
    axes.set_yticks(*_ticks(len(classes), classes))
    axes.grid(color="#EEEEEE", lw=0.5)
    axes.set_axisbelow(True)


def _ticks(number: int, names: list[str]) -> tuple[list[int], list[str]]:
    step = -(-number // 40)  # at most 40 names
    return list(range(0, number, step)), names[::step]
