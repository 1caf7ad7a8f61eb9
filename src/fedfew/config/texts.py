"""How texts become token ids."""

from __future__ import annotations

from dataclasses import dataclass

from fedfew.config.group import Group, data_setting
from fedfew.util.validated import AT_LEAST_ONE


@dataclass(frozen=True)
class Texts(Group):
    """The tokeniser of texts; settings of the data, on one machine and on a network."""

    tokenizer: str = data_setting(
        "", "Tokeniser of Hugging Face's for texts: its folder, tokenizer.json, or a name on the hub (docs/adapters.md)."
    )
    max_length: int = data_setting(200, "With a tokenizer: texts are truncated to so many tokens.", allowed=AT_LEAST_ONE)
