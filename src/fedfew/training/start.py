"""A run that continues another one, or begins with its models (a warm start)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fedfew import methods
from fedfew.config import TrainConfig
from fedfew.methods.base import Fresh
from fedfew.models import ModelFactory
from fedfew.models.state import buffer_names, replica_state
from fedfew.stack import Tree, named_leaves, tensor, tree_map
from fedfew.training import unseen, validation
from fedfew.training.checkpoint import TREES, State
from fedfew.training.history import History
from fedfew.training.run import Run

Start = Run | Sequence[nn.Module]
PERTURBED = 0.1  # how far an additional copy is moved towards a new initialisation (shrink and perturb, Ash and Adams 2020)


@dataclass(frozen=True)
class Beginning:
    """Where a run begins: at a state to continue from, or with models for its first round."""

    line: str  # what is done, for the run's events
    state: State | None = None
    models: Sequence[nn.Module] = ()


def beginning(start: Start, identity: dict[str, Any], config: TrainConfig) -> Beginning:
    """What ``start`` means for a run with these settings; identity: all that decides its outcome."""
    alone = "; ε counts the rounds of this run alone, not those in which these models were trained" if config.dp_noise else ""
    if not isinstance(start, Run):
        listed = isinstance(start, Iterable) and (not isinstance(start, nn.Module) or isinstance(start, nn.ModuleList))
        models = list(start) if listed else []
        if not models or not all(isinstance(model, nn.Module) for model in models):
            wanted = "a run, as fedfew.load(folder), or a list of modules, as [run.model_of(0)]"
            raise ValueError(f"start must be {wanted}, not {start!r}")
        return Beginning(f"starts with {_count(models)} given{alone}", models=models)
    why_not = _difference(start, identity)
    if why_not is None:
        return _continued(start, identity, config)
    models = _by_use(start)
    name = start.settings["method"]["name"]
    if not models:
        raise ValueError(
            f"start is a run of {name}, which has no models to start with: give a list of modules, as start=[run.model_of(0)]"
        )
    where = f"of {name} after round {start.round_in_use}, the most used first"
    line = f"starts with {_count(models)} {where}; it does not continue that run, since {why_not}{alone}"
    return Beginning(line, models=models)


def fresh(models: Sequence[nn.Module], factory: ModelFactory, initial: Fresh, device: torch.device) -> Fresh:
    """fresh(k): the k-th of the models; beyond them, copies of these in turn, each moved a little to the k-th initialisation."""
    trees: list[Tree] = [_fitting(module, factory()) for module in models]

    def make(k: int) -> Tree:
        tree: Tree = tree_map(lambda t: t.clone().to(device), trees[k % len(trees)])
        if k < len(trees):
            return tree
        new = initial(k)
        return {name: t if name in initial.buffers else t.lerp(tensor(new, name), PERTURBED) for name, t in named_leaves(tree)}

    return Fresh(make, buffer_names(factory()))


def frozen_of(models: Sequence[nn.Module], frozen: Tree) -> Tree:
    """The frozen parameters, as the first of the models has them."""
    state = models[0].state_dict()
    return {name: state[name].detach().clone() if name in state else value for name, value in frozen.items()}


def _difference(run: Run, identity: dict[str, Any]) -> str | None:
    """Why a run cannot continue under these settings; None: it can."""
    before, now = run.settings, identity
    clients = before["federation"]["clients"], now["federation"]["clients"]
    if before.get("model") != now["model"]:
        return f"its model is {before.get('model')}, not {now['model']}"
    if methods.recorded(before["method"]) != now["method"]:
        return "the method or its hyperparameters differ"
    if any(before.get(name, "none") != now[name] for name in ("adapters", "freeze")):
        return "another part of the model is trained (adapters, freeze)"
    if clients[0] != clients[1]:
        return f"it has {clients[0]} clients, not {clients[1]}"
    if run.state.sites:
        return "it was made on a network"
    return None


def _continued(run: Run, identity: dict[str, Any], config: TrainConfig) -> Beginning:
    before = run.settings
    if config.rounds <= run.round:
        raise ValueError(
            f"rounds is {config.rounds}, but the run to continue has done {run.round}: give the total, more than {run.round}"
        )
    if (kept := _to_keep(run, config)) is not None:
        name, then, why = kept
        raise ValueError(
            f"{name} is {getattr(config, name)!r}, but the run to continue has {then!r}, and {why}: keep the setting, or start a "
            "new run with its models (start=run.models)"
        )
    if (stopped := validation.reason_to_stop(run.history, config)) is not None:
        raise ValueError(f"the run to continue {stopped}, and no round would be trained: give a larger early_stopping")
    state = run.newest
    copies: dict[str, Any] = {name: tree_map(torch.clone, getattr(state, name)) for name in TREES}
    history = History.from_arrays(state.history.arrays())
    now = {name: identity[name] for name in config.outcome()}  # as they were given
    changed = [f"{name} {before[name]} → {value}" for name, value in now.items() if before.get(name, value) != value]
    if before["federation"].get("fingerprint") != identity["federation"].get("fingerprint"):
        changed.insert(0, "other samples than it was trained on so far")
    line = f"continues after round {run.round}" + (f", with {', '.join(changed)}" if changed else "")
    return Beginning(line, replace(state, history=history, events=list(state.events), **copies))


def _to_keep(run: Run, config: TrainConfig) -> tuple[str, Any, str] | None:
    """A setting that cannot change on the way: its name, what it is in the run, and why."""
    names = ("serve", "early_stopping", "keep", "best_by", "check_share", "dp_noise", "participation")
    then = TrainConfig(**{name: run.settings.get(name, getattr(TrainConfig, name)) for name in names})
    columns, counted = "other columns in its history", "its ε is counted for one noise and one participation"
    private, keeps = then.dp_noise > 0, config.keep == "best"
    reasons = (
        ("serve", config.serve != then.serve, columns),
        ("keep" if config.keep != then.keep else "early_stopping", config.validates != then.validates, columns),
        ("dp_noise", config.dp_noise != then.dp_noise, counted if private else columns),
        ("participation", private and config.participation != then.participation, counted),
        ("check_share", (unseen.share(config, run.method) > 0) != (unseen.share(then, run.method) > 0), columns),
        ("keep", keeps and then.keep != "best", "the models of its best round were not kept"),
        ("best_by", keeps and config.best_by != then.best_by, "the models that it kept are the best by another measure"),
    )
    return next(((name, getattr(then, name), why) for name, differs, why in reasons if differs), None)


def _by_use(run: Run) -> list[nn.Module]:
    """The server's models, those that most clients use first; of mixtures, those of the largest total weight."""
    models, mixture = run.models, run.state.mixture
    if mixture is not None:
        used = mixture.sum(0)
    else:
        used = torch.bincount(run.choice.clamp(min=0), minlength=len(models)) if run.has_choice else torch.zeros(len(models))
    if len(used) != len(models):  # clients choose among other models than the server's
        return models
    return [models[k] for k in used.argsort(descending=True, stable=True).tolist()]


def _fitting(module: nn.Module, like: nn.Module) -> Tree:
    """A replica's parameters and buffers, taken from a module that must be like the run's."""
    wanted, state = replica_state(like), module.state_dict()
    for name, t in wanted.items():
        if name not in state or state[name].shape != t.shape:
            found = f"has the shape {list(state[name].shape)}" if name in state else "is not there"
            raise ValueError(
                f"start: {name} of the model given {found}, but the run's model ({type(like).__name__}) needs {list(t.shape)}"
            )
    return {name: state[name].detach().clone() for name in wanted}


def _count(models: Sequence[nn.Module]) -> str:
    return f"the {len(models)} models" if len(models) > 1 else "the model"
