"""Padding is hidden from models of Hugging Face. Small configurations with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedfew
from fedfew import data
from fedfew.adapters import LoRA
from fedfew.federation import Federation
from fedfew.models.own import OwnModel
from tests.data.test_tokens import PAD, Fast
from tests.methods.small import assert_same, tensors

pytestmark = pytest.mark.slow  # importing transformers takes longer than the tests
transformers: Any = pytest.importorskip("transformers")
SIZES = {"vocab_size": 9, "num_labels": 2, "pad_token_id": PAD, "initializer_range": 0.3}
BERT = SIZES | {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "attention_probs_dropout_prob": 0.0,  # a function's, whose draws engines do not share
    "hidden_dropout_prob": 0.0,
}


def bert(attention: str = "eager", **changes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(**(BERT | changes), attn_implementation=attention)
    return transformers.BertForSequenceClassification(config)


def distilbert(attention: str = "eager") -> Any:
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        **SIZES, dim=16, n_layers=1, n_heads=2, hidden_dim=16, attention_dropout=0.0, dropout=0.0, seq_classif_dropout=0.0
    )
    config._attn_implementation = attention
    return transformers.DistilBertForSequenceClassification(config)


def gpt2(kind: str) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        **SIZES, n_positions=12, n_embd=16, n_layer=1, n_head=2, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=1
    )
    return getattr(transformers, kind)(config)


def texts(max_length: int = 6, **settings: Any) -> Federation:
    draw, words = np.random.default_rng(0), ["goal", "match", "stock", "price", "up"]
    clients = [
        ([" ".join(draw.choice(words, draw.integers(1, 5))) for _ in range(n)], (np.arange(n) % 2).tolist()) for n in (8, 9, 6)
    ]
    return data.load({"train": clients, "test": clients}, tokenizer=Fast(), max_length=max_length, **settings)


def train(federation: Federation, model: nn.Module, **settings: Any) -> fedfew.Run:
    chosen: dict[str, Any] = {"rounds": 2, "batch_size": 4, "device": "cpu", "engine": "sequential", "lr": 0.1} | settings
    return fedfew.train(federation, model, fedfew.FedFew(models=2), **({"adapters": LoRA(rank=2)} | chosen))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("model", [bert, distilbert])
def test_the_mask_is_that_of_hugging_face(model: Any, attention: str) -> None:
    """Given token ids alone, a module gives what it gives with the mask that its tokeniser would make; and not what without."""
    ids = texts().test.x.long()
    with torch.no_grad():
        plain = model(attention).eval()
        own, expected = OwnModel(model(attention))().eval()(ids), plain(ids, attention_mask=(ids != PAD).long()).logits
        torch.testing.assert_close(own, expected)
        assert (plain(ids).logits - expected).abs().max() > 0.01


@pytest.mark.parametrize("model", [bert, distilbert, lambda: gpt2("GPT2ForSequenceClassification")])
def test_classification_does_not_depend_on_how_much_is_padded(model: Any) -> None:
    with torch.no_grad():
        outputs = [OwnModel(model())().eval()(texts(length).test.x.long()) for length in (6, 12)]
    torch.testing.assert_close(*outputs)
    short, long = (train(texts(length), model(), lr=0.01) for length in (6, 12))  # small steps, in which rounding does not grow
    assert_same(tensors(short), tensors(long), 1e-5)


@pytest.mark.parametrize(
    ("model", "task"),
    [
        (bert, None),
        (lambda: bert("sdpa"), None),
        (distilbert, None),
        (lambda: gpt2("GPT2ForSequenceClassification"), None),
        (lambda: gpt2("GPT2LMHeadModel"), "language-modelling"),
    ],
)
def test_engines_agree(model: Any, task: Any) -> None:
    plain, stacked = (train(texts(task=task), model(), engine=engine, lr=0.01) for engine in ("sequential", "stacked"))
    assert_same(tensors(stacked), tensors(plain), 2e-5)


def test_language_modelling_does_not_depend_on_how_much_is_padded() -> None:
    model = gpt2("GPT2LMHeadModel")
    short, long = (train(texts(length, task="language-modelling"), model) for length in (6, 12))
    np.testing.assert_allclose(short.perplexity(), long.perplexity(), rtol=1e-5)


def test_new_texts_are_predicted_from_as_they_are() -> None:
    run = train(texts(), bert())
    new = ["goal match", "up", "stock price up"]
    ids = torch.tensor([[1, 4, 5, 2, PAD, PAD], [1, 8, 2, PAD, PAD, PAD], [1, 6, 7, 8, 2, PAD]])
    found = run.predict_proba(new, client=0)
    np.testing.assert_allclose(found, run.predict_proba(ids.numpy(), client=0))
    with torch.no_grad():
        expected = run.model_of(0).eval()(ids).softmax(-1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_an_empty_text_and_a_mask_of_the_callers() -> None:
    module = OwnModel(bert())().eval()
    ids = torch.tensor([[1, 4, 5, PAD], [PAD] * 4])
    assert bool(module(ids).isfinite().all())
    torch.testing.assert_close(module(ids, attention_mask=torch.ones(2, 4)), bert().eval()(ids).logits)


def test_models_of_peft_get_the_mask_once() -> None:
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(bert(), peft.LoraConfig(target_modules=["query"]))
    module, ids = OwnModel(OwnModel(wrapped)())().eval(), texts().test.x.long()
    assert len(module._forward_pre_hooks) == 1
    with torch.no_grad():
        torch.testing.assert_close(module(ids), bert().eval()(ids, attention_mask=(ids != PAD).long()).logits)


def test_models_that_make_masks_otherwise_get_the_plain_one() -> None:
    """DeBERTa reads masks of four axes differently, and flash attention takes none."""
    sizes = {name: value for name, value in BERT.items() if name != "num_labels"}
    torch.manual_seed(0)
    deberta = transformers.DebertaV2ForSequenceClassification(transformers.DebertaV2Config(**sizes)).eval()
    ids = texts().test.x.long()
    with torch.no_grad():
        expected = deberta(ids, attention_mask=(ids != PAD).long()).logits
        torch.testing.assert_close(OwnModel(deberta)().eval()(ids), expected)


def test_another_padding_than_the_models_is_refused() -> None:
    with pytest.raises(ValueError, match=r"config.pad_token_id of BertForSeq\w+ is 0, but the tokenizer pads with 3: set model"):
        train(texts(), bert(pad_token_id=0))
