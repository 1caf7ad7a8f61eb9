"""Few adapters of one base model on a vLLM server: each client's requests go to its own adapter. Compared with peft.

    pip install "fedfew[adapters]"
    python examples/vllm_adapters.py prepare           # trains, writes studies/vllm/base and studies/vllm/adapters
    cd studies/vllm/adapters                           # then, in an environment with vLLM:
    vllm serve ../base --enable-lora --max-loras 2 --max-lora-rank 8 \\
        --lora-modules adapter-0=./adapter-0 adapter-1=./adapter-1 --dtype float32
    python examples/vllm_adapters.py compare           # asks http://localhost:8000

The command is that of studies/vllm/adapters/README.md, with --dtype added: vLLM rounds to bfloat16 by default, which may change a
token. With --task classification both steps are about a classifier, whose heads are trained as well. The base models are small
Llamas with random weights: their answers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent.parent / "studies" / "vllm"
WORDS = ("red", "green", "blue", "one", "two", "three", "cat", "dog", "bird", "runs", "sleeps", "sings")
CLIENTS, TEXTS, LENGTH, CLASSES = 6, 24, 12, 3
PROMPTS = ("red cat", "one dog sleeps", "bird", "three blue")
NEW = 16  # tokens per answer


def texts_of(client: int) -> list[str]:
    """Clients of even and of odd number go through the words in opposite directions."""
    step = 1 if client % 2 == 0 else -1
    starts = range(client, client + TEXTS)
    return [" ".join(WORDS[(start + step * i) % len(WORDS)] for i in range(LENGTH - 2)) for start in starts]


def labels_of(client: int) -> list[int]:
    """Clients of even and of odd number name the classes differently."""
    return [(i + client % 2) % CLASSES for i in range(TEXTS)]


def base_model() -> Any:
    """Of the class that its configuration names."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(FOLDER / "base")
    return getattr(transformers, config.architectures[0]).from_pretrained(FOLDER / "base", dtype=torch.float32)


def write_base(task: str) -> None:
    """A folder with a Llama and a tokeniser of words, as from_pretrained and vLLM read them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

    pieces = ("<pad>", "<s>", "</s>", *WORDS)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(pieces)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(FOLDER / "base")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = LlamaConfig(vocab_size=64, max_position_embeddings=64, initializer_range=0.2, num_labels=CLASSES, **sizes, **ids)
    kind = LlamaForSequenceClassification if task == "classification" else LlamaForCausalLM
    kind(config).save_pretrained(FOLDER / "base")


def prepare(task: str, rounds: int = 8) -> None:
    """Train two adapters for six clients and export them."""
    import fedfew
    from fedfew.adapters import LoRA

    shutil.rmtree(FOLDER, ignore_errors=True)
    write_base(task)
    classify = task == "classification"  # vLLM takes the trained head of a classifier, but none of a language model
    texts: list[Any] = [(texts_of(i), labels_of(i)) if classify else texts_of(i) for i in range(CLIENTS)]
    federation = fedfew.data.load(texts, tokenizer=str(FOLDER / "base"), max_length=LENGTH, task=None if classify else task)
    method = fedfew.FedFew(models=2, loss_at="received")
    settings = {"rounds": rounds, "lr": 0.1 if classify else 0.3, "batch_size": 8, "device": "cpu"}
    lora = LoRA(rank=8, targets=["*_proj"], train_head=classify)  # every layer but the last
    run = fedfew.train(federation, base_model(), method, adapters=lora, **settings)
    fedfew.export.write_adapters(run, FOLDER / "adapters", base="../base")
    print(f"adapters of clients: {run.choice.tolist()}; see {FOLDER / 'adapters' / 'README.md'}")


def by_peft(model: str, prompt: str) -> list[float]:
    """The most likely tokens one after the other, or the probabilities of classes. model: an adapter, or ../base."""
    from peft import PeftModel
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(FOLDER / "base")(prompt, return_tensors="pt")["input_ids"]
    module = base_model()
    if model != "../base":
        module = PeftModel.from_pretrained(module, FOLDER / "adapters" / model)
    with torch.no_grad():
        if module.config.architectures[0].endswith("SequenceClassification"):
            found = module.eval()(input_ids=ids).logits[0].softmax(-1)
        else:
            found = module.eval().generate(input_ids=ids, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)[
                0, ids.shape[1] :
            ]
    return list(found.tolist())


def by_vllm(url: str, task: str, model: str, prompt: str) -> list[float]:
    """The same from a server."""
    asked: dict[str, Any] = {"model": model, "input": prompt}
    if task != "classification":
        greedy = {"max_tokens": NEW, "min_tokens": NEW, "temperature": 0, "return_token_ids": True}
        asked = {"model": model, "prompt": prompt, **greedy}
    path = "classify" if task == "classification" else "v1/completions"
    request = urllib.request.Request(f"{url}/{path}", json.dumps(asked).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        reply = json.load(answer)
    return list(reply["data"][0]["probs"] if task == "classification" else reply["choices"][0]["token_ids"])


def compare(task: str, url: str) -> float:
    """The largest difference between peft and vLLM: every client's prompts are sent to its adapter by routes.json."""
    routes: dict[str, str] = json.loads((FOLDER / "adapters" / "routes.json").read_text(encoding="utf-8"))
    asked = [(f"client {client}", adapter) for client, adapter in routes.items()] + [("nobody", "../base")]
    largest, answers = 0.0, {}
    for who, model in asked:
        pairs = [(by_peft(model, prompt), by_vllm(url, task, model, prompt)) for prompt in PROMPTS]
        apart = max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))
        print(f"{who}: {model}, {len(pairs)} answers differ from peft's by at most {apart:.2g}")
        largest, answers[model] = max(largest, apart), json.dumps([theirs for _, theirs in pairs])
    print(f"{len(set(answers.values()))} of {len(answers)} models answer differently; largest difference from peft {largest:.2g}")
    return largest


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("prepare", "compare"))
    parser.add_argument("--task", default="language-modelling", choices=("language-modelling", "classification"))
    parser.add_argument("--url", default="http://localhost:8000")
    given = parser.parse_args()
    if given.step == "prepare":
        prepare(given.task)
    else:
        compare(given.task, given.url)
