"""Flower's grid as a network for the server's post."""

from __future__ import annotations

import time
from collections.abc import Mapping

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedfew.flower import records
from fedfew.flower.messages import JOIN, MASK, REVEAL, SCORE, SHARE, TRAIN, Letter, RefusedError, Specs

TYPES = {JOIN: MessageType.QUERY, TRAIN: MessageType.TRAIN, SCORE: MessageType.EVALUATE}
TYPES |= dict.fromkeys((SHARE, MASK, REVEAL), MessageType.TRAIN)
LATE = "no answer within the deadline"
REASONS = {1: "its app cannot be loaded", 2: "its app raised an error", 3: LATE, 4: LATE, 5: "the node is gone"}
REASONS[8] = "its process died"
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


class FlowerNetwork:
    """The nodes of a Flower run."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def nodes(self) -> set[int]:
        return set(self.grid.get_node_ids())

    def send(self, letters: Mapping[int, Letter], seconds: float) -> dict[str, int]:
        contents: dict[int, object] = {}  # letters to many nodes often share their tensors: these are written once
        messages, nodes = [], []
        for node, letter in letters.items():
            content = records.to_records(Letter(letter.kind, letter.values))
            key = id(letter.tree)
            if key not in contents:
                contents[key] = records.to_records(letter)[records.ARRAYS]
            content[records.ARRAYS] = contents[key]  # type: ignore[assignment]  # an ArrayRecord, as above
            messages.append(Message(content, node, TYPES[letter.kind], ttl=seconds, group_id=str(letter.values.get("round", 0))))
            nodes.append(node)
        ids = list(self.grid.push_messages(messages))
        return {number: node for number, node in zip(ids, nodes, strict=True) if number}

    def receive(self, waiting: Mapping[str, Specs]) -> list[tuple[str, Letter | RefusedError]]:
        answers: list[tuple[str, Letter | RefusedError]] = []
        for message in self.grid.pull_messages(list(waiting)):
            number = message.metadata.reply_to_message_id
            if number not in waiting:
                continue
            try:
                if message.has_error():  # its text may hold anything, so only the code is looked at
                    raise RefusedError(REASONS.get(message.error.code, f"Flower reports error {message.error.code}"))
                answers.append((number, records.to_letter(message.content, waiting[number])))
            except RefusedError as reason:
                answers.append((number, reason))
        return answers

    def pause(self, waited: float) -> None:
        time.sleep(min(LONGEST_PAUSE, max(SHORTEST_PAUSE, waited / 10)))
