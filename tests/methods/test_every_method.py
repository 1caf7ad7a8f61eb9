"""The shared properties, for every method there is."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedfew.methods import METHODS, make
from fedfew.methods.base import FAMILIES
from fedfew.methods.hyperparameters import hyper_parameters
from tests.methods import properties
from tests.methods.alternatives import ALTERNATIVES, FORMS, REFUSED, SAME_OUTCOME
from tests.methods.small import train
from tests.methods.tiers import tiered

DOCS = Path(__file__).parents[2] / "docs" / "methods"

every_method = pytest.mark.parametrize("name", METHODS)
ALL_FORMS = [
    *[(name, {}) for name in METHODS],
    *[(name, {"published": True}) for name, cls in METHODS.items() if cls.as_published() != cls()],
    *FORMS,
]
every_form = pytest.mark.parametrize(("name", "settings"), tiered(ALL_FORMS))
every_alternative = pytest.mark.parametrize(
    ("name", "setting"),
    tiered([pair for name, table in ALTERNATIVES.items() for setting in table if (pair := (name, setting)) not in SAME_OUTCOME]),
)
every_refused = pytest.mark.parametrize(
    ("name", "setting", "value"),
    [(name, setting, value) for name, table in REFUSED.items() for setting, values in table.items() for value in values],
)


@every_form
def test_engines_agree(name: str, settings: dict[str, Any]) -> None:
    cases = [("stacked", 2), ("stacked", None), ("threaded", None), ("sequential", 1)]
    properties.assert_engines_agree(make(name, **settings), cases)


@every_form
def test_permuting_the_clients_permutes_the_results(name: str, settings: dict[str, Any]) -> None:
    properties.assert_follows_permutation(make(name, **settings))


@every_form
def test_resumed_run_is_the_same_to_the_last_bit(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    properties.assert_resumes(make(name, **settings), tmp_path)


@every_form
def test_absent_clients_keep_their_state(name: str, settings: dict[str, Any]) -> None:
    properties.assert_absent_clients_rest(make(name, **settings))


@every_form
def test_settings_round_trip(name: str, settings: dict[str, Any]) -> None:
    properties.assert_settings_round_trip(make(name, **settings))


@every_form
def test_buffers_are_kept(name: str, settings: dict[str, Any]) -> None:
    properties.assert_takes_buffers(make(name, **settings))


@every_form
def test_served_score_is_of_the_model_handed_out(name: str, settings: dict[str, Any]) -> None:
    properties.assert_scores_are_of_what_is_served(make(name, **settings))


@every_form
def test_bytes_are_those_of_the_message(name: str, settings: dict[str, Any]) -> None:
    properties.assert_counts_what_travels(make(name, **settings))


@every_method
def test_every_setting_has_an_alternative(name: str) -> None:
    assert ALTERNATIVES[name].keys() == {f.name for f in fields(METHODS[name])}


@every_alternative
def test_every_setting_changes_the_outcome(name: str, setting: str) -> None:
    base, value = ALTERNATIVES[name][setting]
    properties.assert_setting_matters(make(name, **base), setting, value)


@every_method
def test_every_setting_that_can_be_wrong_is_checked(name: str) -> None:
    switches = {hyperparameter.name for hyperparameter in hyper_parameters(name) if hyperparameter.hint is bool}
    assert REFUSED[name].keys() >= ALTERNATIVES[name].keys() - switches


@every_refused
def test_bad_values_are_refused_by_name(name: str, setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"\b{setting}\b"):
        train(make(name, **{setting: value}), rounds=1)


@every_method
def test_preset_takes_changes(name: str) -> None:
    published = METHODS[name].as_published()
    assert published == make(name, published=True)
    for setting, (base, value) in ALTERNATIVES[name].items():
        changes = base | {setting: value}
        assert make(name, published=True, **changes).settings() == published.settings() | changes


@every_method
def test_every_method_says_what_its_scores_are(name: str) -> None:
    assert METHODS[name].served
    assert METHODS[name].adapted


@every_method
def test_page_names_every_setting_and_its_default(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text()
    for f in fields(METHODS[name]):
        row = next((line for line in page.splitlines() if line.startswith(f"| `{f.name}` ")), None)
        assert row is not None, f"docs/methods/{name}.md has no row for {f.name}"
        assert f"`{f.default!r}`" in row, f"docs/methods/{name}.md: the default of {f.name} is {f.default!r}"


@pytest.mark.parametrize("name", [name for name, cls in METHODS.items() if cls.__module__.startswith("fedfew.")])
def test_every_method_is_listed_by_family_with_lines_of_its_own(name: str) -> None:
    cls = METHODS[name]
    assert cls.family in set(FAMILIES) - {"other"}
    assert {"summary", "when"} <= vars(cls).keys()  # inherited ones would describe another method
    assert f"| [`{name}`]({name}.md) | {cls.summary} | {cls.when} |" in (DOCS / "README.md").read_text().splitlines()
