"""Figures of a study: what is drawn, read back from the axes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from fedfew.studies import figures
from fedfew.studies.figures.methods import ranked
from fedfew.studies.figures.style import METHODS, line_styles, method_style, ordered_styles, spread
from tests.studies import made_up
from tests.studies.made_up import Book

KS, MUS, EPOCHS = [1, 2, 3], [0.001, 0.01, 0.1, 1.0], [1, 2, 4, 8, 16]


@pytest.fixture(scope="module")
def k() -> Book:
    return made_up.sweep("models", KS, study="k")


@pytest.fixture(scope="module")
def mu() -> Book:
    return made_up.sweep("mu", MUS, study="mu")


@pytest.fixture(scope="module")
def epochs() -> Book:
    return made_up.sweep("local_epochs", EPOCHS, study="epochs")


@pytest.fixture(scope="module")
def table1() -> Book:
    return made_up.table1(columns=("femnist-20", "cifar10-dir-20"))


def painted(book: Book, kind: str, protocol: str = "fair", **spec: object) -> Figure:
    """The first picture of a spec."""
    spec = {"kind": kind, "protocols": [protocol]} | spec
    drawing = figures.drawings([spec], book.results(), book.study)[0]
    figure = Figure(figsize=(drawing.width, drawing.height), layout="constrained")
    drawing.paint(figure)
    figure.canvas.draw()
    return figure


def line(axis, label: str) -> tuple[np.ndarray, np.ndarray]:
    """What a line with this label shows, be it plain or with error bars."""
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    found = (
        handles[label] if label in handles else next(handle for name, handle in handles.items() if name.startswith(f"{label}, "))
    )
    found = found[0] if isinstance(found, tuple) else found
    return np.asarray(found.get_xdata(), float), np.asarray(found.get_ydata(), float)


def bars(axis, label: str) -> np.ndarray:
    """Half the lengths of the error bars."""
    (container,) = [c for c in axis.containers if c.get_label().startswith(label)]
    segments = container[2][0].get_segments()
    return np.array([(segment[1] - segment[0]).sum() / 2 for segment in segments])


def stored(book: Book, column: str, **where: object) -> np.ndarray:
    """A column of the runs that match, in percent."""
    rows = [run for run in book.runs if all(run[name] == value for name, value in where.items())]
    keys = {run["key"]: run for run in rows}
    return 100 * np.array([run[column] for run in keys.values()])


def texts(figure: Figure) -> str:
    axes = [text.get_text() for axis in figure.axes for text in axis.texts]
    legends = [text.get_text() for legend in figure.legends for text in [legend.get_title(), *legend.get_texts()]]
    return "\n".join([figure.get_suptitle(), figure.get_supxlabel(), *axes, *legends])


def test_accuracy_by_k(k: Book) -> None:
    figure = painted(k, "accuracy-by-k", measure="weighted_mean")
    served, adapted = figure.axes
    for axis, score in ((served, "served"), (adapted, "adapted")):
        x, y = line(axis, "FedFew")
        assert x.tolist() == KS
        seeds = [stored(k, f"{score}_weighted_mean", protocol="fair", row="FedFew", models=K) for K in KS]
        assert y == pytest.approx([values.mean() for values in seeds])
        assert bars(axis, "FedFew") == pytest.approx([values.std(ddof=1) for values in seeds])
        worst = [stored(k, f"{score}_min", protocol="fair", row="FedFew", models=K).mean() for K in KS]
        assert line(axis, "worst client")[1] == pytest.approx(worst)
        dashed = [drawn for drawn in axis.get_lines() if drawn.get_linestyle() == "--" and len(drawn.get_ydata()) == 2]
        level = stored(k, f"{score}_weighted_mean", protocol="fair", row="FedAvg")
        assert len(level) == 3  # the same three runs at every K
        assert dashed[0].get_ydata()[0] == pytest.approx(level.mean())
    assert [list(values) for values in line(adapted, "the paper")] == [[1], [91.3]]  # where the paper scored
    assert "the paper" not in served.get_legend_handles_labels()[1]
    assert "the paper: 89.4–91.3" in texts(figure)
    assert "FedAvg\n(paper: 61.2)" in texts(figure)


def test_titles_say_data_rounds_seeds_and_protocol(k: Book) -> None:
    title = painted(k, "accuracy-by-k").get_suptitle()
    assert title == "Accuracy by K: mean\ncifar10 dirichlet:0.5, 20 clients, 2000 rounds, 3 seeds, protocol fair"
    assert painted(k, "accuracy-by-k", title="Mine").get_suptitle().startswith("Mine\ncifar10")


@pytest.mark.parametrize("kind", ["methods", "accuracy-by-k", "curves", "clients"])
def test_the_score_of_the_task_is_named_and_a_negative_one_is_in_sight(kind: str) -> None:
    book = Book("prices")
    for models in (1, 2):
        run = book.scored(book.add("FedFew", point={"models": models}, score="R²"), [-0.5, 0.6], [0.7, 0.7])
        book.round(run, 1, served_mean=-0.5, adapted_mean=0.7)
    book.add("FedAvg", status="missing")
    figure = painted(book, kind)
    labels = {label for axis in figure.axes for label in (axis.get_xlabel(), axis.get_ylabel()) if "test" in label}
    assert labels == {"test R², %"}
    assert "accuracy" not in texts(figure).lower()
    assert kind == "methods" or all(axis.get_ylim()[0] < -50 for axis in figure.axes)  # the panels share their limits


def test_titles_fit_into_a_narrow_figure() -> None:
    book = Book("narrow")
    about = {"column": "agnews-dir-20", "dataset": "ag-news", "partition": "dirichlet-published:0.1"}
    book.scored(book.add("FedAvg", **about), [0.5, 0.6], [0.7, 0.7])
    figure = painted(book, "methods")
    assert figure.get_figwidth() < 6
    assert figure._suptitle.get_window_extent().x1 < figure.bbox.x1
    assert figure.get_suptitle().replace("\n", " ").endswith("protocol fair")


def test_as_published_there_is_one_panel_and_one_seed(k: Book) -> None:
    figure = painted(k, "accuracy-by-k", "published")
    (axis,) = figure.axes
    assert line(axis, "FedFew")[1] == pytest.approx(stored(k, "adapted_mean", protocol="published", row="FedFew"))
    assert axis.containers[0].has_yerr is False
    dashed = [drawn for drawn in axis.get_lines() if drawn.get_linestyle() == "--"]
    assert dashed[0].get_ydata()[0] == pytest.approx(stored(k, "served_mean", protocol="published", row="FedAvg").mean())
    assert "1 seed, protocol published" in figure.get_suptitle().replace("\n", " ")


def test_a_missing_point_leaves_a_gap_and_is_told() -> None:
    book = made_up.sweep("models", KS, study="k", seeds=1)
    for run in book.runs:
        if run["models"] == 2:
            run |= {"status": "failed", "error": "boom"}
    figure = painted(book, "accuracy-by-k")
    y = line(figure.axes[0], "FedFew")[1]
    assert np.isnan(y).tolist() == [False, True, False]
    assert "Failed: FedFew, K = 2 on cifar10-dir-20 (seed 0)." in texts(figure)
    for run in book.runs:
        run["status"] = "missing"
    empty = painted(book, "accuracy-by-k")
    assert "no run is done yet" in texts(empty)
    assert "Not run: FedFew, K = 1" in texts(empty)


def test_several_data_and_several_methods_along_one_axis() -> None:
    book = made_up.sweep("models", KS, study="k", seeds=2)
    for column in ("kvasir", "agnews-dir-20"):
        for K in KS:
            for row in ("FedFew", "FedFew body"):
                made_up.plausible(book, row, 0, column=column, point={"models": K}, method="fedfew", models=K)
    figure = painted(book, "accuracy-by-k", columns=["kvasir", "agnews-dir-20", "cifar10-dir-20"])
    assert [axis.get_title().partition(",")[0] for axis in figure.axes[::2]] == ["kvasir", "agnews-dir-20", "cifar10-dir-20"]
    assert {"FedFew", "FedFew body"} <= set(figure.axes[0].get_legend_handles_labels()[1])
    assert line(figure.axes[1], "the paper")[1].tolist() == [91.6, 92.2, 92.9]
    odd = painted(book, "accuracy-by-k", columns=["kvasir", "agnews-dir-20", "cifar10-dir-20"], score="served")
    assert [axis.get_visible() for axis in odd.axes] == [True, True, True, False]


def test_accuracy_by_mu_is_on_a_logarithmic_axis(mu: Book) -> None:
    axis = painted(mu, "accuracy-by-mu").axes[1]
    assert axis.get_xscale() == "log"
    assert line(axis, "FedFew")[0].tolist() == MUS
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0.001", "0.01", "0.1", "1"]


def test_accuracy_by_epochs_names_epochs_and_rounds(epochs: Book) -> None:
    axis = painted(epochs, "accuracy-by-epochs", "published", rows=["FedFew"]).axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1 × 2000", "2 × 1000", "4 × 500", "8 × 250", "16 × 125"]
    assert line(axis, "FedFew")[1] == pytest.approx(stored(epochs, "adapted_mean", protocol="published", row="FedFew"))
    assert line(axis, "the paper")[1].tolist() == [88.3, 87.8]


def test_a_grid_of_two_axes_has_a_line_for_each_value_of_the_other() -> None:
    book = Book("k")
    for K in KS:
        for m in (0.01, 0.1):
            made_up.plausible(book, "FedFew", 0, point={"models": K, "mu": m})
    axis = painted(book, "accuracy-by-k").axes[0]
    assert axis.get_legend_handles_labels()[1] == ["μ = 0.01", "μ = 0.1"]
    assert line(axis, "μ = 0.1")[1] == pytest.approx([stored(book, "served_mean", models=K, mu=0.1)[0] for K in KS])


def test_fairness_by_mu(mu: Book) -> None:
    figure = painted(mu, "fairness-by-mu")
    std, jain, cv, against = figure.axes
    by_mu = {name: [stored(mu, name, protocol="fair", row="FedFew", mu=m).mean() for m in MUS]
             for name in ("served_std", "adapted_jain", "alpha_cv", "adapted_std")}  # fmt: skip
    assert line(std, "served")[1] == pytest.approx(by_mu["served_std"])
    assert line(jain, "adapted")[1] == pytest.approx(np.array(by_mu["adapted_jain"]) / 100)
    assert line(cv, "FedFew")[1] == pytest.approx(np.array(by_mu["alpha_cv"]) / 100)
    assert line(std, "the paper")[1].tolist() == [10.2]
    assert line(cv, "the paper")[1].tolist() == [0.361, 0.009]
    drawn = against.get_lines()[1]
    assert drawn.get_xdata() == pytest.approx(np.array(by_mu["alpha_cv"]) / 100)
    assert drawn.get_ydata() == pytest.approx(by_mu["adapted_std"])
    assert {"μ = 0.001", "μ = 0.01", "μ = 0.1", "μ = 1"} <= {text.get_text() for text in against.texts}


def test_weights_by_mu(mu: Book) -> None:
    figure = painted(mu, "weights-by-mu")
    alphas, entropy, largest = figure.axes
    points = [drawn for drawn in alphas.get_lines() if drawn.get_marker() == "o"]
    assert [len(drawn.get_ydata()) for drawn in points] == [60] * 4  # 20 clients, 3 seeds
    assert [drawn.get_ydata().mean() for drawn in points] == pytest.approx([1.0] * 4)  # α sums to 1, times M
    assert line(entropy, "the paper")[1].tolist() == [0.012, 1.099]
    assert line(largest, "the paper")[1].tolist() == [0.997, 0.333]
    levels = [drawn.get_ydata()[0] for axis in (entropy, largest) for drawn in axis.get_lines() if drawn.get_linestyle() == "--"]
    assert levels == pytest.approx([np.log(3), 1 / 3])


@pytest.mark.parametrize("lowest", [0.004, 1e-14])
def test_alphas_axis_has_numbers_however_far_they_spread(lowest: float) -> None:
    book = made_up.sweep("mu", MUS, study="mu")
    for (_, client), row in book.clients.items():
        row["alpha"] = lowest if client == 0 else (1 - lowest) / 19
    axis = painted(book, "weights-by-mu").axes[0]
    low, high = axis.get_ylim()
    assert axis.get_yscale() == "log"
    assert sum(low <= tick <= high for tick in axis.get_yticks()) >= 2


def test_weights_of_methods_that_have_none() -> None:
    book = Book("mu")
    for m in MUS:
        made_up.plausible(book, "FedFew", 0, point={"mu": m})
    for run in book.runs:
        run |= dict.fromkeys(("entropy", "largest", "alpha_cv", "g"))
    for client in book.clients.values():
        client["alpha"] = None
    figure = painted(book, "weights-by-mu")
    assert "no run has α" in texts(figure)
    assert "no run has entropy of w" in texts(figure)
    assert painted(book, "fairness-by-mu").axes[2].texts[0].get_text() == "no run has CV of α"
    assert "no run lies along K" in texts(painted(book, "weights-by-mu", by="models"))


@pytest.mark.parametrize("kind", ["g-over-rounds", "g-over-updates"])
def test_g(epochs: Book, kind: str) -> None:
    figure = painted(epochs, kind)
    (axis,) = figure.axes
    assert axis.get_yscale() == "log"
    lines = {drawn.get_label(): drawn for drawn in axis.get_lines()}
    assert list(lines) == [f"local epochs = {e}" for e in EPOCHS]  # and none of FedAvg, which has no g
    for e in EPOCHS:
        drawn = lines[f"local epochs = {e}"]
        assert drawn.get_xdata()[-1] == (2000 if kind == "g-over-updates" else 2000 // e)
        last = [
            run["g"] for run in epochs.runs if run["protocol"] == "fair" and run["row"] == "FedFew" and run["local_epochs"] == e
        ]
        assert drawn.get_ydata()[-1] == pytest.approx(np.mean(last))


def test_g_without_logarithm_where_it_is_not_positive_and_without_lines_where_there_is_none() -> None:
    book = Book("k")
    for K in KS:
        run = made_up.plausible(book, "FedFew", 0, point={"models": K})
    book.rounds[run["key"], 2000]["g"] = -0.01
    assert painted(book, "g-over-rounds").axes[0].get_yscale() == "linear"
    assert "no run has g" in texts(painted(made_up.table1(columns=("cifar10-dir-20",)), "g-over-rounds", rows=["FedAvg"]))


def test_g_by_another_axis_and_of_several_methods() -> None:
    book = Book("k")
    for row in ("FedFew", "FedFew body"):
        for K in (3, 1):
            made_up.plausible(book, row, 0, point={"models": K}, method="fedfew", models=K, mu=0.01)
    labels = [drawn.get_label() for drawn in painted(book, "g-over-rounds", by="models").axes[0].get_lines()]
    assert labels == ["FedFew, K = 1", "FedFew body, K = 1", "FedFew, K = 3", "FedFew body, K = 3"]


def test_methods(table1: Book) -> None:
    figure = painted(table1, "methods")
    failing, axis = figure.axes
    served, adapted = axis.containers
    order = [label.get_text() for label in failing.get_yticklabels()]
    assert order == list(reversed(made_up.LEVELS))  # the first on top
    for container, score in ((served, "served"), (adapted, "adapted")):
        for value, row in zip(container[0].get_xdata(), order, strict=True):
            runs = [r for r in table1.runs if (r["protocol"], r["column"], r["row"]) == ("fair", "cifar10-dir-20", row)]
            done = [100 * r[f"{score}_mean"] for r in runs if r["status"] == "done"]
            assert value == pytest.approx(np.mean(done))
    assert np.isnan(failing.containers[0][0].get_xdata()[order.index("FedProx")])
    assert [text.get_text() for text in failing.texts] == ["failed"]
    papers = [
        drawn.get_xdata()[0] for drawn in axis.get_lines() if drawn.get_marker() == "|" and drawn.get_label() == "the paper"
    ]
    assert sorted(papers) == sorted([61.26, 61.38, 85.75, 87.36, 85.72, 86.94, 85.93, 73.35, 88.26])
    assert "Failed: FedProx on femnist-20 (seeds 0, 1, 2); APFL on cifar10-dir-20 (seed 2)." in texts(figure).replace("\n", " ")


def test_methods_as_published_show_one_score_each(table1: Book) -> None:
    first, axis = painted(table1, "methods", "published").axes
    served, adapted = (container[0].get_xdata() for container in axis.containers)
    order = [label.get_text() for label in first.get_yticklabels()]
    assert [row for row, value in zip(order, adapted, strict=True) if not np.isnan(value)] == ["FedFew"]
    assert np.isnan(np.asarray(served, float)).sum() == 1
    assert painted(table1, "methods", columns=["tiny-dir-10", "cifar10-dir-20"]).axes[0].texts[0].get_text() == "not run"


def test_curves(table1: Book) -> None:
    figure = painted(table1, "curves", columns=["cifar10-dir-20"])
    for axis, score in zip(figure.axes, ("served", "adapted"), strict=True):
        lines = {drawn.get_label(): drawn for drawn in axis.get_lines()}
        assert list(lines) == list(made_up.LEVELS)
        keys = [run["key"] for run in table1.runs
                if (run["protocol"], run["column"], run["row"]) == ("fair", "cifar10-dir-20", "IFCA")]  # fmt: skip
        last = [100 * table1.rounds[key, 2000][f"{score}_mean"] for key in keys]
        assert lines["IFCA"].get_xdata()[-1] == 2000
        assert lines["IFCA"].get_ydata()[-1] == pytest.approx(np.mean(last))
        assert {text.get_text() for text in axis.texts} == set(made_up.LEVELS)  # named where they end
    assert "Failed: APFL" in figure.get_supxlabel()
    worst = painted(table1, "curves", columns=["cifar10-dir-20"], measure="min", rows=["IFCA"])
    assert worst.axes[0].get_lines()[0].get_ydata()[-1] < lines["IFCA"].get_ydata()[-1]
    assert "worst client" in worst.get_suptitle()


def test_bands_over_seeds_only_where_they_can_be_told_apart(table1: Book) -> None:
    few = painted(table1, "curves", columns=["cifar10-dir-20"], rows=["IFCA", "FedFew"])
    many = painted(table1, "curves", columns=["cifar10-dir-20"])
    assert [len(figure.axes[0].collections) for figure in (few, many)] == [2, 0]


def test_curves_of_seeds_that_were_scored_in_different_rounds_keep_what_all_have() -> None:
    book = Book()
    for seed in (0, 1):
        run = book.scored(book.add("FedAvg", seed), [0.5], [0.5])
        for number in (10, 20 + seed, 30):
            book.round(run, number, served_mean=0.1 * (seed + 1), adapted_mean=0.5)
    drawn = painted(book, "curves").axes[0].get_lines()[0]
    assert drawn.get_xdata().tolist() == [10, 30]
    assert drawn.get_ydata() == pytest.approx([15, 15])


def test_pictures_of_no_runs_say_so() -> None:
    book = Book()
    book.add("FedAvg", status="missing")
    for kind in ("curves", "clients"):
        assert "no run is done yet" in texts(painted(book, kind))


def test_clients_from_worst_to_best() -> None:
    book = Book()
    book.scored(book.add("FedAvg", 0), [0.9, 0.1, 0.5], [0.9, 0.9, 0.9])
    book.scored(book.add("FedAvg", 1), [0.3, 0.7, 0.5], [0.9, 0.9, 0.9])
    axis = painted(book, "clients").axes[0]
    (drawn,) = axis.get_lines()
    assert drawn.get_xdata().tolist() == [0, 50, 100]
    assert drawn.get_ydata() == pytest.approx([20, 50, 80])


def test_seeds_with_fewer_clients_are_stretched() -> None:
    share, accuracy = ranked([np.array([0.0, 1.0]), np.array([1.0, 0.0, 0.5])])
    assert share.tolist() == [0, 50, 100]
    assert accuracy.tolist() == [0, 0.5, 1]
    assert [values.tolist() for values in ranked([np.array([0.3])])] == [[50], [0.3]]


def test_labels_never_lie_upon_each_other() -> None:
    assert spread([0.2, 0.5, 0.9], 0.1) == pytest.approx([0.2, 0.5, 0.9])  # far enough apart: not moved
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread([0.98, 0.99, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])
    assert spread([0.0, 0.0, 0.01], 0.1) == pytest.approx([0.0, 0.1, 0.2])
    random = np.sort(np.random.default_rng(0).uniform(0, 1, 8))
    assert np.diff(spread(random.tolist(), 0.12)).min() >= 0.12 - 1e-9


def test_no_two_methods_look_alike_in_colour_or_in_grey() -> None:
    styles = [method_style(row, 0) for row in METHODS]
    assert len({style["color"] for style in styles}) == len(METHODS)
    assert len({(str(style["ls"]), style["marker"]) for style in styles}) == len(METHODS)  # without any colour
    assert method_style("FedFew", 7) == method_style("FedFew", 0)
    assert method_style("FedFew", 0)["lw"] > method_style("FedAvg", 0)["lw"]
    assert len({(str(method_style("", i)["ls"]), method_style("", i)["marker"]) for i in range(30)}) == 30
    variants = line_styles(["FedFew", "FedAvg", "FedFew"])
    assert len({(str(style["ls"]), style["marker"]) for style in variants}) == 3


def test_ordered_lines_grow_lighter() -> None:
    grey = [to_rgb(style["color"]) @ np.array([0.299, 0.587, 0.114]) for style in ordered_styles(10)]
    assert (np.diff(grey) > 0.01).all()
    assert grey[-1] < 0.8  # still seen on white


@pytest.mark.slow
def test_pictures_are_written_twice_and_are_the_same_when_drawn_again(k: Book, tmp_path: Path) -> None:
    specs = [{"kind": "accuracy-by-k", "score": "served", "protocols": ["fair"]}] * 2
    paths = figures.draw(specs, k.results(), "k", tmp_path / "a")
    names = [path.name for path in paths]
    assert names == ["accuracy-by-k-fair.png", "accuracy-by-k-fair.svg", "accuracy-by-k-fair-2.png", "accuracy-by-k-fair-2.svg"]
    assert all(path.stat().st_size > 5000 for path in paths)
    again = figures.draw(specs[:1], k.results(), "k", tmp_path / "b")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths[:2]]


def test_pictures_of_several_data_are_named_after_them(table1: Book) -> None:
    names = [d.name for d in figures.drawings([{"kind": "curves", "name": "my curves"}], table1.results(), "table1")]
    assert names[2:] == ["my-curves-fair-femnist-20", "my-curves-fair-cifar10-dir-20"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "acuracy-by-k"}, "there is no kind of figure 'acuracy-by-k'; did you mean 'accuracy-by-k'?"),
        ({"kind": "curves", "by": "mu"}, "there is no option of the figure curves 'by'"),
        ({"kind": "curves", "measure": "std"}, "measure of the figure curves must be one of mean, min, weighted_mean, not 'std'"),
        ({"kind": "g-over-rounds", "by": 3}, "by of the figure g-over-rounds must be the name of an axis"),
        (None, "a figure must be a mapping with a kind, like {kind: accuracy-by-k}"),
    ],
)
def test_a_wrong_spec_is_refused(spec: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        figures.check(spec)


def test_every_kind_takes_its_plain_form() -> None:
    assert set(figures.KINDS) == set(figures.OPTIONS)
    for kind in figures.KINDS:
        figures.check({"kind": kind})


@pytest.mark.parametrize("kind", ["methods", "curves", "clients"])
def test_titles_and_notes_stay_within_the_picture(table1: Book, kind: str) -> None:
    title = "Accuracy of ten methods on one federation " * 6 + "WWWWWWWWWW" * 2
    figure = painted(table1, kind, columns=["femnist-20"], title=title)
    (legend,) = figure.legends or [None]
    for text in [figure._suptitle, *([legend.get_title()] if legend else [])]:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width
    assert figure._suptitle.get_text().replace("\n", " ").startswith(title.rstrip())


def test_a_dollar_in_a_title_is_a_dollar(table1: Book) -> None:
    figure = painted(table1, "methods", title="costs $x^$ and \\$2")  # as a formula: an error
    assert "costs" in figure._suptitle.get_text()


def test_names_of_points_do_not_lie_upon_each_other(mu: Book) -> None:
    axis = painted(mu, "fairness-by-mu").axes[3]
    boxes = [text.get_window_extent() for text in axis.texts]
    assert len(boxes) == len(MUS)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
