"""How to repeat a run: the commands, the settings, the versions."""

from __future__ import annotations

from typing import Any

from fedfew.report.page.record import Record, SideFiles

_NOT_TRAINED_WITH = ("federation", "method", "model", "fedfew", "torch")


def how_to_repeat(record: Record, files: SideFiles) -> dict[str, Any]:
    """Text to copy, with a title each, and what must be the same besides."""
    settings = record.settings
    versions = {name: str(settings[name]) for name in ("fedfew", "torch") if name in settings}
    fingerprint = settings["federation"].get("fingerprint")
    if record.sites:
        of_the_app = {name: value for name, value in settings.items() if name not in ("federation", "fedfew", "torch")}
        steps = [_step("The settings of the Flower app (see docs/deployment.md)", _yaml(of_the_app))]
    elif files.config:
        config = {name: value for name, value in files.config.items() if value is not None}
        config |= {name: settings[name] for name in ("engine", "chunk") if name in settings}  # what "auto" had chosen
        steps = [_step("Keep this as config.yaml", _yaml(config)), _step("Then", "fedfew run --config config.yaml")]
    else:
        steps = [_step("In Python, with the same federation", _python(settings))]
    return {"steps": steps, "versions": versions, "fingerprint": fingerprint}


def _step(title: str, text: str) -> dict[str, str]:
    return {"title": title, "text": text}


def _yaml(values: dict[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True)).strip()


def _python(settings: dict[str, Any]) -> str:
    arguments = {name: value for name, value in settings.items() if name not in _NOT_TRAINED_WITH}
    lines = [f"    {name}={value!r}," for name, value in arguments.items()]
    head = f"    federation,\n    {settings['model']!r},\n    fedfew.methods.make(**{settings['method']!r}),"
    return "\n".join(["import fedfew", "", "run = fedfew.train(", head, *lines, ")"])
