"""The guide's code runs, and its methods have the properties that every method has."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fedfew.methods import METHODS, FedAvg, Method, make
from tests.methods import properties
from tests.methods.small import assert_same, tensors, train

GUIDE = Path(__file__).parents[2] / "docs" / "write-your-own-method.md"


@pytest.fixture(scope="module")
def written() -> Iterator[dict[str, Method]]:
    """The methods that the guide's code registers, once it has run from top to bottom."""
    before = dict(METHODS)
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    module = ModuleType("write_your_own_method")
    sys.modules[module.__name__] = module
    try:
        for block in blocks:
            exec(compile(block, str(GUIDE), "exec", dont_inherit=True), module.__dict__)
        yield {name: make(name) for name in METHODS.keys() - before.keys()}
    finally:
        METHODS.clear()
        METHODS.update(before)
        del sys.modules[module.__name__]


def test_guide_registers_two_methods(written: dict[str, Method]) -> None:
    assert written.keys() == {"qfair", "own-biases"}


@pytest.mark.parametrize("name", ["qfair", "own-biases"])
def test_guides_methods_have_the_shared_properties(name: str, written: dict[str, Method], tmp_path: Path) -> None:
    method = written[name]
    properties.assert_engines_agree(method, [("stacked", 2)])
    properties.assert_follows_permutation(method)
    properties.assert_resumes(method, tmp_path)
    properties.assert_absent_clients_rest(method)
    properties.assert_settings_round_trip(method)
    properties.assert_scores_are_of_what_is_served(method)
    properties.assert_counts_what_travels(method)


@pytest.mark.parametrize(("name", "setting", "value"), [("qfair", "q", 5.0), ("own-biases", "pull", 2.0)])
def test_guides_settings_matter(name: str, setting: str, value: float, written: dict[str, Method]) -> None:
    properties.assert_setting_matters(written[name], setting, value)
    with pytest.raises(ValueError, match=setting):
        make(name, **{setting: -1.0})


def test_guides_limit_holds(written: dict[str, Method]) -> None:
    assert_same(tensors(train(make("qfair", q=0.0))), tensors(train(FedAvg())))
