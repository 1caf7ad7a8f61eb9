"""Differential privacy of clients."""

from __future__ import annotations

from dataclasses import dataclass

from fedfew.config.group import Group, train_setting
from fedfew.util.validated import NOT_NEGATIVE, OPEN_SHARE, POSITIVE


@dataclass(frozen=True)
class Privacy(Group):
    """Noise on the sum of a round, and the norm to which contributions are clipped."""

    dp_noise: float = train_setting(
        0.0,
        "Differential privacy of clients: noise on a round's sum, in units of dp-clip (docs/privacy.md); 0: off, 1 is usual.",
        allowed=NOT_NEGATIVE,
    )
    dp_clip: float = train_setting(
        1.0, "With dp-noise: largest norm of what a client contributes, all its models together.", allowed=POSITIVE
    )
    dp_delta: float = train_setting(
        1e-5, "With dp-noise: the δ at which ε is given; below 1 / number of clients.", allowed=OPEN_SHARE
    )

    def without_effect(self) -> list[str]:
        found = super().without_effect()
        for name in ("dp_clip", "dp_delta"):
            if self.changed(name) and self.dp_noise == 0:
                found.append(f"{name} is {getattr(self, name):g}, but dp_noise is 0: it has no effect")
        return found
