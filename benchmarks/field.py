"""The field's own benchmark, pfl-research's CIFAR-10 set-up: pfl, Flower's simulation, FedJAX and fedfew side by side.

    python benchmarks/field.py --data-dir DATA --pfl-python A/bin/python --flwr-python B/bin/python --fedjax-python C/bin/python
    PYTHONPATH=folder-with-pfl python benchmarks/field.py --only pfl,fedfew --device cuda --synthetic

Each tool runs in a process of its own, given the same cohorts, batch orders and first model (``field_task.py``): first for one
round without dropout, after which the models must be the same but for rounding, then timed with the benchmark's dropout.
Start-up is measured apart from seconds per round. On several cores (``--threads 2``) each tool runs as its documents say: pfl
with one process per core, Flower with one actor per core, fedfew in one process. pfl, flwr and fedjax must be importable by the
python given for them (pip install pfl, flwr[simulation], fedjax), and torch by all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from field_task import BEGUN, CLASSES, EACH, USERS, WARM_UP, Task

HERE = Path(__file__).parent
TOOLS = ("pfl", "flwr", "fedjax", "fedfew")
CHECK_ROUNDS = 1
PASS = ("how", "all_seconds", "all_processor_seconds", "load_before")  # kept of every pass; all else is the fastest one's
KEEP = {"test_x", "test_y", "x", "y"}


def real(data_dir: Path | None) -> dict[str, np.ndarray]:
    """All 60,000 images dealt to the users, 50 to train on and 10 for the common test set from each."""
    import fedfew

    test_share = 10 / (EACH + 10)
    data = fedfew.data.load("cifar10", clients=USERS, partition="iid", data_dir=data_dir, test_share=test_share)
    assert data.train.count.unique().tolist() == [EACH], "the images do not come out even"
    rows = torch.cat([data.train.rows(i) for i in range(USERS)])
    x, y = data.train.x[rows].unflatten(0, (USERS, EACH)), data.train.y[rows].unflatten(0, (USERS, EACH))
    return {name: t.numpy() for name, t in zip(sorted(KEEP), (data.test.x, data.test.y, x, y), strict=True)}


def synthetic() -> dict[str, np.ndarray]:
    """Made-up images of the same shape: for timing, where the real ones cannot be had."""
    draw = np.random.RandomState(0)
    return {
        "x": draw.randint(0, 256, (USERS, EACH, 3, 32, 32), dtype=np.uint8),
        "y": draw.randint(0, CLASSES, (USERS, EACH)),
        "test_x": draw.randint(0, 256, (1000, 3, 32, 32), dtype=np.uint8),
        "test_y": draw.randint(0, CLASSES, 1000),
    }


def from_file(path: Path) -> dict[str, np.ndarray]:
    """An .npz with x [users, 50, 3, 32, 32], y, test_x, test_y; of fewer users' images, the same are dealt again."""
    arrays = dict(np.load(path))
    if arrays.keys() != KEEP:
        raise SystemExit(f"{path} must hold {', '.join(sorted(KEEP))}, not {', '.join(arrays)}")
    again = np.arange(USERS) % len(arrays["x"])
    return arrays | {"x": arrays["x"][again], "y": arrays["y"][again]}


def run_tool(tool: str, python: str, folder: Path, threads: int) -> dict[str, Any] | None:
    """What the tool wrote down; None, with its last words on stderr, where it failed."""
    paths = [str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        BEGUN: str(time.time()),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": str(threads),
    }
    command = [python, str(HERE / f"field_{tool}.py"), str(folder)]
    if tool == "pfl" and threads > 1:  # it uses several cores through processes, started by torchrun
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", f"--nproc_per_node={threads}"]
        environment["OMP_NUM_THREADS"] = "1"
    load = os.getloadavg()[0]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{tool} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads((folder / f"{tool}.json").read_text())
    return result | {"load_before": load}


def apart(folder: Path, a: str, b: str) -> float:
    """How far two tools' models are apart, as a share of how far training moved them; of the worst tensor."""
    first, one, other = (torch.load(folder / f"{name}.pt") for name in ("initial", a, b))
    return max(float((one[k] - other[k]).norm() / (other[k] - first[k]).norm()) for k in first)


def compare(arrays: dict[str, np.ndarray], tools: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    passes: dict[str, list[dict[str, Any]]] = {}
    settings = {"device": options.device, "threads": options.threads, "engine": options.engine, "seed": options.seed}
    settings["fedfew"] = {} if options.precision is None else {"precision": options.precision}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        Task.write(folder, arrays, rounds=CHECK_ROUNDS, dropout=False, **settings)
        checked = [tool for tool, python in tools.items() if run_tool(tool, python, folder, options.threads)]
        differs = {tool: apart(folder, tool, "fedfew") for tool in checked if "fedfew" in checked}
        print(f"after {CHECK_ROUNDS} round without dropout the models differ from fedfew's by {differs}", file=sys.stderr)
        Task.write(folder, arrays, rounds=WARM_UP + options.rounds + 1, dropout=True, **settings)
        for number in range(options.passes):
            for tool in checked:
                result = run_tool(tool, tools[tool], folder, options.threads)
                if result is None:
                    continue
                busy = result["processor_seconds"]
                processor = "" if busy is None else f", {busy:.3f} s of processor time"
                load = f"load average before {result['load_before']:.1f}"
                print(f"pass {number + 1}: {tool} {result['seconds']:.3f} s per round{processor}, {load}", file=sys.stderr)
                passes.setdefault(tool, []).append({key: result[key] for key in PASS})
                if tool not in results or result["seconds"] < results[tool]["seconds"]:
                    results[tool] = result | {"differs": differs.get(tool)}
    for tool, result in results.items():
        result["passes"] = passes[tool]
    return results


def main() -> None:
    from fedfew.bench import machine

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(TOOLS), help="tools, separated by commas")
    parser.add_argument(
        "--rounds", type=int, default=5, help=f"rounds timed, between {WARM_UP} before and one after that are not"
    )
    parser.add_argument("--passes", type=int, default=1, help="turns that the tools take; the fastest counts")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--threads",
        type=int,
        default=torch.get_num_threads(),
        help="of fedfew; as many processes of pfl and actors of Flower, of one thread each",
    )
    parser.add_argument("--engine", default="auto", help="fedfew's engine")
    parser.add_argument("--precision", help="fedfew's precision, where it is a setting")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path, help="where CIFAR-10 lies (as for fedfew.data.load)")
    parser.add_argument("--data", type=Path, help="an .npz instead, with x, y, test_x and test_y")
    parser.add_argument("--synthetic", action="store_true", help="made-up images instead: accuracy means nothing")
    parser.add_argument("--pfl-python", default=sys.executable, help="a python that has pfl")
    parser.add_argument("--flwr-python", default=sys.executable, help="a python that has flwr[simulation]")
    parser.add_argument("--fedjax-python", default=sys.executable, help="a python that has fedjax")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, progress on stderr")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    pythons = {
        "pfl": options.pfl_python,
        "flwr": options.flwr_python,
        "fedjax": options.fedjax_python,
        "fedfew": sys.executable,
    }
    wrong = set(options.only.split(",")) - set(TOOLS)
    if wrong:
        parser.error(f"--only: there is no {', '.join(wrong)}; there is {', '.join(TOOLS)}")
    tools = {tool: pythons[tool] for tool in TOOLS if tool in options.only.split(",")}
    arrays = synthetic() if options.synthetic else from_file(options.data) if options.data else real(options.data_dir)
    results = compare(arrays, tools, options)
    images = "made-up" if options.synthetic else "real"
    document = {
        "machine": machine.describe(torch.device(options.device)),
        "images": images,
        "rounds": options.rounds,
        "tools": results,
    }
    if options.json:
        print(json.dumps(document, indent=1))
        return
    base = results.get("fedfew", {}).get("seconds")
    print(f"{'tool':14} {'s a round':>10} {'× fedfew':>9} {'processor':>11} {'start-up':>11} {'accuracy':>9} {'differs':>8}  how")
    for tool, r in results.items():
        ratio = "" if base is None else f"{r['seconds'] / base:.2f}"
        differs = "" if r["differs"] is None else f"{r['differs']:.0e}"
        name = f"{tool} {r['version']}"
        busy = "" if r["processor_seconds"] is None else f"{r['processor_seconds']:.3f}"
        times = f"{r['seconds']:10.3f} {ratio:>9} {busy:>11} {r['start_up']:11.1f}"
        print(f"{name:14} {times} {r['accuracy']:9.1%} {differs:>8}  {r['how']}")


if __name__ == "__main__":
    main()
