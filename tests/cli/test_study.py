"""``fedfew study``."""

from __future__ import annotations

import csv
import io
import json
from functools import partial
from pathlib import Path

import pytest

from fedfew.studies import store
from fedfew.studies.job import Report
from fedfew.studies.plan import cells
from fedfew.studies.study import catalogue, read
from tests import helpers
from tests.studies.small import begun, text

SMALL = {"tables": [{"kind": "methods"}], "figures": [{"kind": "methods"}]}


call = partial(helpers.call, "study")


def refused(*words: str) -> str:
    return " ".join(call(*words, code=2).stderr.split())


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of two good runs, one bad and one without data, that has been run; its output in ``out``."""
    folder = tmp_path_factory.mktemp("cli")
    columns = {"iid": {"dataset": "digits", "partition": "iid"}, "gut": {"dataset": "kvasir"}}
    rows = {
        "FedAvg": {"method": "fedavg"},
        "FedFew": {"method": {"name": "fedfew", "models": 2}},
        "Bad": {"method": "fedavg", "sample": 5000},
    }
    (folder / "tiny.yaml").write_text(text(title="A tiny study", columns=columns, rows=rows, **SMALL))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "150")
        patch.delenv("FEDFEW_DATA", raising=False)
        (folder / "out").write_text(call("run", "tiny.yaml", "--workers", "1", code=1).stdout)
    return folder


@pytest.fixture(autouse=True)
def inside(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.delenv("FEDFEW_DATA", raising=False)


def test_list_names_every_study():
    shown = " ".join(call("list").stdout.split())
    for name in catalogue():
        assert f"{name} {read(name).title}" in shown


def test_run_tells_what_it_will_do_what_it_does_and_what_failed(here):
    out = (here / "out").read_text()
    assert "A tiny study" in out
    assert "6 runs: 3 to make, 0 done already, 3 without data" in out
    assert "not here: kvasir, 3 runs left out. kvasir: no data folder was given" in out
    assert "https://datasets.simula.no/kvasir" in out
    assert "with 1 worker (3 from training steps timed just now)" in out
    assert out.count("✓") == 2
    assert "1 run failed (--retry-failed tries again)" in out
    assert "sample is 5000, but there are only 1797 rows" in out
    assert "results in studies/tiny: clients, rounds, runs (parquet)" in out
    assert (here / "studies" / "tiny" / "study.yaml").read_text() == (here / "tiny.yaml").read_text()
    runs = store.read(here / "studies" / "tiny").runs.to_pylist()
    assert sorted(row["status"] for row in runs) == ["done", "done", "failed", "missing", "missing", "missing"]


def test_running_it_again_repeats_nothing(here):
    before = {path: path.stat().st_mtime_ns for path in here.glob("studies/runs/*/*")}
    out = call("run", "tiny.yaml", code=1).stdout
    assert "6 runs: 0 to make, 2 done already, 3 without data, 1 failed before, not tried again without --retry-failed" in out
    assert {path: path.stat().st_mtime_ns for path in here.glob("studies/runs/*/*")} == before


def test_a_dry_run_lists_the_runs_and_makes_none(here):
    out = call(
        "run", "tiny.yaml", "--dry-run", "--seeds", "2", "--only", "iid", "--protocol", "published", "--scale", "0.9"
    ).stdout
    # Nine tenths of three rounds are three, and FedAvg's published preset is FedAvg: seed 0 was made, and failed, before.
    assert "6 runs: 4 to make, 1 done already, 1 failed before" in out
    assert "published: the method's published preset, everywhere" in out
    lines = [line for line in out.splitlines() if "(published, seed" in line]
    assert len(lines) == 6
    assert "iid / FedAvg (published, seed 0)" in lines[0]
    assert out.index("6 runs: 4 to make") > out.index(lines[-1])  # the summary comes last
    assert all(len(begun(here / "studies", path.name)) for path in (here / "studies" / "runs").iterdir())
    again = call("run", "tiny.yaml", "--dry-run").stdout
    for status in ("done", "failed before", "no data"):
        assert status in again


def test_a_run_that_another_study_made_is_not_made_again(here):
    (here / "other.yaml").write_text(text(name="other"))
    out = call("run", "other.yaml").stdout
    assert "2 runs: 0 to make, 2 done already" in out
    assert len(store.read(here / "studies" / "other").runs) == 2
    shorter = call("run", "other.yaml", "--scale", "0.9", "--only", "FedAvg", "--dry-run").stdout
    assert "1 run:" in shorter


def test_another_length_takes_the_place_of_the_old_one_in_the_tables(here):
    (here / "long.yaml").write_text(text(name="long", base={"rounds": 30}, rows={"R": {"method": "fedavg"}}))
    call("run", "long.yaml", "--scale", "0.1")  # three rounds: made before
    out = call("run", "long.yaml", "--scale", "0.1", "--sample", "80").stdout
    assert "The tables now show scale 0.1, 80 rows of each data set instead of scale 0.1. No runs are deleted" in " ".join(
        out.split()
    )
    assert "no tables: long.yaml declares none; add tables: [{kind: methods}]" in out
    assert "declares none" not in (here / "out").read_text()


def test_runs_of_before_the_file_changed_are_named(here):
    rows = {"R": {"method": "fedavg"}, "S": {"method": {"name": "fedfew", "models": 2}}}
    (here / "edited.yaml").write_text(text(name="edited", base={"rounds": 3}, rows=rows))
    assert "file has changed" not in call("run", "edited.yaml").stdout
    assert "file has changed" not in call("run", "edited.yaml", "--only", "*/R").stdout
    (here / "edited.yaml").write_text(text(name="edited", base={"rounds": 3}, rows={"R": rows["R"]}))
    out = " ".join(call("run", "edited.yaml").stdout.split())
    assert "The study's file has changed, and its tables still show what was planned before and is not planned now: " in out
    assert "/ S. To leave that out, delete" in out
    (here / "studies" / "edited" / "plan.json").unlink()
    assert "file has changed" not in call("run", "edited.yaml").stdout
    assert {run["row"] for run in json.loads(call("show", "edited", "--json").stdout)} == {"R"}


def test_show_as_json_and_from_the_file_or_the_name(here):
    runs = json.loads(call("show", "tiny", "--format", "json").stdout)
    assert [run["row"] for run in runs if run["status"] == "done"] == ["FedAvg", "FedFew"]
    call("show", "tiny.yaml", "--format", "json", "-o", "deep/runs.json")
    assert json.loads((here / "deep" / "runs.json").read_text()) == runs


def test_show_as_text_tables(here):
    assert "FedFew" in call("show", "tiny").stdout
    assert "| FedFew" in call("show", "tiny", "--format", "markdown").stdout
    assert "\\begin{tabular}" in call("show", "tiny", "--format", "latex").stdout
    assert len(list(csv.reader(io.StringIO(call("show", "tiny", "--format", "csv").stdout)))) >= 3
    call("show", "tiny", "--output", "table.txt")
    assert "FedFew" in (here / "table.txt").read_text()
    endings = {path.suffix for path in (here / "studies" / "tiny" / "tables").iterdir()}
    assert endings == {".md", ".tex", ".csv"}
    assert {path.suffix for path in (here / "studies" / "tiny" / "figures").iterdir()} == {".png", ".svg"}


def test_mistakes():
    assert "there is no study 'tabel1'; did you mean 'table1'?" in refused("run", "tabel1")
    assert "there is no --format 'pdf'" in refused("show", "tiny", "--format", "pdf")
    advice = "'fedfew study run' does that, and --folder names another folder"
    assert f"the study table1 has not been run in studies: {advice}" in refused("show", "table1")
    assert "/ is a folder: give the study's name or file, and with --folder where its results are" in refused("show", "/")
    assert "nothing in studies/costs yet: 'fedfew study run costs' makes it" in refused("show", "costs")
    assert "--scale must be a number above 0" in refused("run", "tiny.yaml", "--scale", "0")
    assert "fits --only 'nobody'" in refused("run", "tiny.yaml", "--only", "nobody")


def test_a_new_study_can_be_run_and_is_not_overwritten(here):
    assert "'fedfew study run fresh.yaml --dry-run' checks it" in call("new", "fresh").stdout
    out = call("run", "fresh.yaml", "--dry-run").stdout
    assert "18 runs: 18 to make" in out  # two columns, FedAvg once and FedFew twice, three seeds
    assert "fresh.yaml exists" in refused("new", "fresh.yaml")


# -- studies that call a function --------------------------------------------------------------------------------------------


def test_a_study_that_calls_a_function(here, monkeypatch):
    (here / "called.py").write_text(
        "def good(folder, console):\n    (folder / 'x.json').write_text('0')\n"
        "    console.print('called')\n    return True\n"
        "def bad(folder, console):\n    return False\n"
    )
    monkeypatch.syspath_prepend(here)
    for name in ("good", "bad", "absent"):
        (here / f"{name}.yaml").write_text(f"name: {name}\ncall: called:{name}\n")
    assert "good trains nothing: it calls called:good" in call("run", "good.yaml", "--dry-run").stdout
    out = call("run", "good.yaml").stdout
    assert "called" in out
    assert "results in studies/good: x (json)" in out
    assert (here / "studies" / "good" / "x.json").read_text() == "0"
    assert "x (json)" in call("show", "good.yaml").stdout
    call("run", "bad.yaml", code=1)
    assert "absent.yaml, call: called has no function 'absent'" in refused("run", "absent.yaml")
    (here / "nomodule.yaml").write_text("name: n\ncall: no_such_module:f\n")
    assert "the module no_such_module cannot be found" in refused("run", "nomodule.yaml")


@pytest.mark.slow
def test_the_study_of_costs():
    out = call("run", "costs").stdout
    assert out.count("holds") == 5
    assert "results in studies/costs: costs (json)" in call("show", "costs").stdout


def test_names_are_completed():
    from fedfew.cli.study import _complete

    assert _complete("tab") == ["table1", "table2"]


def test_the_command_that_resumes_has_all_that_was_given():
    from fedfew.cli.study_output import resume_command
    from fedfew.studies.options import Options

    assert resume_command("q", Options(), Path("studies")) == "fedfew study run q"
    command = resume_command("q", Options(("fair",), 2, 0.05, ("a*", "b"), 9, "cpu", "d"), Path("x"))
    assert command == (
        "fedfew study run q --protocol fair --only 'a*' --only b --seeds 2 --scale 0.05 "
        "--device cpu --data-dir d --sample 9 --folder x"
    )


def test_a_study_is_resumed_as_it_was_made(monkeypatch):
    """Without --keep-models the rest of the runs would be made without their models, and finished runs are not made again."""
    stopped = Report(stopped=True, left=["a run"])
    monkeypatch.setattr("fedfew.cli.study_output.run_with_display", lambda *_: stopped)
    flags = "--workers 1 --pack 2 --keep-models --time-limit 2.5"
    assert f"To continue: fedfew study run tiny.yaml {flags}\n" in call("run", "tiny.yaml", *flags.split(), code=130).stderr


# -- attacks -----------------------------------------------------------------------------------------------------------------


def test_a_dry_run_imports_nothing_that_the_study_names(here):
    for name in ("planted", "planted_call"):
        (here / f"{name}.py").write_text(f"open({str(here / 'imported')!r}, 'w')\ndef f(*a, **k):\n    return True\n")
    (here / "package").mkdir()
    (here / "package" / "__init__.py").write_text(f"open({str(here / 'imported')!r}, 'w')\n")
    (here / "package" / "model.py").write_text("def f():\n    pass\n")
    (here / "call.yaml").write_text("name: call\ncall: planted_call:f\n")
    assert "it calls planted_call:f" in call("run", "call.yaml", "--dry-run").stdout
    for model in ("planted:f", "package.model:f"):
        (here / "model.yaml").write_text(text(name="model", base={"model": model}))
        assert model in call("run", "model.yaml", "--dry-run").stdout
    assert not (here / "imported").exists()
    assert "the module package.absent cannot be found" in refused_with_model(here, "package.absent:f")
    assert not (here / "imported").exists()
    assert "there is no factory in planted called 'absent'" in refused_with_model(here, "planted:absent")
    assert (here / "imported").exists()  # a run that is made does import it


def refused_with_model(here: Path, model: str) -> str:
    (here / "model.yaml").write_text(text(name="model", base={"model": model}))
    return refused("run", "model.yaml")


def test_names_of_other_people_do_not_steer_the_terminal(here):
    title, row = "[red]title[/red] \x1b[2J", "=row {bold}"
    (here / "hostile.yaml").write_text(text(name="hostile", title=title, rows={row: {"method": "fedavg", "sample": 5000}}))
    out = call("run", "hostile.yaml", "--workers", "1", code=1).stdout
    assert "\x1b" not in out
    assert "[red]title[/red] \\x1b[2J" in out
    assert f"iid / {row}" in out
    error = next((here / "studies" / "runs").glob(f"{cells(read('hostile.yaml'))[0].key}/error.json"))
    error.write_text(json.dumps({"message": "gone\x1b]0;x\x07 [blink]"}))
    for words in (("show", "hostile"), ("run", "hostile.yaml")):
        found = call(*words, code=int(words[0] == "run")).stdout
        assert "\x1b" not in found
        assert "\x07" not in found
    assert "gone\\x1b]0;x\\x07 [blink]" in found


def test_a_time_limit_is_passed_on(here, monkeypatch):
    limits = []
    monkeypatch.setattr("fedfew.studies.runner.run", lambda *jobs, time_limit, **options: limits.append(time_limit) or Report())
    (here / "limit.yaml").write_text(text(name="limit", base={"rounds": 4}))
    for flags in ((), ("--time-limit", "0.5"), ("--time-limit", "0")):
        call("run", "limit.yaml", *flags)
    assert limits == [6 * 3600.0, 30.0, None]


def test_json(here):
    runs = json.loads(call("show", "tiny", "--json").stdout)
    assert runs == json.loads(call("show", "tiny", "--format", "json").stdout)
    assert {run["row"] for run in runs} == {"FedAvg", "FedFew", "Bad"}
    assert "contradict each other" in refused("show", "tiny", "--json", "--format", "csv")
    call("run", "costs")
    assert len(json.loads(call("show", "costs", "--json").stdout)["costs"]["claims"]) == 5
    assert "--format must be terminal or json, not csv" in refused("show", "costs", "--format", "csv")
