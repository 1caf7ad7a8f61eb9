"""Many runs in one stack: their replicas are trained and scored together, as if they were clients of one run.

Every run of a pack executes :func:`fedfew.train` in a thread of its own (``members.py``). When all runs that are left wait for
local work, requests of one kind are put together along the clients' axis, fulfilled once by one stacked engine, and taken apart
again (``requests.py``). Features that several runs hold are stored once (``placing.py``, ``rows.py``).
"""

from fedfew.engines.packed.engine import Packed
from fedfew.engines.packed.members import Member, Pack, clock, current
from fedfew.engines.packed.placing import place

__all__ = ["Member", "Pack", "Packed", "clock", "current", "place"]
