"""Recipes: several settings under one name."""

from __future__ import annotations

from typing import Any, Literal, get_args

Recipe = Literal["plain", "strong"]
STRONG: dict[str, Any] = {
    "label_prior": "client",
    "server_optimizer": "momentum",
    "server_average": 0.9,
    "serve": "mixture",
    "smoothing_end": 0.25,
    "check_share": 0.05,
}
"""What recipe="strong" sets, besides crop-flip augmentation for colour images."""


def recipe_settings(recipe: str, colour_images: bool, classes: bool) -> dict[str, Any]:
    """The settings of a recipe; "plain" has none. classes: False for other tasks, which have no label prior."""
    if recipe not in get_args(Recipe):
        raise ValueError(f"recipe must be plain or strong, not {recipe!r}")
    if recipe == "plain":
        return {}
    settings = STRONG | ({"augment": "crop-flip"} if colour_images else {})
    return {name: value for name, value in settings.items() if classes or name != "label_prior"}
