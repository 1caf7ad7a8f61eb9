"""Flower's grid as the network of a :class:`~fedfew.flower.dispatcher.Dispatcher`."""

from __future__ import annotations

import time
from collections.abc import Mapping

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedfew.flower import records
from fedfew.flower.dispatcher import LATE, Received
from fedfew.flower.messages import JOIN, MASK, REVEAL, SCORE, SHARE_KEYS, TRAIN, RefusedError, SiteMessage, Specs

TYPES = {JOIN: MessageType.QUERY, TRAIN: MessageType.TRAIN, SCORE: MessageType.EVALUATE}
TYPES |= dict.fromkeys((SHARE_KEYS, MASK, REVEAL), MessageType.TRAIN)
ERRORS = {  # by Flower's error codes
    1: "its app cannot be loaded",
    2: "its app raised an error",
    3: str(LATE),
    4: str(LATE),
    5: "the node is gone",
    8: "its process died",
}
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


class FlowerNetwork:
    """The nodes of a Flower run."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def nodes(self) -> set[int]:
        return set(self.grid.get_node_ids())

    def registered_names(self) -> dict[int, str]:
        return {node.node_id: node.name for node in self.grid.get_nodes() if node.name}

    def send(self, messages: Mapping[int, SiteMessage], seconds: float) -> dict[str, int]:
        arrays: dict[int, object] = {}  # messages to many nodes often share their tensors: these are serialised once
        flower_messages, nodes = [], []
        for node, message in messages.items():
            content = records.to_records(SiteMessage(message.kind, message.values))
            key = id(message.tree)
            if key not in arrays:
                arrays[key] = records.to_records(message)[records.ARRAYS]
            content[records.ARRAYS] = arrays[key]  # type: ignore[assignment]  # an ArrayRecord, as above
            group = str(message.values.get("round", 0))
            flower_messages.append(Message(content, node, TYPES[message.kind], ttl=seconds, group_id=group))
            nodes.append(node)
        ids = list(self.grid.push_messages(flower_messages))
        return {number: node for number, node in zip(ids, nodes, strict=True) if number}

    def receive(self, waiting: Mapping[str, Specs]) -> list[tuple[str, Received]]:
        replies: list[tuple[str, Received]] = []
        for flower_message in self.grid.pull_messages(list(waiting)):
            number = flower_message.metadata.reply_to_message_id
            if number not in waiting:
                continue
            try:
                if flower_message.has_error():  # the error's text may contain private data, so only its code is used
                    code = flower_message.error.code
                    raise RefusedError(ERRORS.get(code, f"Flower reports error {code}"))
                replies.append((number, records.from_records(flower_message.content, waiting[number])))
            except RefusedError as reason:
                replies.append((number, reason))
        return replies

    def pause(self, waited: float) -> None:
        time.sleep(min(LONGEST_PAUSE, max(SHORTEST_PAUSE, waited / 10)))
