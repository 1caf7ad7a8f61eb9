"""Sites that fail on demand: ``test.faults = "0:1:raise"`` makes client 0 fail in round 1."""

import time

from fedfew.flower import client, site
from fedfew.flower.messages import MASK
from fedfew.flower.site_errors import fails_as
from fedfew.stack import tree_map

SECRET = "patient 4711"
HANGING = "hanging"  # a file that says that the site does
_train = site.Site._train
_masked_step = site.Site._masked_step
_handle = client.handle
_faults: dict[tuple[int, int], str] = {}


def faulty_train(self, message):
    fault = _faults.get((self.config.client, message.values["round"]), "")
    if fault == "raise":
        with fails_as("training"):
            raise RuntimeError(f"{SECRET} has no label")
    if fault == "hang":
        (self.folder / HANGING).touch()
        time.sleep(3600)
    reply = _train(self, message)
    change = {
        "nan": lambda t: t * float("nan"),
        "shape": lambda t: t[..., None],
        "huge": lambda t: t * 1e6,
    }.get(fault)
    if change:
        reply.tree = tree_map(change, reply.tree)
    return reply


def faulty_masks(self, message):
    """ "drop": the site trains, then fails to upload."""
    fault = _faults.get((self.config.client, message.values["round"]), "")
    if fault == "drop" and message.kind == MASK:
        with fails_as("request"):
            raise RuntimeError(SECRET)
    return _masked_step(self, message)


def handle(flower_message, context, model=None):
    for fault in filter(None, str(context.run_config.get("test.faults", "")).split(",")):
        number, round, what = fault.split(":")
        _faults[int(number), int(round)] = what
    return _handle(flower_message, context, model)


site.Site._train = faulty_train
site.Site._masked_step = faulty_masks
client.handle = handle
app = client.client_app()
