"""The process of a worker: it makes runs as the runner asks for them.

It reads one JSON message per line from standard input: ``{"key": …, "settings": {…}}`` asks for a run, ``{"pack": [{…}, {…}]}``
for several in one stack, ``{"stop": true}`` ends the worker after the current round, or at once while it loads data; so does the
end of the input, when the runner has died. It writes one event per line to what was its standard output; anything else that
prints goes to standard error, which is the runner's log.

python -P -m fedfew.studies.worker_main ARGUMENTS       # started by fedfew.studies.runner
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fedfew.studies.worker import Worker
from fedfew.training.settings import Settings

LAST_ROUND = 60.0  # seconds that a worker whose runner has died takes for its round at most


def main(arguments: list[str]) -> None:
    """Work until the runner sends ``stop``, or has died."""
    import torch

    given = json.loads(arguments[0])
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints goes to the log
    torch.set_num_threads(given["threads"])

    def send(event: dict[str, Any]) -> None:
        try:
            events.write(json.dumps(event) + "\n")
            events.flush()
        except (BrokenPipeError, ValueError):  # the runner has died: this run ends with its round
            worker.stopping.set()

    worker = Worker(Path(given["root"]), given["keep_models"], given["code"], given["workers"], send)
    messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_read_messages, args=(messages, worker), daemon=True).start()
    send({"event": "ready"})
    while (message := messages.get()) is not None and not worker.stopping.is_set():
        runs = [_arguments(run) for run in message.get("pack", [message])]
        if len(runs) == 1:
            worker.make(**runs[0])
        else:
            worker.make_pack(runs)


def _arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Of :meth:`Worker.make`."""
    candidates = [Settings.from_json(settings) for settings in message["candidates"]]
    settings = Settings.from_json(message["settings"])
    return {"key": message["key"], "settings": settings, "candidates": candidates, "values": message["values"]}


def _read_messages(messages: queue.SimpleQueue[dict[str, Any] | None], worker: Worker) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("stop"):
            worker.stop()
            messages.put(None)
            return
        messages.put(message)
    messages.put(None)
    worker.stop()
    time.sleep(LAST_ROUND)  # the process ends meanwhile, unless it hangs
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
