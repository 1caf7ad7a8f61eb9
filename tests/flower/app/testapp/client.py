"""Sites that fail on demand: ``test.faults = "0:1:raise"`` makes client 0 fail in round 1."""

import time

from fedfew.flower import client, site
from fedfew.flower.messages import MASK
from fedfew.flower.site_errors import failing_as
from fedfew.stack import tree_map

SECRET = "patient 4711"
_train = site.Site._train
_under_masks = site.Site._under_masks
_answered = client.answered
_faults: dict[tuple[int, int], str] = {}


def faulty_train(self, letter):
    fault = _faults.get((self.config.client, letter.values["round"]), "")
    if fault == "raise":
        with failing_as("training"):
            raise RuntimeError(f"{SECRET} has no label")
    if fault == "hang":
        time.sleep(600)
    reply = _train(self, letter)
    change = {
        "nan": lambda t: t * float("nan"),
        "shape": lambda t: t[..., None],
        "huge": lambda t: t * 1e6,
    }.get(fault)
    if change:
        reply.tree = tree_map(change, reply.tree)
    return reply


def faulty_masks(self, letter):
    """ "drop": trained, and then not to be heard of again in this round."""
    fault = _faults.get((self.config.client, letter.values["round"]), "")
    if fault == "drop" and letter.kind == MASK:
        with failing_as("request"):
            raise RuntimeError(SECRET)
    return _under_masks(self, letter)


def answered(message, context, model=None):
    for fault in filter(None, str(context.run_config.get("test.faults", "")).split(",")):
        number, round, what = fault.split(":")
        _faults[int(number), int(round)] = what
    return _answered(message, context, model)


site.Site._train = faulty_train
site.Site._under_masks = faulty_masks
client.answered = answered
app = client.client_app()
