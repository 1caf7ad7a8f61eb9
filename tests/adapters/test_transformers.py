"""Language models and vision transformers of Hugging Face's with our adapters. Small configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedfew
from fedfew import export
from fedfew.adapters import LoRA, merged
from fedfew.federation import Federation
from fedfew.tasks import IGNORED
from tests.methods.small import assert_same, tensors

pytestmark = pytest.mark.slow  # importing transformers takes longer than the tests
transformers: Any = pytest.importorskip("transformers")
WIDTH, RANK, VOCABULARY, CLASSES = 16, 2, 30, 3


def gpt2() -> nn.Module:
    """Its linear layers are Conv1D, and its head is its embedding."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=8,
        n_embd=WIDTH,
        n_layer=1,
        n_head=2,
        attn_pdrop=0.0,  # a function's, whose draws engines do not share
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.3,  # large enough for gradients of attention to show after two rounds
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=WIDTH,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=CLASSES,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(config)


def texts() -> Federation:
    """The last two tokens of every other sequence are padding."""
    draw, clients = np.random.default_rng(0), []
    for samples in (8, 9, 5):
        x = draw.integers(1, VOCABULARY, (samples, 6))
        x[::2, -2:] = 0
        clients.append((x, np.where(x == 0, IGNORED, x)))
    return Federation.from_arrays(clients, clients, classes=VOCABULARY, task="language-modelling")


def images() -> Federation:
    draw = np.random.default_rng(0)
    clients = [(draw.normal(size=(n, 1, 8, 8)), np.arange(n) % CLASSES) for n in (8, 9, 5)]
    return Federation.from_arrays(clients, clients, classes=CLASSES)


def train(data: Federation, model: nn.Module, **settings: Any) -> fedfew.Run:
    chosen: dict[str, Any] = {"rounds": 2, "batch_size": 4, "device": "cpu", "engine": "sequential", "lr": 0.1} | settings
    return fedfew.train(data, model, fedfew.FedFew(models=2), **({"adapters": LoRA(rank=RANK)} | chosen))


@pytest.mark.parametrize(("model", "data"), [(gpt2, texts), (llama, texts), (vit, images)])
def test_engines_agree(model: Callable[[], nn.Module], data: Callable[[], Federation]) -> None:
    plain, stacked = (train(data(), model(), engine=engine) for engine in ("sequential", "stacked"))
    assert_same(tensors(stacked), tensors(plain), 2e-5)


def test_the_perplexity_is_that_of_hugging_faces_own_loss() -> None:
    """Which shifts the labels itself, and leaves −100 out."""
    run = train(texts(), llama(), serve="best")
    x, y = texts().test.of(1)
    module = run.models[int(run.choice[1])]
    module._forward_hooks.clear()  # one keeps the logits alone
    with torch.no_grad():
        loss = module(input_ids=x, labels=y).loss
    assert run.perplexity()[1] == pytest.approx(loss.exp().item(), rel=1e-4)


def test_a_head_that_is_the_embedding_stays_frozen_and_a_line_says_so() -> None:
    events: list[str] = []
    run = train(texts(), gpt2(), on_round=lambda p: events.extend(p.events))
    assert "adapters: the head, lm_head, shares its weights with another layer and stays frozen" in events
    adapters = RANK * ((WIDTH + 3 * WIDTH) + (WIDTH + WIDTH) + 2 * (WIDTH + 4 * WIDTH))  # c_attn, c_proj, c_fc, c_proj
    assert int(run.history.last("bytes_down")) == 3 * 2 * 4 * adapters


def test_adapters_of_gpt2_are_merged_and_loaded_by_peft(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    run, x = train(texts(), gpt2()), texts().test.x[:4]
    place = export.write_adapters(run, tmp_path / "adapters")
    for k, module in enumerate(run.models):
        loaded = peft.PeftModel.from_pretrained(gpt2(), str(place / f"adapter-{k}")).eval()
        with torch.no_grad():
            torch.testing.assert_close(loaded(x).logits, module(x))
            torch.testing.assert_close(merged(module)(x), module(x))
            assert not torch.allclose(gpt2().eval()(x).logits, module(x), atol=1e-3)


@pytest.mark.parametrize(("model", "data"), [(llama, texts), (vit, images)])
def test_a_folder_of_weights_works_the_same(model: Callable[[], Any], data: Callable[[], Federation], tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    read = type(model()).from_pretrained(tmp_path)
    assert_same(tensors(train(data(), read)), tensors(train(data(), model())))
