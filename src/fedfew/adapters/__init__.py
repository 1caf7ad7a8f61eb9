"""Fine-tuning a part of a pretrained model: low-rank adapters (LoRA), or the head on features that are computed once.

The rest of the model is frozen: held once, neither trained nor sent. Imports models. Training and all above import it.
"""

from fedfew.adapters.lora import LoRA, merged
from fedfew.adapters.part import TrainedPart

__all__ = ["LoRA", "TrainedPart", "merged"]
