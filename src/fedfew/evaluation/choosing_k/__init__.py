"""How many models? K chosen on data held out from the clients' training data. See ``docs/choosing-k.md``.

Nothing here looks at test data: :func:`held_out` puts the held-out samples in their place, and all else works on what it returns.
"""

from fedfew.evaluation.choosing_k.decision import Advice, Decision, decide
from fedfew.evaluation.choosing_k.measured import Observed, Regret, held_out, held_out_of_training, observed, regret

__all__ = ["Advice", "Decision", "Observed", "Regret", "decide", "held_out", "held_out_of_training", "observed", "regret"]
