"""Whether the model fits the data: checked before the first round."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from fedfew import models
from fedfew.federation import Federation, as_input
from fedfew.methods import Method
from fedfew.models import ModelFactory
from fedfew.models.attention_mask import check_padding
from fedfew.models.state import replica_state
from fedfew.tasks import LOSSES, Criterion
from fedfew.training.replicable import check_replicable

Model = str | ModelFactory | nn.Module


def fitting(model: Model, federation: Federation) -> tuple[Model, list[str]]:
    """The model for these samples, and lines to report about it."""
    x = federation.train.x
    notes = []
    if not as_input(x[:0]).is_floating_point() and models.for_tokens(model) != model:
        if x.ndim != 2 or x.shape[1] < 5 or int(x.min()) < 0:
            raise ValueError(
                f"model: {model!r} takes numbers, but these samples are whole numbers of shape {list(x.shape[1:])}, which are "
                "read as token ids. If they are features, give them as floating-point numbers (x.astype('float32'))"
            )
        notes.append(f"model: textcnn in place of {model}, since the samples are token ids")
        model = models.for_tokens(model)
    return model, notes


def check_outputs(module: nn.Module, federation: Federation) -> list[str]:
    """Refuse a module that fails on samples as they are, or whose outputs do not fit the targets; lines to report about them."""
    name = type(module).__name__
    slashed = next((path for path in module.state_dict() if "/" in path), None)
    if slashed is not None:
        raise ValueError(f"model: {name} has a parameter or buffer called {slashed!r}: a name must not have a slash in it")
    if federation.padding is not None and federation.task != "language-modelling":  # padding has no target there
        check_padding(module, federation.padding)
    x = federation.train.inputs(torch.arange(min(2, len(federation.train.y))))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            outputs = module.eval()(x)
    except (RuntimeError, ValueError, IndexError) as error:
        raise ValueError(_failure(module, x, error)) from error
    _check_buffers(module, x)
    _check_not_recomputed(module, x)
    check_replicable(module, x)
    if federation.task == "language-modelling":
        _check_tokens(name, outputs, x, federation.classes)
        return []
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(x):
        found = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"model: {name} gives {found} for {len(x)} samples, but [{len(x)}, {federation.classes}] is needed: one output per "
            f"{_one_of(federation)}"
        )
    if outputs.shape[1] != federation.classes:
        raise ValueError(
            f"model: {name} gives {outputs.shape[1]} outputs per sample, but the data have {federation.what}: its last layer "
            f"must have {federation.classes} outputs, one per {_one_of(federation)}"
        )
    probabilities = bool((outputs >= 0).all()) and torch.allclose(outputs.sum(1), outputs.new_ones(len(x)), atol=1e-4)
    if federation.task != "classification" or not probabilities:
        return []
    return [f"model: {name} gives probabilities, but the loss and label priors expect logits: leave out the softmax at its end"]


def check_frozen(module: nn.Module, federation: Federation) -> None:
    """Refuse a module beside adapters that in training writes into what is frozen: all clients share it, and what is served holds
    it as it was."""
    frozen = {name: parameter for name, parameter in module.named_parameters() if not parameter.requires_grad}
    before = {name: parameter._version for name, parameter in frozen.items()}
    x = federation.train.inputs(torch.arange(min(2, len(federation.train.y))))
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            functional_call(module.train(), buffers, (x,))
    except (RuntimeError, ValueError, IndexError):  # of two samples, which are too few for some
        pass
    finally:
        module.eval()
    written = next((name for name, parameter in frozen.items() if parameter._version != before[name]), None)
    if written is not None:
        raise ValueError(
            f"model: {type(module).__name__} writes into its buffer {written} in training, which adapters freeze and all clients "
            "share: leave it as it is in training, or train the whole model (without adapters)"
        )


def check_loss(criterion: Criterion, module: nn.Module, federation: Federation) -> None:
    """Refuse a loss of the user's own that fails, or that no gradient goes through."""
    if criterion.name in LOSSES:
        return

    def tried(outputs: Tensor, y: Tensor) -> Tensor:
        try:
            return criterion.function(outputs, y)
        except Exception as error:
            shapes, reason = f"outputs {list(outputs.shape)} and targets {list(y.shape)}", str(error) or type(error).__name__
            raise ValueError(f"loss: {criterion.name} fails on {shapes}: «{reason}»") from error

    rows = torch.arange(min(2, len(federation.train.y)))
    with torch.random.fork_rng(devices=[]):
        with torch.no_grad():
            outputs = module.eval()(federation.train.inputs(rows))
        losses = replace(criterion, function=tried).losses(outputs.requires_grad_(), federation.train.y[rows])
    if not losses.requires_grad:
        raise ValueError(
            f"loss: {criterion.name} has no gradient with respect to the outputs, so nothing could be learned: compute it with "
            "differentiable operations of torch (no detach, comparison, argmax or numpy)"
        )


def check_head(module: nn.Module, federation: Federation, method: Method) -> None:
    """Refuse a module whose head, as the method finds it, sees more than one vector per sample; for some methods, one whose head
    has too few outputs, or whose outputs are not those of the head."""
    head = method.head_layer(replica_state(module))
    if head is None:
        return
    outputs: list[Tensor] = []
    x = federation.train.inputs(torch.arange(min(2, len(federation.train.y))))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        hook = module.get_submodule(head).register_forward_hook(lambda layer, inputs, given: outputs.append(given))
        logits = module.eval()(x)
        hook.remove()
    found = f"{method.name}: the head of {type(module).__name__} is taken to be {head!r}"
    named = "name the linear layer that gives the logits, head=…"
    if not outputs:
        raise ValueError(f"{found}, which its forward does not use: {named}")
    if method.head_gives_logits and not _same_probabilities(outputs[-1], logits):
        raise ValueError(
            f"{found}, whose outputs are not the logits: {named}. If something comes after that layer, take another method"
        )
    if outputs[-1].ndim != 2:
        raise ValueError(
            f"{found}, which gives {list(outputs[-1].shape)} for {len(x)} samples: the method needs one vector of features per "
            "sample. Pool before the head, or take another method"
        )
    if method.needs_classes and outputs[-1].shape[-1] < federation.classes:
        raise ValueError(f"{found}, which has {outputs[-1].shape[-1]} outputs, but the data have {federation.what}: {named}")


def _same_probabilities(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs differ by a number per sample at most, as before and after log_softmax."""
    return a.shape == b.shape and torch.allclose(a.log_softmax(-1), b.log_softmax(-1), atol=1e-5)


def _check_buffers(module: nn.Module, x: Tensor) -> None:
    """Refuse a module that in training puts other tensors in the place of its buffers: a replica's are written into or stay."""
    if all(type(layer).__module__.startswith("torch.nn.") for layer in module.modules() if layer._buffers):
        return
    trial = copy.deepcopy(module).train()
    before = {name: buffer for name, buffer in trial.named_buffers() if name in trial.state_dict()}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            trial(x)
    except (RuntimeError, ValueError):  # of two samples, which are too few for some
        return
    for name, buffer in trial.named_buffers():
        old = before.get(name, buffer)
        if old is not buffer and not torch.equal(old, buffer):
            raise ValueError(
                f"model: {type(module).__name__} puts another tensor in the place of its buffer {name} in training, which would "
                f"be lost: write into the one that is there, as in self.{name.rpartition('.')[2]}.copy_(…)"
            )


def _check_not_recomputed(module: nn.Module, x: Tensor) -> None:
    """Refuse a module that runs layers again on the way back (activation checkpointing): PyTorch gives them the module's own
    weights then, and not those of the replica that is trained."""
    layers = list(module.modules())
    if all(type(layer).__module__.startswith("torch.nn.") for layer in layers):
        return
    again: list[str] = []
    hooks: list[RemovableHandle] = []
    gradients = [(p, p.grad) for p in module.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None  # or it would be added to
    module.train()
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            outputs = functional_call(module, {name: buffer.clone() for name, buffer in module.named_buffers()}, (x,))
            hooks += [layer.register_forward_pre_hook(lambda layer, _: again.append(type(layer).__name__)) for layer in layers]
            outputs.sum().backward()
    except (RuntimeError, ValueError, AttributeError):  # of two samples, which are too few for some; no tensor
        return
    finally:
        module.eval()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for hook in hooks:
            hook.remove()
    if again:
        raise ValueError(
            f"model: {type(module).__name__} runs {again[0]} a second time when gradients are computed (activation "
            "checkpointing), which would use other weights than those in training. Switch it off: for a model of Hugging Face, "
            "model.gradient_checkpointing_disable()"
        )


def _check_tokens(name: str, outputs: Tensor, x: Tensor, classes: int) -> None:
    if outputs.shape[:-1] != x.shape or outputs.shape[-1] < classes:
        raise ValueError(
            f"model: {name} gives {list(outputs.shape)} for token ids {list(x.shape)}, but one output per token of the "
            f"vocabulary is needed at every place: [{len(x)}, {x.shape[1]}, {classes} or more]. Give a causal language model "
            "(--model module:function)"
        )


def _one_of(federation: Federation) -> str:
    return {"classification": "class", "regression": "target", "multi-label": "label"}[federation.task]


def _failure(module: nn.Module, x: Tensor, error: Exception) -> str:
    name, reason = type(module).__name__, str(error).splitlines()[0]
    kinds = {p.dtype for p in module.parameters() if p.is_floating_point()} - {torch.float32}
    given = str(x.dtype).removeprefix("torch.")
    if kinds:
        found = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        return (
            f"model: {name} has parameters of {found}, but samples are {given}, and it fails with «{reason}»: make it float32 "
            "(module.float()), or convert the samples in its forward"
        )
    return f"model: {name} fails on samples of shape {list(x.shape[1:])} of {given}: «{reason}»"
