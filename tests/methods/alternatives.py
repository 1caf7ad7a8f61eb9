"""For every setting of every method: another value, which must change the outcome, and values that must be refused."""

from __future__ import annotations

from typing import Any

from tests.methods.small import SIZES

M = len(SIZES)

# method → setting → (the settings to start from, the other value)
ALTERNATIVES: dict[str, dict[str, tuple[dict[str, Any], Any]]] = {
    "fedavg": {},
    "local": {},
    "fedprox": {"mu": ({}, 1.0)},
    "scaffold": {"variate": ({}, "gradient"), "server_step": ({}, 0.5)},
    "feddyn": {"alpha": ({}, 1.0)},
    "fednova": {},
    "qfedavg": {"q": ({}, 2.0)},
    "fedsam": {"rho": ({}, 0.5)},
    "pfedme": {"lam": ({}, 2.0), "inner_steps": ({}, 2), "outer_step": ({}, 0.5), "beta": ({}, 0.5)},
    "perfedavg": {"variant": ({}, "FO"), "alpha": ({}, 0.5), "delta": ({"alpha": 0.5}, 2.0)},
    "afl": {"step": ({}, 2.0)},
    "fedmgda": {"epsilon": ({}, 0.0), "normalise": ({}, False), "server_step": ({}, 0.5)},
    "mofedsam": {"rho": ({}, 0.5), "beta": ({}, 0.4)},
    "clove": {"models": ({}, 2)},
    "pacfl": {
        "models": ({}, 2),
        "basis": ({}, 1),
        "measure": ({"models": 2}, "sum"),
        "beta": ({}, 300.0),
        "layer": ({}, "2"),
    },
    "fedgroup": {"models": ({}, 2)},
    "fedmtl": {"lam": ({}, 2.0)},
    "ditto": {"lam": ({}, 0.0), "personal_epochs": ({}, 1)},
    "apfl": {"alpha": ({}, 0.9), "adaptive": ({}, False), "mixing": ({}, "round")},
    "fedrep": {"head": ({}, "0"), "head_epochs": ({}, 1), "body_epochs": ({}, 1)},
    "fedper": {"personal_layers": ({}, 0)},
    "fedbabu": {"head": ({}, "0"), "finetune": ({}, "head"), "finetune_epochs": ({}, 1)},
    "fedrod": {"gamma": ({}, 0.0), "head": ({}, "2")},
    "feddbe": {"kappa": ({}, 0.0), "mean_momentum": ({}, 1.0), "head": ({}, "0")},
    "fedpac": {"lam": ({}, 5.0), "head_epochs": ({}, 3), "head": ({}, "0")},
    "fedfomo": {"models": ({}, 1), "holdout": ({}, 0.5)},
    "knnper": {"lam": ({}, 0.9), "neighbours": ({}, 1), "sigma": ({}, 1.0), "capacity": ({}, 6), "head": ({}, "0")},
    "fedala": {"layers": ({}, 1), "eta": ({}, 1.0), "ala_epochs": ({}, 2)},
    "lgfedavg": {"shared_layers": ({}, 2)},
    "fedbn": {},
    "fedamp": {"lam": ({}, 0.1), "alpha": ({}, 0.5), "sigma": ({}, 2.0), "unit": ({}, "one"), "start": ({}, "own")},
    "ifca": {"models": ({}, 2), "init_models": ({}, "copies"), "ties": ({"init_models": "copies"}, "random")},
    "fedrc": {"models": ({}, 2), "full_step": ({}, False)},
    "fedsoft": {"models": ({}, 2), "lam": ({}, 1.0), "sigma": ({}, 0.3)},
    "fesem": {"models": ({}, 2)},
    "cfl": {"models": ({"epsilon": 5.0}, 2), "epsilon": ({}, 0.0), "gamma": ({"epsilon": 5.0}, 0.99)},
    "fedem": {"models": ({}, 2), "full_step": ({}, False)},
    "fedfew": {
        "models": ({}, 2),
        "mu": ({}, 1.0),
        "scale_free": ({}, False),
        "init_models": ({}, "copies"),
        "normalise": ({}, False),
        "weigh_samples": ({}, False),
        "loss_at": ({}, "received"),
        "send": ({}, "gradient"),
        "server_step": ({}, 0.5),
        "most_share": ({"mu": 0.02, "most_share": 1.0}, 0.5),
        "preference": ({"mu": 0.1}, [0.5, 1.0, 2.0, 1.0, 1.0, 3.0]),
        "ideal": ({"mu": 0.1}, [0.5, 0.0, 0.0, 0.2, 0.0, 0.1]),
        "share": ({"init_models": "distinct"}, "body"),
        "head": ({"init_models": "distinct", "share": "body"}, "0"),
    },
}

SAME_OUTCOME = {("fedrod", "head")}  # only one layer gives the logits; see tests/methods/test_fedrod.py

# Forms of a method, beside its default and its preset, that are different enough to be put through all tests.
FORMS: list[tuple[str, dict[str, Any]]] = [("perfedavg", {"variant": "FO"}), ("fedfew", {"share": "body"})]

NOT_A_WEIGHT = (-0.1, float("nan"), float("inf"))
NOT_POSITIVE = (0.0, *NOT_A_WEIGHT)
NOT_A_NUMBER_OF = (0, -1, 1.5)

# method → setting → values that make no sense
REFUSED: dict[str, dict[str, tuple[Any, ...]]] = {
    "fedavg": {},
    "local": {},
    "fedprox": {"mu": (*NOT_A_WEIGHT, "strong")},
    "scaffold": {"variate": ("exact",), "server_step": (*NOT_POSITIVE, "large")},
    "feddyn": {"alpha": (*NOT_POSITIVE, "strong")},
    "fednova": {},
    "qfedavg": {"q": (*NOT_A_WEIGHT, "fair")},
    "fedsam": {"rho": (*NOT_A_WEIGHT, "far")},
    "pfedme": {
        "lam": (*NOT_A_WEIGHT, "strong"),
        "inner_steps": (*NOT_A_NUMBER_OF, "all"),
        "outer_step": NOT_POSITIVE,
        "beta": NOT_POSITIVE,
    },
    "perfedavg": {"variant": ("exact",), "alpha": NOT_A_WEIGHT, "delta": NOT_POSITIVE},
    "afl": {"step": (*NOT_A_WEIGHT, "large")},
    "fedmgda": {"epsilon": (*NOT_A_WEIGHT, 1.1), "normalise": ("half", 1), "server_step": (*NOT_POSITIVE, "large")},
    "mofedsam": {"rho": (*NOT_A_WEIGHT, "far"), "beta": (*NOT_POSITIVE, 1.1)},
    "clove": {"models": (*NOT_A_NUMBER_OF, M + 1, True)},
    "pacfl": {
        "models": (*NOT_A_NUMBER_OF, M + 1, True),
        "basis": (*NOT_A_NUMBER_OF, "all"),
        "measure": ("largest",),
        "beta": NOT_A_WEIGHT,
        "layer": (3, "no such layer"),
    },
    "fedgroup": {"models": (*NOT_A_NUMBER_OF, M + 1, True)},
    "fedmtl": {"lam": (*NOT_A_WEIGHT, "strong")},
    "ditto": {"lam": (*NOT_A_WEIGHT, "strong"), "personal_epochs": (*NOT_A_NUMBER_OF, "all")},
    "apfl": {"alpha": (*NOT_A_WEIGHT, 1.1, "half"), "adaptive": ("perhaps", 1), "mixing": ("epoch",)},
    "fedrep": {"head": (3, "no such layer"), "head_epochs": (*NOT_A_NUMBER_OF, "all"), "body_epochs": (*NOT_A_NUMBER_OF, "all")},
    "fedper": {"personal_layers": (-1, 1.5, 2, "last")},
    "fedbabu": {"head": (3, "no such layer"), "finetune": ("nothing",), "finetune_epochs": (*NOT_A_NUMBER_OF, "all")},
    "fedrod": {"gamma": (*NOT_A_WEIGHT, "strong"), "head": (3, "no such layer", "0")},
    "feddbe": {"kappa": NOT_A_WEIGHT, "mean_momentum": (*NOT_A_WEIGHT, 1.1, "much"), "head": (3, "no such layer")},
    "fedpac": {"lam": (*NOT_A_WEIGHT, "strong"), "head_epochs": (*NOT_A_NUMBER_OF, "all"), "head": (3, "no such layer")},
    "fedfomo": {"models": (*NOT_A_NUMBER_OF, "all"), "holdout": (0.0, 1.0, float("nan"), "some")},
    "knnper": {
        "lam": (*NOT_A_WEIGHT, 1.1),
        "neighbours": (*NOT_A_NUMBER_OF, "all"),
        "sigma": (*NOT_POSITIVE, "wide"),
        "capacity": (*NOT_A_NUMBER_OF, "all"),
        "head": (3, "no such layer"),
    },
    "fedala": {"layers": (*NOT_A_NUMBER_OF, "last"), "eta": NOT_POSITIVE, "ala_epochs": (-1, 0.5, "all")},
    "lgfedavg": {"shared_layers": (*NOT_A_NUMBER_OF, "last")},
    "fedbn": {},
    "fedamp": {
        "lam": (*NOT_A_WEIGHT, "strong"),
        "alpha": NOT_POSITIVE,
        "sigma": NOT_POSITIVE,
        "unit": ("metre",),
        "start": ("server",),
    },
    "ifca": {"models": (*NOT_A_NUMBER_OF, M + 1, True), "init_models": ("same",), "ties": ("last",)},
    "fedrc": {"models": (*NOT_A_NUMBER_OF, M + 1, True), "full_step": ("half", 1)},
    "fedsoft": {"models": (*NOT_A_NUMBER_OF, M + 1, True), "lam": NOT_A_WEIGHT, "sigma": (*NOT_POSITIVE, 1.1)},
    "fesem": {"models": (*NOT_A_NUMBER_OF, M + 1, True)},
    "cfl": {"models": (*NOT_A_NUMBER_OF, M + 1, True), "epsilon": NOT_A_WEIGHT, "gamma": (*NOT_A_WEIGHT, 1.0)},
    "fedem": {"models": (*NOT_A_NUMBER_OF, M + 1, True), "full_step": ("half", 1)},
    "fedfew": {
        "models": (*NOT_A_NUMBER_OF, M + 1),
        "mu": NOT_POSITIVE,
        "init_models": ("same",),
        "loss_at": ("rest",),
        "send": ("regards",),
        "server_step": NOT_POSITIVE,
        "most_share": (*NOT_POSITIVE, 1.5, "half"),
        "preference": ((-1.0,) * M, (1.0,) * (M - 1)),
        "ideal": ((0.0,) * (M + 1),),
        "share": ("everything",),
        "head": ("0",),  # nothing is shared, so there is no head
    },
}
