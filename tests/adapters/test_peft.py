"""Models of Hugging Face's with adapters: peft's own, and ours. Small configurations with random weights."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedfew
from fedfew import export
from fedfew.adapters import LoRA
from fedfew.federation import Federation
from fedfew.stack import count_bytes
from fedfew.training.run import Run
from tests.methods.small import assert_same, tensors

pytestmark = pytest.mark.slow  # importing transformers and peft takes longer than the tests

WIDTH, RANK, CLASSES = 16, 2, 3
ADAPTERS, HEAD = 2 * RANK * 2 * WIDTH, WIDTH * CLASSES + CLASSES  # of query and value


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=WIDTH,
        max_position_embeddings=16,
        num_labels=CLASSES,
        attention_probs_dropout_prob=0.0,  # a function's, whose draws engines do not share
        initializer_range=0.3,  # large enough for gradients of attention to show after two rounds
    )
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


def peft_model() -> nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=RANK, lora_alpha=4, lora_dropout=0.1, target_modules=["query", "value"])
    return peft.get_peft_model(bert(), config)


def texts() -> Federation:
    draw = np.random.default_rng(0)
    clients = [(draw.integers(1, 50, (n, 6)), np.arange(n) % CLASSES) for n in (8, 9, 12)]
    return Federation.from_arrays(clients, clients, classes=CLASSES)


def train(model: nn.Module, **settings: Any) -> Run:
    chosen: dict[str, Any] = {"rounds": 2, "batch_size": 4, "device": "cpu", "engine": "sequential", "lr": 0.1} | settings
    return fedfew.train(texts(), model, fedfew.FedFew(models=2), **chosen)


def test_a_peft_model_is_trained_as_it_is() -> None:
    model = peft_model()
    runs = [train(model, engine=engine) for engine in ("sequential", "stacked")]
    assert_same(*map(tensors, runs), 2e-5)
    assert count_bytes(runs[0].state.server) == 2 * 4 * (ADAPTERS + HEAD)
    before, after = model.state_dict(), runs[0].models[1].state_dict()
    for name, value in before.items():
        assert torch.equal(value, after[name]) != ("lora_" in name or "modules_to_save" in name), name


def test_adapters_on_adapters_are_refused() -> None:
    with pytest.raises(ValueError, match="the model already has adapters of peft's; leave adapters out, and these are trained"):
        train(peft_model(), adapters=LoRA())


def test_our_adapters_on_a_transformer() -> None:
    lora = LoRA(rank=RANK, targets=["query", "value"])
    runs = [train(bert(), adapters=lora, engine=engine) for engine in ("sequential", "stacked")]
    assert_same(*map(tensors, runs), 2e-5)
    assert count_bytes(runs[0].state.server) == 2 * 4 * (ADAPTERS + HEAD)


@pytest.mark.parametrize(("ours", "head"), [(True, True), (True, False), (False, True)])
def test_adapters_are_loaded_by_peft(ours: bool, head: bool, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    lora = LoRA(rank=RANK, alpha=4, targets=["query", "value"], train_head=head)
    run = train(bert(), adapters=lora) if ours else train(peft_model())
    folder = export.write_adapters(run, tmp_path / "adapters", base="tiny-bert")
    x, _ = texts().test.of(2)
    for k, model in enumerate(run.models):
        loaded = peft.PeftModel.from_pretrained(bert(), folder / f"adapter-{k}").eval()
        assert not torch.allclose(bert().eval()(x).logits, model(x), atol=1e-4)
        torch.testing.assert_close(loaded(x).logits, model(x))
    routes = json.loads((folder / "routes.json").read_text())
    assert routes == {str(i): f"adapter-{k}" for i, k in enumerate(run.choice.tolist())}
    readme = (folder / "README.md").read_text()
    assert "vllm serve tiny-bert --enable-lora" in readme  # a head called classifier is taken as well
    assert ("modules_to_save" in readme, export.read_card(folder)["adapters"]["head"]) == (False, "classifier" if head else None)
    read = export.read(folder, bert if ours else peft_model)
    for found, model in zip(read.models, run.models, strict=True):
        assert torch.equal(found(x), model(x))
    if not ours:
        with pytest.raises(ValueError, match="is an adapter of peft's: give a function that returns the same PeftModel"):
            export.read(folder, bert)


def test_a_head_whose_name_ends_another_is_loaded_by_peft(tmp_path: Path) -> None:
    """pre_classifier and classifier: peft takes each module whose name ends with classifier for the head."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "dim": WIDTH, "n_layers": 1, "n_heads": 2, "hidden_dim": WIDTH, "max_position_embeddings": 16}
    config = transformers.DistilBertConfig(
        **sizes, num_labels=CLASSES, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0
    )
    base = transformers.DistilBertForSequenceClassification(config)
    run = train(base, adapters=LoRA(rank=RANK))
    folder = export.write_adapters(run, tmp_path / "adapters", base="tiny-distilbert")
    x, _ = texts().test.of(2)
    for k, model in enumerate(run.models):
        loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), folder / f"adapter-{k}").eval()
        torch.testing.assert_close(loaded(x).logits, model(x))
    assert export.read_card(folder)["adapters"]["head"] == "classifier"


def test_adapters_that_vllm_refuses_say_so(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=RANK, target_modules=["query"], rank_pattern={"query": 3}, use_dora=True)
    run = train(peft.get_peft_model(bert(), config), rounds=1)
    folder = export.write_adapters(run, tmp_path / "adapters", base="tiny-bert")
    assert export.read_card(folder)["adapters"]["rank"] == 3
    readme = (folder / "README.md").read_text()
    assert "vLLM does not take these adapters: use\\_dora is set." in readme
    assert "vllm serve" not in readme
