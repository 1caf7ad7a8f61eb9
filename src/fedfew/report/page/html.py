"""The page itself: template, style, script and data in one file that asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_CHARTS = ("base", "array", "theme", "view", "chart", "bars", "grid", "tile")
_SECTIONS = ("summary", "curves", "choice", "weights", "labels", "classes", "client", "fairness", "costs", "settings")
SCRIPTS = {  # by kind of document, in the order in which they are put together
    "run": (*_CHARTS, *_SECTIONS, "live", "run"),
    "study": ("base", "theme", "chart", "tile", "settings", "study"),
}


def page(document: Mapping[str, Any], *, live: bool = False) -> str:
    """The page that shows a document.

    live: it is served by ``fedfew watch``, and asks that server, and no other, for updates.
    """
    style, script = _asset("page.css"), _script(str(document["kind"]))
    asks = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        f"connect-src {asks}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(str(document["title"])),
        "style": style,
        "sections": _asset(f"{document['kind']}.html"),
        "data": as_data(document),
        "script": script,
    }
    text = _asset("page.html")
    before, *rest = text.split("{{")
    return before + "".join(parts[name] + after for name, after in (piece.split("}}", 1) for piece in rest))


def as_data(document: Mapping[str, Any]) -> str:
    """JSON that is safe inside <script>, whatever it contains."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _script(kind: str) -> str:
    return '"use strict";\n(() => {\n' + "\n".join(_asset(f"{name}.js") for name in SCRIPTS[kind]) + "\n})();\n"


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
