"""Federated methods, one file each. :func:`make` builds one from its name and settings.

Imports local (what a method sees of a client), models, federation, stack and scalarization; never engines or training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedfew.methods.afl import AFL
from fedfew.methods.apfl import APFL
from fedfew.methods.base import Method, Outcome, Reply
from fedfew.methods.cfl import CFL
from fedfew.methods.clove import CLoVE
from fedfew.methods.ditto import Ditto
from fedfew.methods.fedala import FedALA
from fedfew.methods.fedamp import FedAMP
from fedfew.methods.fedavg import FedAvg
from fedfew.methods.fedbabu import FedBABU
from fedfew.methods.fedbn import FedBN
from fedfew.methods.feddbe import FedDBE
from fedfew.methods.feddyn import FedDyn
from fedfew.methods.fedem import FedEM
from fedfew.methods.fedfew import FedFew
from fedfew.methods.fedfomo import FedFomo
from fedfew.methods.fedgroup import FedGroup
from fedfew.methods.fedmgda import FedMGDA
from fedfew.methods.fedmtl import FedMTL
from fedfew.methods.fednova import FedNova
from fedfew.methods.fedpac import FedPAC
from fedfew.methods.fedper import FedPer
from fedfew.methods.fedprox import FedProx
from fedfew.methods.fedrc import FedRC
from fedfew.methods.fedrep import FedRep
from fedfew.methods.fedrod import FedRoD
from fedfew.methods.fedsam import FedSAM
from fedfew.methods.fedsoft import FedSoft
from fedfew.methods.fesem import FeSEM
from fedfew.methods.ifca import IFCA
from fedfew.methods.knnper import KNNPer
from fedfew.methods.lgfedavg import LGFedAvg
from fedfew.methods.local import LocalOnly
from fedfew.methods.mofedsam import MoFedSAM
from fedfew.methods.pacfl import PACFL
from fedfew.methods.perfedavg import PerFedAvg
from fedfew.methods.pfedme import PFedMe
from fedfew.methods.qfedavg import QFedAvg
from fedfew.methods.scaffold import Scaffold
from fedfew.util.spelling import unknown

METHODS: dict[str, type[Method]] = {
    cls.name: cls
    for cls in (
        FedFew,
        FedAvg,
        FedProx,
        Scaffold,
        FedDyn,
        FedNova,
        QFedAvg,
        AFL,
        FedMGDA,
        FedSAM,
        MoFedSAM,
        FedMTL,
        APFL,
        Ditto,
        PFedMe,
        PerFedAvg,
        FedPer,
        FedRep,
        FedBABU,
        FedRoD,
        FedDBE,
        FedPAC,
        KNNPer,
        LGFedAvg,
        FedBN,
        FedAMP,
        FedALA,
        FedFomo,
        IFCA,
        FedEM,
        FedSoft,
        FedRC,
        CFL,
        FeSEM,
        CLoVE,
        PACFL,
        FedGroup,
        LocalOnly,
    )
}

__all__ = [
    "AFL",
    "APFL",
    "CFL",
    "IFCA",
    "METHODS",
    "PACFL",
    "CLoVE",
    "Ditto",
    "FeSEM",
    "FedALA",
    "FedAMP",
    "FedAvg",
    "FedBABU",
    "FedBN",
    "FedDBE",
    "FedDyn",
    "FedEM",
    "FedFew",
    "FedFomo",
    "FedGroup",
    "FedMGDA",
    "FedMTL",
    "FedNova",
    "FedPAC",
    "FedPer",
    "FedProx",
    "FedRC",
    "FedRep",
    "FedRoD",
    "FedSAM",
    "FedSoft",
    "KNNPer",
    "LGFedAvg",
    "LocalOnly",
    "Method",
    "MoFedSAM",
    "Outcome",
    "PFedMe",
    "PerFedAvg",
    "QFedAvg",
    "Reply",
    "Scaffold",
    "make",
    "recorded",
    "register",
]


def register(cls: type[Method]) -> type[Method]:
    """Make a method of your own known by its name (usable as a decorator)."""
    METHODS[cls.name] = cls
    return cls


def recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a method as a run recorded them, also by an earlier version, completed."""
    cls = METHODS.get(settings.get("name", ""))
    return dict(settings) if cls is None else cls.recorded(settings)


def make(name: str, **settings: Any) -> Method:
    """The method called ``name`` with these hyper-parameters; ``published=True`` starts from its ``as_published`` preset."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    cls = METHODS[name]
    known = {f.name: f for f in fields(cls)}
    published = settings.pop("published", False)
    for setting, value in settings.items():
        if setting not in known:
            raise unknown(f"setting of {name} called", setting, known)
        if isinstance(value, list):
            settings[setting] = tuple(value)
    return cls.as_published(**settings) if published else cls(**settings)
