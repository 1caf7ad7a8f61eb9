"""The recipe that ``fedfew run`` and ``fedfew compare`` use by themselves, and ``--protocol``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import fedfew
from fedfew.cli import recipe
from fedfew.config import STRONG
from fedfew.training.resolve import resolve
from tests.cli.small import TINY
from tests.helpers import call, refused

pytestmark = pytest.mark.usefixtures("here")
LINE = (
    "recipe strong: label prior, server momentum 0.9, average of the server's models over rounds (0.9), mixture of the models, "
    "FedFew's μ falling to 0.25 of itself, FedFew's losses checked on 5 % of the training samples; "
    "--recipe plain or --protocol published|fair for the paper's"
)


def trained(*words: str) -> tuple[dict[str, object], str]:
    """The settings of a run, and what was printed."""
    out = call("run", *TINY, "--models", "2", *words, "--folder", "r").stdout
    return fedfew.load("r").settings, out


def test_a_named_data_set_is_trained_with_the_strong_recipe_and_one_line_says_so() -> None:
    settings, out = trained()
    assert {name: settings[name] for name in STRONG} == STRONG
    assert LINE in out.splitlines()
    assert "recipe" not in call("run", "--resume", "--folder", "r", "--rounds", "3").stdout  # goes on as it was
    assert fedfew.load("r").settings["label_prior"] == "client"


def test_the_summary_shows_the_mixture_its_cost_and_the_best_model_alone() -> None:
    _, out = trained()
    run = fedfew.load("r")
    single, served = (100 * run.history[name][-1].mean() for name in ("single_accuracy", "served_accuracy"))
    flat = " ".join(out.split())
    assert f"served accuracy {served:.1f} ±" in flat
    assert f"single accuracy {single:.1f} ±" in flat
    assert "served: a mixture, a prediction runs 2 models. single: the best of them alone, one model." in flat
    assert json.loads(Path("r/costs.json").read_text())["inference_passes"] == 2
    document = json.loads(call("show", "r", "--json").stdout)["mixture"]
    assert (document["models"], document["single"]["mean"]) == (2, pytest.approx(single / 100))
    plain = call("run", *TINY, "--models", "2", "--recipe", "plain", "--folder", "plain").stdout
    assert "single accuracy" not in plain
    assert json.loads(Path("plain/costs.json").read_text())["inference_passes"] == 1


def test_a_setting_wins_over_the_recipe_and_the_line_lists_what_is_left() -> None:
    settings, out = trained("--serve", "best", "--label-prior", "none")
    assert (settings["serve"], settings["label_prior"], settings["server_optimizer"]) == ("best", "none", "momentum")
    assert "recipe strong: server momentum 0.9, average of the server's models over rounds (0.9), FedFew's μ falling" in out


@pytest.mark.parametrize("words", [["--recipe", "plain"], ["--protocol", "fair"], ["--config", "c.yaml"]])
def test_the_plain_recipe_is_there_for_the_asking(words: list[str]) -> None:
    Path("c.yaml").write_text("recipe: plain\n")
    settings, out = trained(*words)
    assert [settings[name] for name in STRONG] == ["none", "none", 0.0, "best", 1.0, 0.0]
    assert "recipe strong" not in out
    assert ("protocol fair: recipe plain" in out) == (words[0] == "--protocol")


def test_data_of_ones_own_are_trained_plainly_and_one_line_says_so() -> None:
    rng = np.random.default_rng(0)
    np.savez("mine.npz", x=rng.normal(size=(200, 5)).astype(np.float32), y=np.arange(200) % 2)
    settings, out = trained("--dataset", "mine.npz", "--partition", "iid")
    assert settings["label_prior"] == "none"
    assert "recipe plain, as for all data of your own; --recipe strong sets label prior" in out


def test_published_brings_presets_and_the_codes_partition_but_what_is_given_wins() -> None:
    def published(**given: object) -> dict[str, object]:
        explicit = recipe.explicit(given)
        layers = recipe.below("published", explicit), recipe.method("published", explicit)
        return vars(resolve(given, {}, *layers))

    settings = published(dataset="cifar10")
    assert settings["partition"] == "dirichlet-published:0.1"  # what the published code draws, though 0.5 is stated
    assert settings["method_settings"] == {"published": True}
    assert (settings["recipe"], settings["label_prior"], settings["lr"]) == ("plain", "none", 0.005)
    assert published(dataset="cifar10", partition="dirichlet:0.5")["partition"] == "dirichlet:0.5"
    assert published(dataset="ag-news")["model"] == "textcnn-published"
    assert published(dataset="kvasir")["batch_norm"] == "local-statistics"
    assert published(dataset="kvasir", batch_norm="average")["batch_norm"] == "average"


def test_published_is_the_preset_of_the_method_that_is_trained() -> None:
    Path("c.yaml").write_text("method: fedavg\n")
    settings, out = trained("--config", "c.yaml", "--method", "fedfew", "--protocol", "published")
    assert fedfew.load("r").method == fedfew.FedFew.as_published(models=2)
    assert "protocol published: recipe plain, the methods' published presets" in out
    assert settings["serve"] == "best"


@pytest.mark.slow
def test_compare_gives_every_method_the_recipe_or_the_protocol() -> None:
    out = call("compare", *TINY, "--methods", "fedavg,fedfew:models=2", "--folder", "c").stdout
    assert LINE in out.splitlines()
    assert yaml.safe_load(Path("c/config.yaml").read_text())["recipe"] == "strong"
    assert {fedfew.load(f"c/{name}").settings["label_prior"] for name in ("fedavg-0", "fedfew-models=2-0")} == {"client"}
    assert "recipe" not in call("compare", "--resume", "--folder", "c").stdout
    call("compare", *TINY, "--methods", "fedprox,fedfew:models=2", "--protocol", "published", "--folder", "p")
    assert fedfew.load("p/fedprox-0").method == fedfew.methods.make("fedprox", published=True)
    assert fedfew.load("p/fedfew-models=2-0").method == fedfew.FedFew.as_published(models=2)


def test_wrong_protocols_are_answered() -> None:
    assert "--protocol must be published or fair, not 'strict'" in refused("run", "--protocol", "strict")
    assert "that needs a study" in refused("compare", "--protocol", "tuned")
    trained()
    assert "--protocol is for a new run" in refused("run", "--resume", "--folder", "r", "--protocol", "fair")
    call("compare", *TINY, "--methods", "fedavg", "--folder", "c")
    assert "--protocol is for a new comparison" in refused("compare", "--resume", "--folder", "c", "--protocol", "fair")


def test_the_line_names_augmentation_and_is_left_out_where_every_setting_is_given() -> None:
    settings = resolve({"dataset": "cifar10"}, {}, {"recipe": "strong"})
    assert recipe.in_words(settings)[-1] == "crop-flip augmentation"
    assert recipe.line(settings, None, dict(STRONG)) is None
