"""A site's work: it trains on its own data, keeps its own state, and writes down what leaves it.

STATE/client-N/left.jsonl            every letter that left: names, shapes, bytes and norms
STATE/client-N/trouble.log           what went wrong, in full; the server learns one word of it
STATE/client-N/RUN/own-R.safetensors the client's private state after round R of a run
STATE/client-N/RUN/model.safetensors the model that the client chose when the run ended, and choice.json beside it
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedfew import engines, methods, models
from fedfew._version import __version__
from fedfew.engines import Engine, LocalTraining
from fedfew.engines.augment import check as check_augment
from fedfew.federation import Federation
from fedfew.flower import site_data, wire
from fedfew.flower.client_state import Generations
from fedfew.flower.messages import JOIN, MASK, REVEAL, SCORE, SHARE, TRAIN, Letter
from fedfew.flower.site_data import SiteConfig
from fedfew.flower.site_errors import failing_as
from fedfew.local import Local, best_model
from fedfew.methods import Method
from fedfew.stack import Tree, branch, leaves, named_leaves, take, to, tree_map
from fedfew.training import batch_norm_policy
from fedfew.training.api import device_named, fresh_models
from fedfew.training.run import ModelFactory

if TYPE_CHECKING:
    from fedfew.flower.masked_site import Aside

Model = str | Callable[[], nn.Module]


@dataclass(frozen=True)
class _Task:
    """What a letter about a run asks for, ready to be worked on."""

    run: str
    round: int
    method: Method
    factory: ModelFactory
    engine: Engine
    here: Federation
    settings: dict[str, Any]


class Site:
    """One client of a federation, at home."""

    def __init__(self, config: SiteConfig, model: Model) -> None:
        self.config = config
        self.model = model

    @property
    def folder(self) -> Path:
        return self.config.state / f"client-{self.config.client}"

    def answer(self, letter: Letter) -> Letter:
        """Do what a letter asks for."""
        with failing_as("request"):
            work = {
                JOIN: self._join,
                TRAIN: self._train,
                SCORE: self._score,
                **dict.fromkeys((SHARE, MASK, REVEAL), self._under_masks),
            }[letter.kind]
        return work(letter)

    # -- what can be asked for -----------------------------------------------------------------------------------------------

    def _join(self, letter: Letter) -> Letter:
        """Who this is, and how many samples it has."""
        with failing_as("data"):
            federation = site_data.load(self.config)
            values: dict[str, Any] = {
                "client": self.config.client,
                "samples": int(federation.train.count[0]),
                "classes": federation.classes,
                "shape": list(federation.shape),
                "vocabulary": federation.vocabulary or 0,
                "pixels": federation.train.pixels,
                "name": federation.name,
                "version": __version__,
            }
            if self.config.share_scores:
                values["test_samples"] = int(federation.test.count[0])
        return Letter(JOIN, values)

    def _train(self, letter: Letter) -> Letter:
        """A round of the method, begun from the state after the last round of this client that counted."""
        task = self._task(letter)
        last, keep = letter.whole("last"), letter.whole("keep")
        kept, found = self._own(task, last)
        with failing_as("training"):
            received = to(tree_map(lambda t: t[None], letter.tree), task.here.train.y.device)
            share = torch.tensor([letter.number("share")], device=task.here.train.y.device)
            local = Local(task.engine, task.here.train, task.here.ids, task.round, share)
            own = to(branch(kept, "own"), task.here.train.y.device)
            outcome = task.method.client(received, own, local)
            reply = outcome.reply
            sent, wire_kept = wire.outgoing(to(take(reply.update, 0), "cpu"), branch(kept, "wire"), task.settings["compression"])
            values: dict[str, Any] = self._about(task) | {
                "losses": [float(loss) for loss in reply.losses[0]],
                "samples": int(reply.samples[0]),
                "began": found,
            }
            if letter.flag("scored") and self.config.share_scores:
                values |= dict(zip(("choice", "accuracy", "loss"), self._scored(task, outcome.adapted), strict=True))
        with failing_as("state"):
            state: Tree = {"own": outcome.own, "wire": wire_kept}
            if leaves(state):
                self._generations(task.run).write(task.round, state, keep_from=min(keep, last))
            if task.settings["aggregation"] == "masked":  # the update stays at home for now
                aside, longest = self._aside(task.run), task.settings["clip_norm"]
                values["keys"], sent = aside.begin(self.config.client, letter.text("session"), sent, longest), {}
        return Letter(TRAIN, values, sent)

    def _under_masks(self, letter: Letter) -> Letter:
        """A further step of a round under masks, with the update that training has put aside."""
        with failing_as("request"):
            sent = self._aside(_run(letter)).answer(letter, self.config.most_weight)
            about: dict[str, Any] = {"client": self.config.client, "run": _run(letter), "round": letter.whole("round", 1)}
        return Letter(letter.kind, about, sent)

    def _score(self, letter: Letter) -> Letter:
        """Choose among the models served now by this client's own data, and score the choice; at the end, keep it."""
        task = self._task(letter)
        kept, _ = self._own(task, letter.whole("last"))
        with failing_as("training"):
            received = to(tree_map(lambda t: t[None], letter.tree), task.here.train.y.device)
            candidates = task.method.serve(received, to(branch(kept, "own"), task.here.train.y.device))
            choice, accuracy, loss = self._scored(task, candidates)
        values: dict[str, Any] = self._about(task)
        if letter.flag("final"):
            with failing_as("state"):
                self._keep_model(task, take(take(candidates, 0), choice), choice, accuracy, loss)
        if self.config.share_scores:
            values |= {"choice": choice, "accuracy": accuracy, "loss": loss}
        return Letter(SCORE, values)

    # -- how -----------------------------------------------------------------------------------------------------------------

    def _task(self, letter: Letter) -> _Task:
        with failing_as("data"):
            device = device_named(self.config.device)
            here = site_data.load(self.config).to(device)
        with failing_as("settings"):
            run = _run(letter)
            settings: dict[str, Any] = json.loads(letter.text("settings"))
            if self.config.masked_only and settings["aggregation"] != "masked":
                raise ValueError(f"masked-only is set here, but the run's aggregation is {settings['aggregation']}")
            method = methods.make(**settings["method"])
            factory = self._factory(settings)
            batch_norm_policy.check(settings["batch_norm"], factory(), method, here, settings["batch_size"])
            check_augment(settings["augment"], here.train)
            factory, method = batch_norm_policy.with_policy(settings["batch_norm"], factory, method)
            names = ("lr", "batch_size", "local_epochs", "momentum", "weight_decay", "augment")
            training = LocalTraining(*(settings[name] for name in names))
            module = factory().to(device)
            engine = engines.make(self.config.engine, module, training, settings["seed"], here.train, method.replicas)
            return _Task(run, letter.whole("round", 1), method, factory, engine, here, settings)

    def _factory(self, settings: dict[str, Any]) -> ModelFactory:
        if not isinstance(self.model, str):
            return self.model
        name, shape = self.model, tuple(settings["shape"])
        return lambda: models.build(name, shape, settings["classes"], settings["vocabulary"] or None)

    def _own(self, task: _Task, last: int) -> tuple[Tree, int]:
        """The client's state after round ``last``, or the newest there is before this round; and after which it was."""
        with failing_as("state"):
            generations = self._generations(task.run)
            older = [g for g in reversed(generations.rounds()) if g < task.round and g != last]
            for generation in [last, *older] if last else []:
                state = generations.read(generation)
                if state is not None:
                    return state, generation
            device = task.here.train.y.device
            fresh = fresh_models(task.factory, task.settings["seed"], device)
            _, own = task.method.init(fresh, task.settings["clients"])
            return {"own": take(own, torch.tensor([self.config.client], device=device))}, 0 if leaves(own) else last

    def _scored(self, task: _Task, candidates: Tree) -> tuple[int, float, float]:
        """Which of the candidates ``[1, S, …]`` fits this client's own data best; that one's test accuracy and loss."""
        choice = 0
        if leaves(candidates)[0].shape[1] > 1:
            choice = int(best_model(task.engine.losses(candidates, task.here.val or task.here.train))[0])
        scores = task.engine.score(candidates, task.here.test)
        return choice, float(scores.accuracy[0, choice]), float(scores.loss[0, choice])

    def _keep_model(self, task: _Task, model: Tree, choice: int, accuracy: float, loss: float) -> None:
        folder = self.folder / task.run
        folder.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {name: t.detach().cpu().contiguous().clone() for name, t in named_leaves(model)}
        save_file(tensors, folder / "model.safetensors")
        about = {"choice": choice, "accuracy": accuracy, "loss": loss, "round": task.round, "settings": task.settings}
        (folder / "choice.json").write_text(json.dumps(about, indent=1))

    def _aside(self, run: str) -> Aside:
        from fedfew.flower.masked_site import Aside  # brings in cryptography

        return Aside(self.folder / run)

    def _generations(self, run: str) -> Generations:
        return Generations(self.folder / run)

    def _about(self, task: _Task) -> dict[str, Any]:
        return {"client": self.config.client, "run": task.run, "round": task.round}


def _run(letter: Letter) -> str:
    """The run's token, which becomes a folder's name."""
    run = letter.text("run")
    if not re.fullmatch("[0-9a-f]{32}", run):
        raise ValueError("run is not a token")
    return run
