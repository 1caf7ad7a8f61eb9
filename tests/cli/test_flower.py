"""fedfew flower init and check."""

import json

from typer.testing import CliRunner

from fedfew.cli import app


def test_init_and_check_on_the_command_line(tmp_path):
    runner = CliRunner()
    made = runner.invoke(app, ["flower", "init", str(tmp_path / "3 Sites"), "--json"])
    assert made.exit_code == 0, made.output
    assert str(tmp_path / "3 Sites" / "app_3_sites_app" / "client.py") in json.loads(made.stdout)["files"]
    again = runner.invoke(app, ["flower", "init", str(tmp_path / "3 Sites")])
    assert again.exit_code == 2
    assert "not empty" in again.output
    shown = runner.invoke(app, ["flower", "init", str(tmp_path / "other")])
    assert "flwr run" in shown.output
    good = runner.invoke(app, ["flower", "check", 'client=1 data="digits" clients=4', "--json"])
    assert json.loads(good.stdout)["reported"]["samples"] == 337
    assert "the server learns" in runner.invoke(app, ["flower", "check", 'client=1 data="digits" clients=4']).output
    file = tmp_path / "sites"
    file.write_text("")
    for wrong, words in {
        "client=1 data=digits": "double quotes",
        "client": "key=value pairs",
        'client=9 data="digits" clients=4': "has 4 clients",
        'client=1 data="digits" clients=4 engine="fast"': "engine must be auto, stacked, threaded or sequential, not 'fast'",
        'client=1 data="digits" clients=4 device="gpu"': "device must be auto, cpu, cuda or cuda:N, not 'gpu'",
        f'client=1 data="digits" clients=4 state="{file}"': "sites/client-1 cannot be written",
    }.items():
        bad = runner.invoke(app, ["flower", "check", wrong])
        assert bad.exit_code == 2
        assert words in " ".join(bad.output.split())
