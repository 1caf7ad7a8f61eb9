"""Federated methods, one file each. :func:`make` builds one from its name and settings. (``X as X`` makes X part of the package.)

Imports local (what a method sees of a client), models, federation, stack and scalarization; never engines or training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedfew.methods.afl import AFL as AFL
from fedfew.methods.apfl import APFL as APFL
from fedfew.methods.base import Method as Method
from fedfew.methods.base import Outcome as Outcome
from fedfew.methods.base import Reply as Reply
from fedfew.methods.cfl import CFL as CFL
from fedfew.methods.clove import CLoVE as CLoVE
from fedfew.methods.ditto import Ditto as Ditto
from fedfew.methods.fedala import FedALA as FedALA
from fedfew.methods.fedamp import FedAMP as FedAMP
from fedfew.methods.fedavg import FedAvg as FedAvg
from fedfew.methods.fedbabu import FedBABU as FedBABU
from fedfew.methods.fedbn import FedBN as FedBN
from fedfew.methods.feddbe import FedDBE as FedDBE
from fedfew.methods.feddyn import FedDyn as FedDyn
from fedfew.methods.fedem import FedEM as FedEM
from fedfew.methods.fedfew import FedFew as FedFew
from fedfew.methods.fedfomo import FedFomo as FedFomo
from fedfew.methods.fedgroup import FedGroup as FedGroup
from fedfew.methods.fedmgda import FedMGDA as FedMGDA
from fedfew.methods.fedmtl import FedMTL as FedMTL
from fedfew.methods.fednova import FedNova as FedNova
from fedfew.methods.fedpac import FedPAC as FedPAC
from fedfew.methods.fedper import FedPer as FedPer
from fedfew.methods.fedprox import FedProx as FedProx
from fedfew.methods.fedrc import FedRC as FedRC
from fedfew.methods.fedrep import FedRep as FedRep
from fedfew.methods.fedrod import FedRoD as FedRoD
from fedfew.methods.fedsam import FedSAM as FedSAM
from fedfew.methods.fedsoft import FedSoft as FedSoft
from fedfew.methods.fesem import FeSEM as FeSEM
from fedfew.methods.ifca import IFCA as IFCA
from fedfew.methods.knnper import KNNPer as KNNPer
from fedfew.methods.lgfedavg import LGFedAvg as LGFedAvg
from fedfew.methods.local import LocalOnly as LocalOnly
from fedfew.methods.mofedsam import MoFedSAM as MoFedSAM
from fedfew.methods.pacfl import PACFL as PACFL
from fedfew.methods.perfedavg import PerFedAvg as PerFedAvg
from fedfew.methods.pfedme import PFedMe as PFedMe
from fedfew.methods.qfedavg import QFedAvg as QFedAvg
from fedfew.methods.scaffold import Scaffold as Scaffold
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


def register(cls: type[Method]) -> type[Method]:
    """Make a method of your own known by its name (usable as a decorator)."""
    taken = METHODS.get(cls.name)
    if taken is not None and taken is not cls and taken.__module__.startswith(f"{__name__}."):
        raise ValueError(
            f"{cls.__qualname__} has the name {cls.name!r}, which is that of {taken.__qualname__}: give the class one of its own "
            "(name: ClassVar[str] = 'mine')"
        )
    METHODS[cls.name] = cls
    return cls


def recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a method as a run recorded them, completed with defaults of those that it does not hold."""
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
