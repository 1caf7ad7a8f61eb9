"""The configuration of a run on a network: ``[tool.flwr.app.config]`` and ``flwr run --run-config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, get_type_hints

from fedfew import methods
from fedfew.adapters import TrainedPart
from fedfew.config import Texts, TrainConfig
from fedfew.flower.messages import MAX_LIST
from fedfew.flower.secure.fixed_point import MIN_CLIENTS
from fedfew.flower.secure.weighting import check_method
from fedfew.methods import Method
from fedfew.methods.compression import WAYS, Way
from fedfew.random_streams import round_half_up
from fedfew.training import privacy, products
from fedfew.training.resolve import resolve
from fedfew.util.conversion import convert
from fedfew.util.spelling import ELSEWHERE, unknown
from fedfew.util.validated import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, SHARE, ZERO_OR_ABOVE_ONE, one_of, setting, validate

AT_THE_SITE = ("engine", "device", "chunk")
SIMULATION_ONLY = {  # and why
    **dict.fromkeys(("early_stopping", "keep", "best_by"), "on a network no validation data are kept apart"),
    **dict.fromkeys(("attack", "attackers"), "they simulate hostile clients"),
}
SIMULATED = ("data", "partition", "data-seed", "task")  # read by the nodes of a simulation, which have no configuration


@dataclass(frozen=True)
class DeploymentConfig(Texts, TrainConfig):
    """What is trained, and how the server waits for sites. A key of the configuration is a name here with hyphens.

    The training settings are those of :class:`~fedfew.config.TrainConfig`, three of them with other defaults.
    """

    rounds: int = setting(10, "Communication rounds.", allowed=AT_LEAST_ONE)
    score_every: int = setting(
        10, "Score all clients every so many rounds (a second exchange) and after the last.", allowed=AT_LEAST_ONE
    )
    checkpoint_every: int = setting(1, "Write a checkpoint every so many rounds.", allowed=AT_LEAST_ONE)

    method: str = setting("fedfew", "Method, its settings after a colon: fedfew:models=3,mu=0.01.")
    model: str = setting("mlp", "A model's name, or module:factory in the app.")
    clients: int = setting(
        4, "How many clients the federation has, M; each site is one of them, 0 … M − 1.", allowed=AT_LEAST_ONE
    )
    folder: str = setting("runs/flower", "The run's folder at the server, relative to where the SuperLink was started.")
    quorum: float = setting(0.5, "Fraction of a round's clients that must reply for it to count.", allowed=SHARE)
    deadline: float = setting(600.0, "Seconds that a round waits for replies.", allowed=POSITIVE)
    attempts: int = setting(3, "How often a round without a quorum is tried before the run stops.", allowed=AT_LEAST_ONE)
    gather: float = setting(
        120.0, "Seconds to wait for all sites before starting with those that have joined.", allowed=NOT_NEGATIVE
    )
    clip_norm: float = setting(0.0, "Updates with a larger norm are shortened to it. 0: off.", allowed=NOT_NEGATIVE)
    refuse_ratio: float = setting(
        100.0,
        "Updates this many times longer than the round's median, and longer than the models sent out, are refused. 0: off.",
        allowed=ZERO_OR_ABOVE_ONE,
    )
    max_samples: int = setting(10_000_000, "A site that reports more training samples is refused.", allowed=AT_LEAST_ONE)
    classes: int = setting(
        0,
        "Number of classes. 0: the most that sites report, up to ten times their median.",
        allowed=(lambda value: value == 0 or value >= 2, "0 or ≥ 2"),
    )
    sites: str = setting("", "Registered names of clients 0, 1, … (north,south): no other key can take their place.")
    compression: Way = setting(
        "none", "Compression of updates: none, bf16 (half the bytes) or int8 (a quarter).", allowed=one_of(*WAYS)
    )
    aggregation: str = setting(
        "plain", "plain, or masked (experimental): the server learns only the sum of updates.", allowed=one_of("plain", "masked")
    )
    mask_clip: float = setting(
        1024.0,
        "With masked: weighted values of an update beyond this are clipped to it.",
        allowed=(lambda value: 1e-9 <= value <= 1e9, "a number from 1e-9 to 1e9"),
    )

    def __post_init__(self) -> None:
        validate(self, hyphens=True)
        if self.sites and not len(set(self.site_names)) == len(self.site_names) == self.clients:
            raise ValueError(
                f"sites must be empty, or the names of {self.clients} different sites separated by commas, not {self.sites!r}"
            )
        method = self.make_method()
        method.check_against(self.clients)
        self.check_aggregator(self.clients)
        self.part.check(self)
        products.check(self, method)
        privacy.check(self, method)
        if self.dp_noise and self.refuse_ratio:
            raise ValueError(
                f"refuse-ratio must be 0 where dp-noise is set, not {self.refuse_ratio:g}: whether one client counts must not "
                "depend on the others' updates (dp-clip bounds them)"
            )
        if self.aggregation == "masked":
            check_method(method)
            self._check_masked()

    def _check_masked(self) -> None:
        """Refuse what masked updates cannot be used for."""
        if products.wanted(self):
            raise ValueError("adapters: average must not be product where aggregation is masked: masks hide single products")
        if self.dp_noise:
            raise ValueError("dp-noise must be 0 where aggregation is masked: the server clips updates, which masks hide")
        if self.aggregator != "mean":
            raise ValueError(
                f"aggregator must be mean where aggregation is masked, not {self.aggregator!r}: a robust rule compares "
                "single updates, which masks hide"
            )
        if self.compression != "none":
            raise ValueError(f"compression must be none where aggregation is masked, not {self.compression!r}")
        if not MIN_CLIENTS <= self.clients_per_round <= MAX_LIST:
            raise ValueError(
                f"a round must have {MIN_CLIENTS} to {MAX_LIST} clients where aggregation is masked, not "
                f"{self.clients_per_round}: change participation (it is {self.participation:g}) or clients ({self.clients})"
            )

    @classmethod
    def names(cls) -> list[str]:
        """The settings of a run on a network: all fields but those that each site decides for itself or a network has not."""
        return [f.name for f in fields(cls) if f.name not in (*AT_THE_SITE, *SIMULATION_ONLY)]

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> DeploymentConfig:
        """From a run's configuration. Keys with a dot (from tables of your own) are ignored; others must be known."""
        hints = get_type_hints(cls)
        known = {name.replace("_", "-"): name for name in cls.names()}
        values = {}
        for key, value in config.items():
            if key in AT_THE_SITE:
                raise ValueError(f"{key} is chosen at each site (--node-config), not in the run's configuration")
            if key.replace("-", "_") in SIMULATION_ONLY:
                raise ValueError(f"{key} is for simulations: {SIMULATION_ONLY[key.replace('-', '_')]}")
            if key in known:
                values[known[key]] = convert(value, hints[known[key]], key)
            elif "." not in key and key not in SIMULATED:
                raise _unknown(key, config, [*known, *SIMULATED])
        return cls(**values)

    @property
    def site_names(self) -> list[str]:
        """The registered name of every client; empty where any site may be any client."""
        return [name.strip() for name in self.sites.split(",")] if self.sites else []

    @property
    def part(self) -> TrainedPart:
        """What adapters and freeze leave to train."""
        return TrainedPart.named(self.adapters, self.freeze)

    @property
    def clients_per_round(self) -> int:
        """How many clients a round asks, if they are there; with differential privacy about as many."""
        return max(1, round_half_up(self.participation * self.clients))

    def scores(self, round: int) -> bool:
        """Are all clients scored in this round?"""
        return round % self.score_every == 0 or round == self.rounds

    def without_effect(self) -> list[str]:
        found = super().without_effect()
        if self.changed("max_length") and not self.tokenizer:
            found.append(f"max-length is {self.max_length}, but there is no tokenizer: it has no effect")
        if self.changed("mask_clip") and self.aggregation == "plain":
            found.append(f"mask-clip is {self.mask_clip:g}, but aggregation is plain: it has no effect")
        if self.changed("refuse_ratio") and self.refuse_ratio and self.aggregation == "masked":
            found.append(f"refuse-ratio is {self.refuse_ratio:g}, but masks hide the lengths of updates: it has no effect")
        return found

    def outcome(self) -> dict[str, Any]:
        texts = {"tokenizer": self.tokenizer, "max_length": self.max_length} if self.tokenizer else {}
        return super().outcome() | self.part.settings() | texts

    def make_method(self) -> Method:
        """The method with its settings."""
        return _method(self.method)

    def for_sites(self) -> dict[str, Any]:
        """The settings that sites need to train, as JSON values."""
        names = ("rounds", "precision", "clients", "compression", "aggregation", "clip_norm")
        return self.outcome() | {name: getattr(self, name) for name in names} | {"method": self.make_method().settings()}


def _unknown(key: str, config: Mapping[str, Any], known: list[str]) -> ValueError:
    """What to write in place of a key that is no setting of a run."""
    given = str(config.get("method", DeploymentConfig.method)).partition(":")[0].strip()
    name = key.replace("-", "_")
    name = ELSEWHERE.get(name.lower(), name)
    owners = [method for method, cls in methods.METHODS.items() if name in {f.name for f in fields(cls)}]
    if not owners or name.replace("_", "-") in known:
        return unknown("setting of a run called", key, known)
    method = given if given in owners else owners[0]
    return ValueError(
        f"{key} is not a setting of a run, but of {'the method' if method == given else ', '.join(owners)}: it follows the "
        f'method\'s name and a colon, method="{method}:{name}={config[key]}"'
    )


@lru_cache(maxsize=32)  # a method's settings are read from its source, which takes a while
def _method(spec: str) -> Method:
    """The method of a text such as ``fedfew:models=3,mu=0.01``."""
    name, _, rest = spec.partition(":")
    given: dict[str, Any] = {"name": name.strip()}
    for piece in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = piece.partition("=")
        given[key.strip()] = value.strip() if equals else "true"
    _refuse_of_the_run(name.strip(), given)
    resolved = resolve({}, {}, {"method": given})
    return methods.make(resolved.method, **resolved.method_settings)


def _refuse_of_the_run(method: str, given: Mapping[str, str]) -> None:
    """Refuse settings of the whole run that are given as those of the method."""
    own = {f.name for f in fields(methods.METHODS[method])} if method in methods.METHODS else set()
    for key, value in given.items():
        name = key.replace("-", "_")
        if key != "name" and name in {f.name for f in fields(DeploymentConfig)} - own:
            own_key = f"{name.replace('_', '-')}={value}"
            raise ValueError(f"{key} is a setting of the whole run, not of {method}: give it a key of its own, {own_key}")
