"""Every error of a command is one readable paragraph on stderr and exit code 2; Ctrl-C is exit code 130."""

from __future__ import annotations

import functools
import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from fedfew.util.files import PARTIAL

FAILED, BAD_INPUT, INTERRUPTED, READER_GONE = 1, 2, 130, 141
EXPECTED = (ValueError, OSError, ImportError, MemoryError)  # their messages are written for the user

Command = TypeVar("Command", bound=Callable[..., Any])
_tracebacks = False


def show_tracebacks(wanted: bool) -> None:
    global _tracebacks
    _tracebacks = wanted


def readable(command: Command) -> Command:
    """A command whose errors can be read by people."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            say("Stopped.")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if isinstance(error, BrokenPipeError) and _reader_is_gone():
                raise typer.Exit(READER_GONE) from None
            if _tracebacks:
                raise
            say(_paragraph(error), "Error: ")
            raise typer.Exit(BAD_INPUT) from None

    return guarded  # type: ignore[return-value]  # wraps() keeps the signature, which mypy cannot see


def _reader_is_gone() -> bool:
    """Did whoever read the output (``fedfew … | head``) stop? What is left goes nowhere then."""
    try:
        out = sys.stdout.fileno()
    except (OSError, ValueError):  # no file: captured by a test, say
        return False
    watched = select.poll()
    watched.register(out, 0)
    if not any(state & select.POLLERR for _, state in watched.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), out)
    return True


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line, without the place in the code."""
    say(str(message), "Warning: ")


SETTINGS = re.compile(  # not after a comma: that is a call in Python
    r"""(?<!, )\b(label|input|size|task|test_share|clients?|partition)=(…|(["'])([\w:.+-]+)\3)"""
)


def as_flags(text: str) -> str:
    """Settings of data as they are written in Python (``label=…``, ``on_bad="skip"``), in a text for the command line."""
    text = text.replace('on_bad="skip"', "--skip-bad")
    return SETTINGS.sub(lambda found: f"--{found[1].replace('_', '-')} {found[4] or found[2]}", text)


def say(message: str, title: str = "") -> None:
    """A paragraph on stderr."""
    paragraph(Console(stderr=True), Text.assemble((title, "bold red"), message))


def paragraph(console: Console, text: Text) -> None:
    """A text of the program's own: one line in a file or a pipe, between words in lines as wide as a terminal."""
    console.print(text, soft_wrap=not console.is_terminal)


@contextmanager
def continued_by(command: str, folder: Path) -> Iterator[None]:
    """Around several runs in a folder: Ctrl-C between two of them says how to continue, where there is something to continue."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"Stopped. To continue: {command}" if any(folder.rglob("round-*")) else "Stopped.")
        raise typer.Exit(INTERRUPTED) from None


def _paragraph(error: Exception) -> str:
    from fedfew import DivergedError
    from fedfew.engines import UnsupportedModuleError
    from fedfew.training.distributed import PeerError

    text = as_flags(" ".join(_words(error).split())) or "no further words"
    if isinstance(error, (*EXPECTED, DivergedError, PeerError, UnsupportedModuleError)):
        return text
    return f"{type(error).__name__}: {text} ('fedfew --debug …' shows where)"


def _words(error: Exception) -> str:
    """Of an error of the operating system: the file or folder, not by the name that it has while it is written, and why."""
    if not isinstance(error, OSError) or not error.strerror or not error.filename:
        return str(error)
    path = Path(os.fsdecode(error.filename))
    unfinished = [parent for parent in (path, *path.parents) if parent.name.startswith(PARTIAL)]
    return f"{unfinished[-1].parent if unfinished else path}: {error.strerror}"
