"""A process that decodes images: started, given files, ended.

It is a new Python with nothing but this package in it. Forking instead would copy the locks that other threads hold at that
moment, and a copied lock is never released. Unlike the processes of multiprocessing it does not import the user's script.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedfew.imaging.decoding import Chunk, ColourFoundError, decode_chunk

READY = b"R"
PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from fedfew.imaging.process import main; main()"
PATIENCE = 5  # seconds that a process gets to end by itself
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # others would only cost time to start


class ProcessDiedError(RuntimeError):
    """A process that decodes images has ended before its work was done."""


class DecodingProcess:
    """Such a process as the one sees it that started it. It ends when this one closes its input, or has died."""

    def __init__(self) -> None:
        """Start it. OSError: this is not possible."""
        # It imports from where this process does. -P: a file json.py in the working folder must not take the place of the module.
        places = [str(place) for place in sys.path]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, json.dumps(places)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to this process alone, which then ends the other
            env=os.environ | ONE_THREAD,
        )

    def wait_until_ready(self) -> bool:
        """Whether it started: False if it has ended instead."""
        return self._output.read(len(READY)) == READY

    def decode(self, files: list[bytes | str], pixels: NDArray[np.uint8], *, resize: bool, colour_allowed: bool) -> Chunk:
        """What :func:`decode_chunk` does, done there. ``pixels`` must be contiguous."""
        try:
            pickle.dump((files, pixels.shape, resize, colour_allowed), self._input)
            self._input.flush()
            chunk: Chunk | None = pickle.load(self._output)
            if chunk is None:
                raise ColourFoundError
            if self._output.readinto(pixels.data.cast("B")) == pixels.nbytes:  # type: ignore[attr-defined]  # it is buffered
                return chunk
        except (EOFError, OSError, pickle.UnpicklingError):
            pass
        raise ProcessDiedError(f"a process that decodes images has ended early ({self._exit_reason()})")

    def close(self) -> None:
        """Let it end."""
        with suppress(OSError):  # it may have ended within a message
            self._input.close()
        self._wait()
        self._output.close()

    def _wait(self) -> None:
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _exit_reason(self) -> str:
        self._wait()
        code = self.process.returncode
        if code >= 0:
            return f"exit code {code}"
        return f"signal {-code}, {signal.Signals(-code).name}; the usual reason is too little memory"

    @property
    def _input(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def _output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout


# -- the process -------------------------------------------------------------------------------------------------------------


def main() -> None:
    """Decode until the input ends."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints goes to standard error
    try:
        output.write(READY)
        output.flush()
        while True:
            _answer(sys.stdin.buffer, output)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):  # nothing is left to do, or nobody to do it for
        pass


def _answer(requests: IO[bytes], output: IO[bytes]) -> None:
    files, shape, resize, colour_allowed = pickle.load(requests)
    pixels = np.zeros(shape, dtype=np.uint8)
    try:
        chunk = decode_chunk(files, pixels, resize=resize, colour_allowed=colour_allowed)
    except ColourFoundError:
        pickle.dump(None, output)
    else:
        pickle.dump(chunk, output)
        output.write(pixels.data)
    output.flush()
