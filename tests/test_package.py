"""The package itself: light to import, and every public name there."""

import subprocess
import sys

import pytest

import fedfew

HEAVY = ("torch", "sklearn", "matplotlib", "pyarrow", "PIL", "datasets", "typer", "rich", "yaml")


def loaded_after(statement: str) -> list[str]:
    program = f"import sys\n{statement}\nprint(*[m for m in {HEAVY} if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after("import fedfew") == []


def test_training_loads_torch_alone():
    assert loaded_after("import fedfew; fedfew.train; fedfew.Federation; fedfew.FedFew; fedfew.load; fedfew.scalarization") == [
        "torch"
    ]


def test_every_public_name_is_there():
    for name in fedfew.__all__:
        assert getattr(fedfew, name) is not None
    assert dir(fedfew) == sorted(fedfew.__all__)
    assert fedfew.methods.Scaffold.name == "scaffold"
    assert callable(fedfew.evaluation.distillation.distill)
    with pytest.raises(AttributeError, match="has no attribute 'distilation'"):
        _ = fedfew.evaluation.distilation
    assert fedfew.train.__module__.startswith("fedfew.training.")


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        fedfew.trian  # noqa: B018  # the access is the test
