"""The example of adapters runs, and few adapters serve clients better than one for all."""

import pytest

from examples import adapters


@pytest.mark.slow
def test_few_adapters_beat_one_for_all() -> None:
    found = adapters.main(rounds=3)
    assert found.keys() == {"FedAvg-LoRA", "local LoRA", "IFCA-LoRA", "FedFew-LoRA"}
    assert found["FedFew-LoRA"] > found["FedAvg-LoRA"]
