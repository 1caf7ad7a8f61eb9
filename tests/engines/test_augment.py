"""Flips and crops: by hand, in all engines, from train to resume."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedfew
from fedfew import random_streams
from fedfew.engines import Sequential, Stacked, Threaded
from fedfew.engines.augment import PADDING, black, moved, moves
from fedfew.federation import Samples
from tests.engines.small import assert_close, images, trained
from tests.helpers import difference, federation, same_history, same_run

DATA = images()
KEY = torch.tensor(7)


def conv():
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))


def augmented(x, augment, key, first, black):
    """The images as a replica with this key sees them, the first at position ``first`` of the epoch."""
    return moved(x, moves(augment, key, first + torch.arange(x.shape[-4])), black)


def draws(n, first=0):
    draw = random_streams.count(KEY, torch.arange(first, first + n))
    flipped = random_streams.uniform(draw, 0) >= 0.5
    down, right = ((random_streams.uniform(draw, s) * (2 * PADDING + 1)).long() - PADDING for s in (1, 2))
    return flipped.tolist(), down.tolist(), right.tolist()


def test_every_image_is_flipped_and_cut_out_by_its_own_draw():
    """Against padding, slicing and flipping, one image at a time."""
    x = torch.randn(40, 3, 6, 5)
    plain, cropped = augmented(x, "flip", KEY, 11, 0.0), augmented(x, "crop-flip", KEY, 11, -1.0)
    for i, (flip, down, right) in enumerate(zip(*draws(40, 11), strict=True)):
        assert torch.equal(plain[i], x[i].flip(-1) if flip else x[i])
        wide = F.pad(x[i], [PADDING] * 4, value=-1.0)
        if flip:  # a shift to the right of a mirrored image is one to the left of the image
            wide = wide.flip(-1)
            right = -right
        top, left = PADDING + down, PADDING + right
        assert torch.equal(cropped[i], wide[:, top : top + 6, left : left + 5])


def test_draws_are_even():
    flipped, down, right = draws(9000)
    assert sum(flipped) / 9000 == pytest.approx(0.5, abs=0.02)
    for shift in (down, right):
        counts = np.bincount(np.array(shift) + PADDING, minlength=9)
        assert counts.shape == (9,)
        assert ((counts - 1000) ** 2 / 1000).sum() < 26.1  # 8 degrees of freedom, 99.9 %
    assert abs(np.corrcoef([flipped, down, right])[np.triu_indices(3, 1)]).max() < 0.05


def test_a_replica_and_an_epoch_have_draws_of_their_own():
    x = torch.randn(1, 1, 30, 2, 6, 6).expand(2, 3, -1, -1, -1, -1)
    key = random_streams.count(torch.arange(2)[:, None], torch.arange(3))
    seen = augmented(x, "crop-flip", key, 0, 0.0).flatten(0, 1)
    assert all(not torch.equal(seen[i], seen[j]) for i in range(6) for j in range(i))
    assert torch.equal(augmented(x[1, 2], "crop-flip", key[1, 2], 0, 0.0), seen[5])
    assert torch.equal(augmented(x[1, 2, 20:], "crop-flip", key[1, 2], 20, 0.0), seen[5, 20:])


@pytest.mark.parametrize("augment", ["flip", "crop-flip"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_engines_agree(augment, dtype):
    data = images(dtype=dtype)
    _, b, losses_b = trained(Sequential, conv, data, 2, augment=augment)
    for cls in (Stacked, Threaded):
        _, a, losses_a = trained(cls, conv, data, 2, augment=augment)
        assert_close(a, b, 1e-5)
        torch.testing.assert_close(losses_a, losses_b)
    _, plain, _ = trained(Sequential, conv, data, 2)
    assert not torch.allclose(plain["0.weight"], b["0.weight"], atol=1e-4)


@pytest.mark.parametrize("cls", [Stacked, Sequential])
def test_only_training_sees_augmented_images(cls):
    """An engine that augments scores and differentiates as one that does not."""
    (one, params, _), (other, _, _) = (trained(cls, conv, DATA, augment=augment) for augment in ("crop-flip", "none"))
    assert torch.equal(one.losses(params, DATA.train), other.losses(params, DATA.train))
    assert torch.equal(one.gradient(params, DATA.train)[0]["0.weight"], other.gradient(params, DATA.train)[0]["0.weight"])


def test_padding_is_black():
    bytes_, floats = (Samples(torch.zeros(1, dtype=d), *[torch.zeros(1)] * 3, 1) for d in (torch.uint8, torch.float32))
    assert (black(bytes_), black(floats)) == (-1.0, 0.0)
    assert black(Samples(bytes_.x, *[torch.zeros(1)] * 3, 1, pixels="unit")) == 0.0


def train(augment, data=DATA, model=conv, **changes):
    settings = {"rounds": 2, "batch_size": 5, "engine": "sequential", "device": "cpu", "augment": augment}
    return fedfew.train(data, model, "fedavg", **(settings | changes))


def test_runs_agree_and_differ_by_setting():
    runs = {augment: train(augment) for augment in ("none", "flip", "crop-flip")}
    for augment, run in runs.items():
        stacked = train(augment, engine="stacked", chunk=3)
        assert difference(run, stacked) < 1e-5
        same_history(run, stacked, 1e-4)
    assert difference(runs["none"], runs["flip"]) > 1e-4
    assert difference(runs["flip"], runs["crop-flip"]) > 1e-4


def test_resumed_run_is_the_same_to_the_last_bit(tmp_path):
    whole = train("crop-flip", rounds=4)
    train("crop-flip", folder=tmp_path)
    with pytest.raises(ValueError, match=r"augment is \"crop-flip\", not \"flip\""):
        train("flip", rounds=4, folder=tmp_path, resume=True)
    same_run(whole, train("crop-flip", rounds=4, folder=tmp_path, resume=True))


def test_what_cannot_be():
    with pytest.raises(ValueError, match="augment must be none, flip or crop-flip, not 'crop'"):
        train("crop")
    with pytest.raises(ValueError, match=r"augment is 'flip'.*\[5\] of torch.float32"):
        train("flip", data=federation(), model="linear")
    tokens = fedfew.Federation.from_arrays(*[[(np.zeros((4, 2, 3, 3), np.int64), np.zeros(4))]] * 2, classes=2)
    with pytest.raises(ValueError, match="int64"):
        train("flip", data=tokens)
    channels_last = fedfew.Federation.from_arrays(*[[(np.zeros((4, 8, 8, 3), np.uint8), np.zeros(4))]] * 2, classes=2)
    with pytest.raises(ValueError, match=r"augment 'flip' is for images .* \[8, 8, 3\]: their channels seem to come last"):
        train("flip", data=channels_last, model="mlp")
