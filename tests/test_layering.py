"""Which package may import which: dependencies point downwards, and methods know of no engine."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedfew

SOURCE = Path(fedfew.__file__).parent
EVERYBODY_MAY = {"util", "_version", "config"}
# What each package (or module at the top level) may import, besides EVERYBODY_MAY. Imports within functions and for type
# checkers alone count as well: they are dependencies for whoever reads the code.
BOTTOM = {"stack", "axes", "weighted_mean", "scalarization", "random_streams", "tasks", "targets", "samples"}
CLIENTS = BOTTOM | {"federation", "local", "models"}
TRAINING = CLIENTS | {"methods", "engines", "data", "adapters"}
EVALUATION = TRAINING | {"training"}
REPORTS = EVALUATION | {"evaluation", "export"}
MAY_IMPORT = {
    "_version": set(),
    "util": set(),
    "config": set(),
    "stack": set(),
    "axes": {"stack"},
    "weighted_mean": {"stack"},
    "scalarization": set(),
    "random_streams": set(),
    "tasks": set(),
    "targets": {"tasks"},
    "arrays": {"tasks", "targets"},
    "samples": {"stack"},
    "federation": BOTTOM | {"arrays"},
    "local": BOTTOM | {"federation"},
    "models": BOTTOM | {"federation"},
    "imaging": set(),
    "data": BOTTOM | {"federation", "imaging"},
    "adapters": BOTTOM | {"federation", "models"},
    "methods": CLIENTS,
    "engines": CLIENTS - {"scalarization"},
    "training": TRAINING,
    "evaluation": EVALUATION,
    "export": EVALUATION | {"evaluation"},
    "report": REPORTS,
    "tracking": REPORTS | {"report"},
    "bench": REPORTS | {"report"},
    "sklearn": EVALUATION,
    "studies": REPORTS | {"report", "fedfew"},
    "flower": REPORTS,
    "fedfew": REPORTS | {"report", "sklearn", "tracking"},  # the public names, loaded when first used
    "cli": REPORTS | {"report", "tracking", "bench", "studies", "flower", "fedfew"},
    "__main__": {"cli"},
}


def module_of(path: Path) -> str:
    parts = ("fedfew", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCE.rglob("*.py")}


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def imported(tree: ast.AST) -> set[str]:
    """Every module of ours that a source file imports. A name that is no module is one of the module it comes from."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here, so that this test can follow them"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "fedfew":
                while name not in MODULES:
                    name = name.rpartition(".")[0]
                found.add(name)
    return found


def test_every_package_has_its_place() -> None:
    assert {package_of(module) for module in MODULES} == set(MAY_IMPORT)


def test_the_table_has_no_circle() -> None:
    """Taking away packages that need nothing but what was taken away before leaves none."""
    left = dict(MAY_IMPORT)
    while left:
        free = [name for name, may in left.items() if not may & set(left)]
        assert free, f"a circle among {sorted(left)}"
        for name in free:
            del left[name]


def test_imports_point_downwards() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in sorted(MODULES.items())
        for name in sorted(imported(ast.parse(path.read_text(encoding="utf-8"))))
        if package_of(name) not in {package_of(module)} | MAY_IMPORT[package_of(module)] | EVERYBODY_MAY
    ]
    assert wrong == []


def test_what_an_import_names() -> None:
    source = "import fedfew.stack\nfrom fedfew import data, train\ndef f():\n    from fedfew.local import Loss\n    import torch"
    assert imported(ast.parse(source)) == {"fedfew.stack", "fedfew.data", "fedfew", "fedfew.local"}


@pytest.mark.slow
def test_methods_load_no_engine() -> None:
    program = "import sys, fedfew.methods; print(*[name for name in sys.modules if name.startswith('fedfew.engines')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_process_that_decodes_images_loads_no_torch() -> None:
    program = (
        "import sys, fedfew.imaging.process; print('numpy' in sys.modules, 'torch' in sys.modules, 'fedfew.data' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False"]
