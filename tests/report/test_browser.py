"""The page in a real Chromium: it loads in silence, the slider moves the heat map, a client can be picked, a run is followed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfew.cli.run import train_in
from fedfew.report.page.document import of_run
from fedfew.report.page.html import page
from fedfew.report.page.record import InMemory, SideFiles
from fedfew.report.page.server import Watched, serving
from fedfew.training.confusion import Confusion
from fedfew.training.data_record import DataRecord
from fedfew.training.from_settings import make_federation
from fedfew.training.history import History
from fedfew.training.resolve import resolve
from tests.report.browser import Page, chromium
from tests.report.synthetic import Synthetic
from tests.report.test_page import by_hand, nasty

__all__ = ["chromium"]  # a fixture
pytestmark = pytest.mark.slow


def beside(clients: int, classes: int = 10) -> SideFiles:
    rng = np.random.default_rng(0)
    about = {"train": [50] * clients, "test": [50] * clients, "groups": (np.arange(clients) % 3).tolist()}
    return SideFiles(
        "synthetic", about, rng.integers(0, 9, (clients, classes)), config={"dataset": "x", "rounds": 30}, costs={"steps": 3}
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of a run with 12 clients, of one with 3,000, and of one without weights and choice."""
    folder = tmp_path_factory.mktemp("pages")
    without = Synthetic(6, 4, models=1)
    without.settings["method"] = {"name": "fedavg"}
    without.columns -= {"alpha", "w"}
    documents = {
        "small": of_run(Synthetic(12, 30), beside(12)),
        "many": of_run(Synthetic(3000, 300), beside(3000)),
        "without": of_run(without),
        "nasty": nasty(),
        "sites": of_run(InMemory(_at_sites())),
        "unscored": of_run(InMemory(_unscored())),
        "prices": of_run(InMemory(_prices())),
        "kept": of_run(InMemory(_kept())),
        "alike": of_run(InMemory(_alike())),
        "short": of_run(Synthetic(3, 1, models=2), beside(3)),
        "named": of_run(InMemory(_named()), SideFiles(confusion=Confusion.of([([0, 1], [0, 0])] * 3 + [([1, 1], [1, 2])], 3))),
    }
    for name, made in documents.items():
        (folder / f"{name}.html").write_text(page(made), encoding="utf-8")
    return folder


def _at_sites() -> Any:
    """A run on Flower, in which client 2 was never there to be scored."""
    state = by_hand()
    columns = state.history.arrays()
    columns["choice"][:, 2] = -1
    for name in ("served_accuracy", "adapted_accuracy", "alpha", "w", "losses"):
        columns[name][:, 2] = np.nan
    state.history, state.sites = History.from_arrays(columns), {"run": "x"}
    return state


def _prices() -> Any:
    """A regression whose R² is far below 0."""
    state = by_hand()
    columns = state.history.arrays()
    for score in ("served", "adapted"):
        columns[f"{score}_score"] = 10 * columns.pop(f"{score}_accuracy") - 20
    state.history = History.from_arrays(columns)
    state.settings["federation"]["task"] = "regression"
    return state


def _kept() -> Any:
    """Of three scored rounds the second, round 4, is kept; one model is used in it."""
    state = by_hand()
    columns = state.history.arrays()
    columns["choice"][1] = 1
    state.history, state.best = History.from_arrays(columns), {"round": torch.tensor(4)}
    return state


def _alike() -> Any:
    """Clients with nearly the same score, one of whom has a long name."""
    state = by_hand()
    columns = state.history.arrays()
    for score in ("served", "adapted"):
        columns[f"{score}_accuracy"] = 0.9987 + 0.001 * columns[f"{score}_accuracy"]
    columns["seconds"] = 0.105 + 0.003 * columns["seconds"]
    state.history = History.from_arrays(columns)
    state.data = DataRecord(client_names=("A", "University Hospital of the District, ward 3", "B", "C"))
    return state


def _named() -> Any:
    state = by_hand()
    state.data = DataRecord(client_names=("Basel", "<b>Bern</b>", "Chur", "Davos"), class_names=("ill", "<i>well</i>", "both"))
    return state


def _unscored() -> Any:
    state = by_hand()
    state.history = History()
    return state


@pytest.fixture
def browser(chromium: Any) -> Iterator[Page]:
    opened = Page(chromium)
    opened.resize(1280)
    yield opened
    assert opened.console() == []


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (375, "dark")])
@pytest.mark.parametrize("name", ["small", "many", "without", "sites", "unscored", "named"])
def test_it_loads_without_a_complaint_and_fits(browser: Page, pages: Path, name: str, width: int, theme: str) -> None:
    browser.resize(width, theme)
    browser.open(pages / f"{name}.html")
    assert browser.do("return document.documentElement.scrollWidth") <= width
    if name != "unscored":
        browser.wait("return document.querySelectorAll('#curves .plot path.line').length == 4")
    assert browser.text("h1").endswith("four" if name in ("sites", "unscored", "named") else "synthetic")
    background = browser.do("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(14, 19, 24)") == (theme == "dark")


def test_a_score_below_0_keeps_its_sign_and_its_name(browser: Page, pages: Path) -> None:
    browser.open(pages / "prices.html")
    for section in ("curves", "clients", "client", "fairness"):
        browser.do("document.getElementById(arguments[0]).scrollIntoView()", section)
        ticks = f"#{section} .plot svg text.tick"
        browser.wait("return document.querySelector(arguments[0])", ticks)
        assert browser.do(
            "return [...document.querySelectorAll(arguments[0])].some((t) => t.textContent.startsWith('-1'))", ticks
        )
        cut = "(t) => t.getBoundingClientRect().left < t.closest('svg').getBoundingClientRect().left"
        assert (
            browser.do(f"return [...document.querySelectorAll(arguments[0])].filter({cut}).map((t) => t.textContent)", ticks)
            == []
        )
    assert "accuracy" not in browser.text("main").lower()


def test_ticks_are_named_with_the_digits_that_tell_them_apart(browser: Page, pages: Path) -> None:
    """Jain's index 0.9995 stood above the tick 1, which was 0.9995 as well."""
    browser.open(pages / "alike.html")
    for section in ("curves", "clients", "client", "fairness"):
        browser.do("document.getElementById(arguments[0]).scrollIntoView()", section)
        browser.wait("return document.querySelector(arguments[0])", f"#{section} .plot svg text.tick")
        charts = browser.do(
            "return [...document.querySelectorAll(arguments[0])].map((s) => [...s.querySelectorAll('text.tick')]"
            ".filter((t) => t.getAttribute('text-anchor') == 'end' && !t.classList.contains('name'))"
            ".map((t) => [parseFloat(t.textContent), Number(t.getAttribute('y'))]))",
            f"#{section} .plot svg",
        )
        for heights in filter(None, charts):
            values, places = np.array(heights).T
            steps = np.diff(values) / np.diff(places)
            np.testing.assert_allclose(steps, steps[:1].repeat(len(steps)), rtol=1e-6, err_msg=section)
            assert (steps < 0).all()


def test_one_round_is_named_below_its_point(browser: Page, pages: Path) -> None:
    browser.open(pages / "short.html")
    browser.wait("return document.querySelector('#curves .plot circle.dot')")
    tick, dot = browser.do(
        "const svg = document.querySelector('#curves .plot svg');"
        "const tick = [...svg.querySelectorAll('text.tick')].find((t) => t.textContent == '1');"
        "return [tick && Number(tick.getAttribute('x')), Number(svg.querySelector('circle.dot').getAttribute('cx'))]"
    )
    assert tick == pytest.approx(dot)


def test_a_chart_of_zeros_names_zero_once(browser: Page, pages: Path) -> None:
    browser.open(pages / "short.html")
    browser.do("document.getElementById('models').scrollIntoView()")
    browser.wait("return document.querySelector('#models .low svg text.tick')")
    assert browser.do("return [...document.querySelectorAll('#models .low svg text.tick')].map((t) => t.textContent)") == ["0"]


def test_a_long_name_breaks_between_words(browser: Page, pages: Path) -> None:
    browser.open(pages / "alike.html")
    assert "University Hospital of" in browser.do("return document.querySelector('#summary dl').textContent")


def test_scores_are_said_to_be_of_the_round_whose_models_are_used(browser: Page, pages: Path) -> None:
    for name, words, used in (("kept", "best round on validation data (4)", 1), ("named", "last scored round", 2)):
        browser.open(pages / f"{name}.html")
        assert f"over clients, {words}" in browser.text("#summary table")
        assert f"after the {words}." in browser.text("#clients .lead")
        assert f"{used} of 2" in browser.text("#summary dl")
        browser.do("document.getElementById('models').scrollIntoView()")
        after = 4 if name == "kept" else 6
        browser.wait(
            f"return document.querySelector('#models').textContent.includes('{used} of 2 models in use after round {after}.')"
        )


def test_sections_that_have_nothing_to_show_say_why(browser: Page, pages: Path) -> None:
    browser.open(pages / "without.html")
    assert browser.text("#models .absent").startswith("With fedavg a client has nothing to choose")
    assert "keeps no weights" in browser.text("#weights .absent")
    assert "saved from Python" in browser.text("#labels .absent")
    assert not browser.find("#client .tiles").text.count("model")
    browser.open(pages / "sites.html")
    assert "sites that keep their labels" in browser.text("#labels .absent")
    browser.find("#client-number").clear()
    browser.find("#client-number").send_keys("2\n")
    assert "–" in browser.text("#client-panel .tile.served")
    browser.open(pages / "unscored.html")
    assert not browser.find("#curves").is_displayed()
    assert browser.find("#settings").is_displayed()


@pytest.mark.parametrize("name", ["small", "many"])
def test_the_slider_moves_the_heat_map(browser: Page, pages: Path, name: str) -> None:
    browser.open(pages / f"{name}.html")
    browser.wait("const c = document.querySelector('#w-map canvas'); return c && c.width > 100")
    last = browser.pixels("#w-map canvas")
    told = browser.text("#round-label")
    slider = browser.find("#round")
    slider.send_keys("\ue012")  # the left arrow
    assert browser.text("#round-label") != told
    before = browser.pixels("#w-map canvas")
    assert before != last
    slider.send_keys("\ue011")  # Home
    assert browser.text("#round-label").startswith("round 1 of")
    assert browser.pixels("#w-map canvas") not in (before, last)
    slider.send_keys("\ue010")  # End
    assert browser.pixels("#w-map canvas") == last


def test_the_weights_are_those_of_the_round(browser: Page, pages: Path) -> None:
    browser.open(pages / "small.html")
    record = Synthetic(12, 30)
    at = browser.do(
        "document.querySelector('#round').value = 4; document.querySelector('#round').dispatchEvent(new Event('input')); return 4"
    )
    alpha = record.row("alpha", at)
    first = of_run(record, beside(12))["rows"]["order"][0]
    browser.find("#weights .plot.alpha").send_keys("\ue011")  # Home: the first client drawn
    words = browser.text("#weights .readout")
    assert words.startswith(f"round 5, client {first}, group {first % 3}: ")
    wanted = "did not take part" if np.isnan(alpha[first]) else f"α {float(f'{alpha[first]:.3g}')} ("
    assert wanted in words


def test_play_runs_to_the_last_round(browser: Page, pages: Path) -> None:
    browser.open(pages / "small.html")
    browser.find("#play").click()
    assert "Pause" in browser.text("#play")
    browser.wait("return document.querySelector('#round').value != 29")
    browser.find("#play").click()
    assert "Play" in browser.text("#play")
    browser.do("document.querySelector('#round').value = 27; document.querySelector('#round').dispatchEvent(new Event('input'))")
    browser.find("#play").click()
    browser.wait(
        "return document.querySelector('#play').textContent.includes('Play') && document.querySelector('#round').value == 29"
    )


def test_a_client_is_picked_by_number_by_click_and_by_key(browser: Page, pages: Path) -> None:
    browser.open(pages / "small.html")
    served = Synthetic(12, 30).row("served_accuracy", 29)
    worst = int(served.argmin())
    assert browser.do("return document.querySelector('#client-number').value") == str(worst)  # before any is picked
    field = browser.find("#client-number")
    field.clear()
    field.send_keys("7\n")
    assert f"{100 * served[7]:.1f} %" in browser.text("#client-panel .tile.served")
    field.clear()
    field.send_keys("99\n")
    assert browser.text("#client .wrong") == "Clients have the numbers 0 to 11."
    browser.do("document.querySelector('#clients').scrollIntoView()")
    from selenium.webdriver import ActionChains

    plot = browser.find("#clients .plot")
    left, right = 46, 12
    width = plot.size["width"]
    rank = 9
    x = left + (rank + 0.5) / 12 * (width - left - right)
    ActionChains(browser.driver).move_to_element_with_offset(plot, round(x - width / 2), 0).click().perform()
    chosen = int(np.argsort(served, kind="stable")[rank])
    assert browser.do("return document.querySelector('#client-number').value") == str(chosen)
    plot.send_keys("\ue011", "\ue014", "\n")  # Home, right, Enter
    second = int(np.argsort(served, kind="stable")[1])
    assert browser.do("return document.querySelector('#client-number').value") == str(second)
    browser.find("#client-best").click()
    assert browser.do("return document.querySelector('#client-number').value") == str(int(served.argmax()))


def test_every_one_of_many_clients_can_be_picked(browser: Page, pages: Path) -> None:
    browser.open(pages / "many.html")
    served = Synthetic(3000, 300).row("served_accuracy", 299)
    field = browser.find("#client-number")
    for client in (0, 1234, 2999):
        field.clear()
        field.send_keys(f"{client}\n")
        assert f"{100 * served[client]:.1f} %" in browser.text("#client-panel .tile.served")
    assert "mean of its bin of" in browser.text("#client-panel figcaption")


def test_charts_answer_the_keyboard(browser: Page, pages: Path) -> None:
    browser.open(pages / "small.html")
    chart = browser.find("#curves .plot")
    chart.send_keys("\ue011")
    mean = Synthetic(12, 30).row("served_accuracy", 0).mean()
    assert browser.text("#curves .readout").startswith(f"round 1: mean {100 * mean:.1f} %")
    chart.send_keys("\ue014")
    assert browser.text("#curves .readout").startswith("round 2: ")
    assert chart.get_attribute("aria-label").startswith("Learning curve, served accuracy")


def test_names_from_the_data_do_not_run(browser: Page, pages: Path) -> None:
    browser.open(pages / "nasty.html")
    assert browser.do("return window.hacked") is None
    assert browser.do("return document.images.length") == 0
    assert "<script>window.hacked=1</script>" in browser.text("h1")


def test_clients_and_classes_have_their_names(browser: Page, pages: Path) -> None:
    browser.open(pages / "named.html")
    tiles = browser.do("return Array.from(document.querySelectorAll('#summary .tile'), (n) => n.textContent)")
    assert any(text.replace("\u00a0", " ") == "worst client, served60.0 % <b>Bern</b>" for text in tiles)
    assert browser.do("return document.querySelectorAll('b, i').length - document.querySelectorAll('.lead b').length") == 0
    rows = "document.querySelectorAll('#classes tbody tr')"
    table = f"return Array.from({rows}, (row) => Array.from(row.children, (cell) => cell.textContent))"
    whole = [[cell.replace("\u00a0", " ") for cell in row] for row in browser.do(table)]
    assert whole == [
        ["<i>well</i>", "5", "20.0 %", "100.0 %", "33.3 %"],
        ["ill", "3", "100.0 %", "50.0 %", "66.7 %"],
        ["both", "0", "–", "0.0 %", "0.0 %"],
    ]
    field = browser.find("#client-number")
    assert field.get_attribute("value") == "<b>Bern</b>"
    browser.do("const f = document.querySelector('#client-number'); f.value = 'Davos'; f.dispatchEvent(new Event('change'))")
    assert browser.text("#classes-one") == "only Davos (picked below)"
    browser.find("#classes-one").click()
    assert [row[:2] for row in browser.do(table)] == [["<i>well</i>", "2"], ["both", "0"]]
    browser.do("const f = document.querySelector('#client-number'); f.value = 'Genf'; f.dispatchEvent(new Event('change'))")
    assert browser.text("#client .wrong") == "No client has that name."


def test_a_run_is_followed_while_it_goes_on(browser: Page, tmp_path: Path) -> None:
    """The run waits at its third round until the page has shown it."""
    folder, go_on = tmp_path / "mine", threading.Event()
    flags = {"rounds": 6, "clients": 6, "engine": "stacked", "device": "cpu", "checkpoint_every": 1}
    settings = resolve(flags, {"models": "2"})
    federation, _ = make_federation(settings)

    def hold(told: Any) -> None:
        if told.round == 3:
            assert go_on.wait(600)

    run = threading.Thread(target=train_in, args=(folder, settings, federation, hold, False, ""))
    with serving(Watched(folder, every=100), 0) as server:
        served = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        served.start()
        try:
            browser.open(server.address)
            browser.wait("return document.querySelector('#live').textContent.startsWith('Waiting for a run')")
            run.start()
            browser.wait("return document.querySelector('#subtitle').textContent.includes('round 3 of 6')")
            browser.wait("return document.querySelector('#live').dataset.state == 'running'")
            assert browser.text("#live").startswith("Round ")
            browser.do(
                "document.querySelector('#round').value = 0; document.querySelector('#round').dispatchEvent(new Event('input'))"
            )
            browser.find("#client-number").clear()
            browser.find("#client-number").send_keys("4\n")
            go_on.set()
            browser.wait("return document.querySelector('#live').textContent.startsWith('Finished: round 6 of 6')")
            browser.wait("return document.querySelector('#subtitle').textContent.includes('round 6 of 6')")
            assert browser.text("#round-label") == "round 1 of 6"  # the reader stays where they were
            assert browser.do("return document.querySelector('#client-number').value") == "4"
            assert browser.do("return document.querySelector('#round').max") == "5"
        finally:
            go_on.set()
            run.join()
            server.shutdown()
            served.join()
    browser.wait("return document.querySelector('#live').dataset.state == 'gone'")
    messages = browser.console()  # the server is gone, which the browser says, too
    assert all("net::ERR" in message for message in messages)


def test_a_printer_gets_every_chart_on_white(browser: Page, pages: Path) -> None:
    browser.resize(1280, "dark")
    browser.open(pages / "small.html")
    dark = browser.pixels("#w-map canvas")
    lines = "return document.querySelectorAll('#curves .plot path.line').length"
    assert browser.do(f"dispatchEvent(new Event('beforeprint')); {lines}") == 4  # at once: a printer does not wait
    printed = browser.pixels("#w-map canvas")
    assert printed != dark
    assert browser.do(f"dispatchEvent(new Event('afterprint')); {lines}") == 4
    assert browser.pixels("#w-map canvas") == dark
    browser.resize(1280, "light")
    browser.open(pages / "small.html")
    assert browser.pixels("#w-map canvas") == printed
