"""The page of a run: what its document holds, that it stays small, and that nothing in it can be made to run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedfew
from fedfew.report.page import binning, classes, pack, record
from fedfew.report.page.document import of_run
from fedfew.report.page.html import as_data, page
from fedfew.report.page.record import InMemory, SideFiles
from fedfew.training.checkpoint import CheckpointError, State
from fedfew.training.confusion import Confusion
from fedfew.training.history import History
from tests.helpers import federation
from tests.report.synthetic import Synthetic
from tests.report.unpacked import unpacked

NAN = float("nan")
ASSETS = Path(fedfew.__file__).parent / "report" / "page" / "assets"


def settings(**method: Any) -> dict[str, Any]:
    data = {"name": "four", "clients": 4, "classes": 3, "shape": [5], "test_samples": [10, 10, 10, 30], "fingerprint": "ab"}
    trained = {"federation": data, "model": "mlp", "method": {"name": "fedfew", "models": 2, "mu": 0.01} | method}
    return trained | {"rounds": 6, "lr": 0.1, "engine": "stacked", "chunk": 4, "fedfew": "0.1.0", "torch": "2.11.0"}


def by_hand() -> State:
    """Four clients, three scored rounds, two models. Client 3 is absent in the last round, client 1 changes its model twice."""
    history = History()
    served = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.5, 0.5], [0.9, 0.6, 0.7, 0.8]]
    adapted = [[0.2, 0.2, 0.2, 0.2], [0.6, 0.6, 0.6, 0.6], [1.0, 0.4, 0.7, NAN]]
    choice = [[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]
    alpha = [[0.25] * 4, [0.1, 0.2, 0.3, 0.4], [0.5, 0.25, 0.25, NAN]]
    w = [[[0.5, 0.5]] * 4, [[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0, 1]], [[1, 0], [0.75, 0.25], [0, 1], [NAN, NAN]]]
    for i in range(3):
        history.append(
            round=2 * (i + 1),
            served_accuracy=np.array(served[i]),
            adapted_accuracy=np.array(adapted[i]),
            choice=np.array(choice[i]),
            losses=np.where(np.isnan(alpha[i]), NAN, 1.0)[:, None].repeat(2, 1),
            seconds=1.0 + i,
            bytes_up=100.0,
            bytes_down=200.0,
            left_out=0,
            alpha=np.array(alpha[i]),
            w=np.array(w[i]),
            g=0.5,
        )
    return State(6, {}, {}, history, settings(), events=["round 2: client 3 was late"])


def made(beside: SideFiles | None = None) -> dict[str, Any]:
    return of_run(InMemory(by_hand()), beside)


# -- what it holds -----------------------------------------------------------------------------------------------------------


def test_curves_are_summaries_over_the_clients_that_have_a_score() -> None:
    document = made()
    assert document["rounds"] == [2, 4, 6]
    served, adapted = document["curves"]["served"], document["curves"]["adapted"]
    assert served["mean"] == [0.25, 0.5, 0.75]
    assert served["min"] == [0.1, 0.5, 0.6]
    assert served["max"] == [0.4, 0.5, 0.9]
    assert adapted["mean"] == [0.2, 0.6, 0.7]  # of the last round: (1 + 0.4 + 0.7) / 3
    assert adapted["worst_tenth"][-1] == 0.4  # ⌈3/10⌉ = 1 client
    assert served["jain"][1] == 1.0
    assert document["curves"]["present"] == [4, 4, 3]
    assert document["curves"]["models_in_use"] == [2, 2, 2]
    assert document["curves"]["largest"] == [
        0.5,
        pytest.approx((0.9 + 0.6 + 0.8 + 1) / 4),
        pytest.approx((1 + 0.75 + 1) / 3, rel=1e-4),
    ]
    assert document["curves"]["seconds"] == [1, 2, 3]
    assert document["seconds"] == 12  # two seconds per round in the mean, six rounds
    assert document["scores"]["served"]["weighted_mean"] == pytest.approx((0.9 + 0.6 + 0.7 + 3 * 0.8) / 6, rel=1e-5)


def test_the_round_in_use_is_named() -> None:
    state = by_hand()
    assert of_run(InMemory(state))["in_use"] == 6
    state.best = {"round": torch.tensor(4)}
    assert of_run(InMemory(state))["in_use"] == 4


def test_changes_of_model_are_counted_for_clients_and_for_rounds() -> None:
    document = made()
    assert unpacked(document["clients"]["switches"]).tolist() == [0, 2, 0, 0]
    assert document["curves"]["switches"] == [0, 1, 1]
    assert unpacked(document["maps"]["choice"]).tolist() == [[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]


def test_a_client_that_was_not_scored_has_kept_its_model() -> None:
    state = by_hand()
    columns = state.history.arrays()
    columns["choice"] = np.array([[0, 0, 1, 1], [0, -1, -1, 1], [0, 1, 1, 1]])
    state.history = History.from_arrays(columns)
    document = of_run(InMemory(state))
    assert document["curves"]["models_in_use"] == [2, 2, 2]
    assert unpacked(document["clients"]["switches"]).tolist() == [0, 1, 0, 0]
    assert np.isnan(unpacked(document["maps"]["choice"])[1]).tolist() == [False, True, True, False]


def test_switches_between_drawn_rounds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binning, "ROUNDS", 2)
    document = made()
    assert document["rounds"] == [2, 6]
    assert document["curves"]["switches"] == [0, 2]


def test_weights_come_as_they_are_and_absent_clients_have_none() -> None:
    maps = made()["maps"]
    alpha, w = unpacked(maps["alpha"]), unpacked(maps["w"])
    assert alpha[1] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert np.isnan(alpha[2]).tolist() == [False, False, False, True]
    assert w[2, :3] == pytest.approx(np.array([[1, 0], [0.75, 0.25], [0, 1]]), abs=0.002)
    assert np.isnan(w[2, 3]).all()
    assert unpacked(made()["clients"]["w"])[1] == pytest.approx([0.75, 0.25])


def test_rows_are_ordered_by_model_then_group_then_accuracy() -> None:
    assert made()["rows"]["order"] == [1, 0, 2, 3]  # models 0, 0, 1, 1; served 0.6 < 0.9, 0.7 < 0.8
    grouped = made(SideFiles(about={"groups": [0, 1, 1, 0]}))
    assert grouped["rows"]["order"] == [0, 1, 3, 2]
    assert grouped["groups"] == ["0", "1"]
    assert unpacked(grouped["clients"]["group"]).tolist() == [0, 1, 1, 0]


def test_what_lies_beside_is_shown() -> None:
    counts = np.array([[1, 1, 2], [4, 0, 0], [0, 0, 0], [0, 3, 1]])
    about = {"train": [4, 4, 0, 4], "test": [10, 10, 10, 30], "class_names": ["a", "b", "c"]}
    final = {"macro_f1": [0.5, 0.25, None, 0.75], "auc": [None] * 4}
    confusion = Confusion.of([([0], [0])] * 4, 3)
    document = made(SideFiles("mine", about, counts, final, {"checkpoint_every": 7}, {"bytes_up": 5, "steps": 2.5}, confusion))
    shares = unpacked(document["labels"]["clients"])
    assert shares == pytest.approx(np.array([[0.25, 0.25, 0.5], [1, 0, 0], [0, 0, 0], [0, 0.75, 0.25]]), abs=0.002)
    assert unpacked(document["labels"]["all"]) == pytest.approx([5 / 12, 4 / 12, 3 / 12])
    assert document["labels"]["classes"] == ["a", "b", "c"]
    assert document["final"]["macro_f1"]["mean"] == 0.5
    assert document["final"]["auc"]["mean"] is None
    assert unpacked(document["clients"]["train"]).tolist() == [4, 4, 0, 4]
    assert document["run"]["checkpoint_every"] == 7
    assert document["costs"] == {"bytes_up": 5, "steps": 2.5}
    assert document["absent"] == {}


def test_errors_in_their_own_units_are_shown_and_the_greatest_is_the_worst() -> None:
    document = made(SideFiles(final={"mae": [1.0, 40.5, 2.0, 4.5], "rmse": [2.0, 50.0, 3.0, 5.0], "perplexity": [None] * 4}))
    shown = document["final"]["mae"]
    assert (shown["mean"], shown["min"], shown["max"], shown["worst_tenth"]) == (12.0, 1.0, 40.5, 40.5)
    assert unpacked(document["clients"]["rmse"]).tolist() == [2, 50, 3, 5]
    assert document["final"]["perplexity"]["mean"] is None


def test_predictions_per_class(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [([0, 0, 1], [0, 2, 1]), ([2], [2]), ([1], [0]), ([1], [1])]
    shown = made(SideFiles(confusion=Confusion.of(pairs, 3)))["confusion"]
    assert shown["classes"] == ["0", "1", "2"]
    assert unpacked(shown["all"]).tolist() == [[1, 0, 1], [1, 2, 0], [0, 0, 1]]
    assert [unpacked(shown[name]).tolist() for name in ("samples", "predicted", "right")] == [
        [2, 3, 1],
        [2, 2, 2],
        [1, 2, 1],
    ]
    assert unpacked(shown["entries"])[0].tolist() == [0, 0, 0, 1]
    assert made()["absent"]["classes"].startswith("Predictions per class were not counted")
    monkeypatch.setattr("fedfew.report.page.classes.MOST_ENTRIES", 3)
    assert "entries" not in made(SideFiles(confusion=Confusion.of(pairs, 3)))["confusion"]
    monkeypatch.setattr("fedfew.report.page.classes.MOST_CLASSES", 2)
    assert "all" not in made(SideFiles(confusion=Confusion.of(pairs, 3)))["confusion"]
    assert "confusion" not in made(SideFiles(confusion=Confusion.of(pairs[:2], 3)))  # of another number of clients


def test_sections_without_data_say_why() -> None:
    state = by_hand()
    state.settings = settings() | {"method": {"name": "fedavg"}}
    columns = {name: values for name, values in state.history.arrays().items() if name not in ("alpha", "w", "g")}
    state.history = History.from_arrays(columns | {"choice": np.zeros((3, 4), dtype=np.int64)})
    document = of_run(InMemory(state))
    assert document["models"] == 1
    assert document["absent"]["choice"].startswith("With fedavg a client has nothing to choose. Served: the global model")
    assert "fedavg keeps no weights α and w" in document["absent"]["weights"]
    assert "saved from Python" in document["absent"]["labels"]
    assert set(document["maps"]) == {"served", "adapted"}
    state.sites = {"run": "x"}
    assert "sites that keep their labels" in of_run(InMemory(state))["absent"]["labels"]


def test_a_method_that_is_not_known_here() -> None:
    state = by_hand()
    state.settings["method"] = {"name": "mine"}
    document = of_run(InMemory(state))
    assert document["words"] == {}
    assert document["title"] == "mine on four"


def test_a_run_without_a_scored_round() -> None:
    state = by_hand()
    state.history = History()
    document = of_run(InMemory(state))
    assert "rounds" not in document
    assert document["run"]["scored"] == 0
    assert "No round has been scored yet" in page(document)  # in its script


def test_settings_are_listed_in_groups() -> None:
    parts = {part["title"]: dict(part["rows"]) for part in made()["settings"]}
    assert parts["Method: fedfew"] == {"models": "2", "mu": "0.01"}
    assert parts["Data"]["shape"] == "5"
    assert parts["Training"]["lr"] == "0.1"
    assert parts["Where and how"]["torch"] == "2.11.0"


@pytest.mark.parametrize(
    ("config", "sites", "wanted"),
    [
        (
            {"dataset": "digits", "engine": "auto", "sample": None},
            {},
            ["dataset: digits\nengine: stacked\nchunk: 4", "fedfew run --config config.yaml"],
        ),
        ({}, {}, ["fedfew.methods.make(**{'name': 'fedfew', 'models': 2, 'mu': 0.01}),\n    rounds=6,\n    lr=0.1,"]),
        ({}, {"run": "x"}, ["model: mlp\nmethod:\n  name: fedfew"]),
    ],
    ids=["command", "python", "flower"],
)
def test_how_to_repeat_it(config: dict[str, Any], sites: dict[str, Any], wanted: list[str]) -> None:
    state = by_hand()
    state.sites = sites
    again = of_run(InMemory(state), SideFiles(config=config))["reproduction"]
    texts = [step["text"] for step in again["steps"]]
    assert len(texts) == len(wanted)
    assert all(part in text for part, text in zip(wanted, texts, strict=True))
    assert again["versions"] == {"fedfew": "0.1.0", "torch": "2.11.0"}


def test_only_the_newest_events_are_listed() -> None:
    state = by_hand()
    state.events = [f"event {i}" for i in range(300)]
    events = of_run(InMemory(state))["events"]
    assert (events["all"], len(events["newest"]), events["newest"][-1]) == (300, 200, "event 299")


# -- packing, thinning, bins -------------------------------------------------------------------------------------------------


def test_packed_numbers_come_back() -> None:
    assert unpacked(pack.fractions([0, 0.12345, 1, NAN]))[:3] == pytest.approx([0, 0.1234, 1], abs=1e-4)
    assert np.isnan(unpacked(pack.fractions([NAN]))[0])
    assert unpacked(pack.shares([0.5])) == pytest.approx([0.5], abs=0.002)
    for largest, kind in ((254, "u1"), (255, "u2"), (65535, "u4")):
        packed = pack.whole([0, largest, -1])
        assert packed["type"] == kind
        assert unpacked(packed)[:2].tolist() == [0, largest]
        assert np.isnan(unpacked(packed)[2])
    assert unpacked(pack.floats([[1e-20], [NAN]]))[0] == pytest.approx(1e-20)


def test_rounds_are_thinned_evenly_and_the_last_is_kept() -> None:
    assert binning.thinned(7, 10, 3).tolist() == list(range(7))
    at = binning.thinned(2000, 200, 3)
    assert (len(at), at[0], at[-1]) == (binning.ROUNDS, 0, 1999)
    assert set(np.diff(at)) <= {10, 11}
    assert len(binning.thinned(2000, 400, 50)) == 50  # 400 × 50 × 50 = a million


def test_many_clients_share_bins_of_one_model_and_group() -> None:
    rng = np.random.default_rng(0)
    choice, groups, served = rng.integers(0, 3, 1000), rng.integers(0, 2, 1000), rng.random(1000)
    found = binning.arranged(choice, groups, served)
    assert found.binned
    assert len(found) <= binning.BINS
    assert found.size.sum() == 1000
    for row in range(len(found)):
        inside = found.of == row
        assert len({*zip(choice[inside], groups[inside], strict=True)}) == 1
    means = found.mean(served)
    assert means[0] == pytest.approx(served[found.of == 0].mean())
    within = [np.ptp(served[found.of == row]) for row in range(len(found))]
    assert max(within) < 0.1  # a bin holds clients that are served alike
    assert found.mean(np.where(found.of == 3, NAN, served))[3] is not None
    assert np.isnan(found.mean(np.where(found.of == 3, NAN, served))[3])
    assert (found.most_frequent(choice, 3) == [choice[found.of == row][0] for row in range(len(found))]).all()
    unknown = found.most_frequent(np.where(found.of == 0, -1, choice), 3)
    assert unknown[0] == -1


def test_bins_may_mix_where_there_are_too_many_kinds() -> None:
    everyone_its_own = binning.arranged(np.arange(1000), np.full(1000, -1), np.linspace(0, 1, 1000))
    assert len(everyone_its_own) == binning.BINS
    of_one_model = binning.arranged(np.zeros(1000, dtype=np.int64), np.arange(1000), np.linspace(0, 1, 1000))
    assert len(of_one_model) == binning.BINS


def test_rare_classes_are_shown_as_one_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "CELLS", 8)
    counts = np.array([[5, 1, 0, 4], [5, 0, 1, 3], [2, 0, 0, 2], [1, 0, 0, 0]])
    found = classes.distribution(counts, ["a", "b", "c", "d"], binning.arranged(np.zeros(4, int), np.zeros(4, int), np.zeros(4)))
    assert found["classes"] == ["a", "d", "2 others"]
    assert unpacked(found["clients"])[0] == pytest.approx([0.5, 0.4, 0.1], abs=0.002)
    assert found["rows"] is None


# -- size --------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "models", "classes"),
    [(10_000, 8, 200), (400, 10, 62)],
)
def test_the_page_stays_small_with_many_clients_and_rounds(clients: int, models: int, classes: int) -> None:
    rng = np.random.default_rng(0)
    about = {
        "train": rng.integers(10, 900, clients).tolist(),
        "test": [50] * clients,
        "groups": (np.arange(clients) % 5).tolist(),
    }
    final = {"macro_f1": rng.random(clients).tolist(), "auc": rng.random(clients).tolist()}
    beside = SideFiles("big", about, rng.integers(0, 9, (clients, classes)), final, {"dataset": "x"}, {"steps": 1.0})
    tracemalloc.start()
    text = page(of_run(Synthetic(clients, 2000, models), beside))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(text.encode()) < 4_000_000
    assert peak < 200e6


# -- safety ------------------------------------------------------------------------------------------------------------------


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(text)
    return parser.found


NASTY = "</script><script>window.hacked=1</script><img src=x onerror=hacked()>"


def nasty() -> dict[str, Any]:
    state = by_hand()
    state.settings["federation"]["name"] = NASTY
    state.events = [NASTY]
    about = {"groups": [NASTY, "b", "b", "b"], "class_names": [NASTY, "<!--", "{{data}}"]}
    return of_run(InMemory(state), SideFiles(NASTY, about, np.ones((4, 3)), config={"dataset": NASTY}))


def test_text_from_settings_and_data_cannot_become_markup() -> None:
    text = page(nasty())
    clean = [tag for tag, _ in tags(page(made()))]
    assert [tag for tag, _ in tags(text)] == clean
    assert text.count("</script") == 2
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert data is not None
    assert json.loads(data[1])["groups"] == [NASTY, "b"]  # and yet it is all there


def test_data_may_hold_anything() -> None:
    document = {"kind": "run", "x": "</script><!--\u2028&"}
    assert json.loads(as_data(document)) == document
    assert not set(as_data(document)) & set("<>&\u2028")


def test_nothing_is_loaded_from_anywhere() -> None:
    text = page(made())
    for tag, attributes in tags(text):
        assert not attributes.get("src")
        href = attributes.get("href")
        assert href is None or href.startswith("#") or href == "data:,", (tag, href)
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    assert not re.search(r"@import|url\(|<link[^>]+stylesheet|\bimport\s*\(|importScripts|new Worker", text)
    assert set(re.findall(r"https?://[^\s\"'<>]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def policy(text: str) -> dict[str, str]:
    rules = next(a["content"] for t, a in tags(text) if a.get("http-equiv") == "Content-Security-Policy")
    assert rules is not None
    return dict(part.strip().split(" ", 1) for part in rules.split(";"))


def test_the_policy_allows_this_script_and_style_alone() -> None:
    text = page(made())
    rules = policy(text)
    for rule, tag in (("script-src", "script"), ("style-src", "style")):
        body = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        assert len(body) == 1
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(body[0].encode()).digest()).decode()}'"
    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == "'none'"
    assert policy(page(made(), live=True)) == rules | {"connect-src": "'self'"}


def test_scripts_make_text_never_markup() -> None:
    scripts = list(ASSETS.glob("*.js"))
    assert len(scripts) > 10
    for path in scripts:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", path.read_text()), (
            path
        )


# -- reading a folder --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds with a checkpoint after the second and the third."""
    place = tmp_path_factory.mktemp("run") / "mine"
    fedfew.train(
        federation(),
        "linear",
        fedfew.FedFew(models=2),
        rounds=3,
        engine="stacked",
        folder=place,
        checkpoint_every=1,
        device="cpu",
    )
    return place


def test_a_stored_record_is_the_one_in_memory(folder: Path) -> None:
    run = fedfew.load(folder)
    with record.newest(folder) as stored:
        assert of_run(stored) == of_run(InMemory(run.state))
        assert stored.row("served_accuracy", 1).tolist() == run.history.served_accuracy[1].tolist()


def test_a_damaged_checkpoint_is_passed_over(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    data = copy / "round-000003" / "state.safetensors"
    data.write_bytes(data.read_bytes()[:-8] + b"\0" * 8)
    with record.newest(copy) as stored:
        assert stored.round == 2
    (copy / "round-000002" / "state.json").write_text('{"format": 99}')
    with pytest.raises(
        CheckpointError,
        match=r"no checkpoint in .*copy can be used: round-000003: it is damaged.*; round-000002: it has format 99",
    ):
        record.newest(copy).__enter__()
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        record.newest(tmp_path / "nothing").__enter__()


def test_a_checkpoint_that_goes_away_while_it_is_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    true = record._checked
    seen: list[str] = []

    def checked(path: Path) -> dict[str, Any]:
        seen.append(path.name)
        if len(seen) == 1:  # the run writes round 4 and removes the others just now
            (copy / "round-000003").rename(copy / "round-000004")
            shutil.rmtree(copy / "round-000002")
        return true(path)

    monkeypatch.setattr(record, "_checked", checked)
    with record.newest(copy) as stored:
        assert stored.path.name == "round-000004"
        shutil.rmtree(stored.path)  # and even then what was opened can be read
        assert stored.row("round", 2) == 3
    assert seen == ["round-000003", "round-000002", "round-000004"]
