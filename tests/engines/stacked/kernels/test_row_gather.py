from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from fedfew.engines.augment import moved, moves
from fedfew.engines.stacked.fused import image_layout, make_fused
from fedfew.engines.stacked.kernels import launch, row_gather, triton_row_gather, usable, windows
from fedfew.engines.stacked.kernels.convolution import convolution
from fedfew.federation import as_input

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_rows_are_added_however_often_they_occur():
    draw = torch.Generator().manual_seed(0)
    table, values = torch.randn(2, 5, 6, generator=draw).to(DEVICE), torch.randn(4, 3, 6, generator=draw).to(DEVICE)
    at = torch.tensor([[0, 9, 9], [4, 4, 4], [1, 0, 9], [3, 2, 3]], device=DEVICE)
    want = table.clone().double()
    for i, row in enumerate(at.flatten().tolist()):
        want.view(10, 6)[row] += -0.5 * values.view(12, 6)[i].double()
    plain, kernel = table.clone(), table.clone()
    row_gather.add_rows(plain, at, values, -0.5)
    triton_row_gather.add_rows[(12, 1)](kernel, at.flatten(), values.contiguous(), -0.5, 6, 8)
    torch.testing.assert_close(plain, want.float())
    torch.testing.assert_close(kernel, want.float())


def test_rows_without_are_passed_over():
    table, at = torch.zeros(4, 6, device=DEVICE), torch.tensor([[3, 0], [3, 1]], device=DEVICE)
    values, without = torch.ones(2, 2, 6, device=DEVICE), torch.tensor([[[False], [True]], [[False], [False]]], device=DEVICE)
    plain, kernel = table.clone(), table.clone()
    row_gather.add_rows(plain, at, values, 2.0, without)
    triton_row_gather.add_rows[(4, 1)](kernel, at.flatten(), values, 2.0, 6, 8, without)
    for found in (plain, kernel):
        assert found[:, 0].tolist() == found[:, 5].tolist() == [0, 2, 0, 4]


@pytest.mark.parametrize("pixels", ["symmetric", "unit"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_what_a_model_sees_of_bytes_to_the_last_bit(pixels, channels):
    x = torch.randint(0, 256, (7, channels, 33, 20), generator=torch.Generator().manual_seed(0), dtype=torch.uint8).to(DEVICE)
    at = torch.tensor([[6, 0], [3, 3]], device=DEVICE)
    seen = row_gather.pictures(x, at, pixels == "symmetric")
    assert torch.equal(seen.cpu(), as_input(x[at].cpu(), pixels))  # on a GPU PyTorch multiplies by a rounded 1/255
    assert seen.movedim(-3, -1).is_contiguous()


@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.slow), "fp16"])
def test_pictures_filled_up_are_convolved_as_they_lie(precision, monkeypatch):
    if DEVICE == "cpu":  # the interpreter has no bf16, and multiplies numbers of 16 bits one after the other
        monkeypatch.setitem(launch.STORED, "bf16", torch.float16)
        tiles = launch.tiles
        monkeypatch.setattr(launch, "tiles", lambda *about: tiles(*about) | {"BM": 16})
    dtype = launch.STORED[precision]
    x = torch.randint(0, 256, (4, 3, 6, 5), generator=torch.Generator().manual_seed(0), dtype=torch.uint8).to(DEVICE)
    at = torch.tensor([[3, 0, 1]], device=DEVICE)
    plain, room = row_gather.pictures(x, at, True), row_gather.pictures(x, at, True, None, 4, dtype)
    assert torch.equal(plain.to(dtype), room)
    whole = windows.filled_up(room.permute(0, 1, 3, 4, 2), dtype)
    assert whole.data_ptr() == room.data_ptr()
    assert whole.shape == (1, 3, 6, 5, 4)
    assert (whole[..., 3] == 0).all()
    found = []
    for images in (plain, room):
        weight = torch.linspace(-1, 1, 2 * 3 * 3 * 3, device=DEVICE).view(1, 2, 3, 3, 3).requires_grad_()
        y = convolution(images, weight, None, pool=True, precision=precision)
        found.append((y, *torch.autograd.grad(y.square().sum(), weight)))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_only_what_lies_in_memory_fills_channels_up():
    last = torch.arange(2 * 3 * 4.0, device=DEVICE).view(1, 1, 2, 3, 4)
    assert torch.equal(windows.filled_up(last[..., :3], torch.float32), last)
    for other in (last[..., 1:], last[..., :3].contiguous()):  # the last pixel of the first has nothing after it
        whole = windows.filled_up(other, torch.float32)
        assert torch.equal(whole[..., :3], other)
        assert (whole[..., 3] == 0).all()


def test_images_are_filled_up_for_the_kernels_alone():
    plain = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    assert image_layout(plain) == (1, torch.float32)
    assert image_layout(make_fused(copy.deepcopy(plain), "fp32")) == (1, torch.float32)
    assert image_layout(make_fused(copy.deepcopy(plain), "tf32")) == (4, torch.float32)
    assert image_layout(make_fused(copy.deepcopy(plain), "bf16")) == (4, torch.bfloat16)
    assert image_layout(make_fused(plain, "fp16")) == (4, torch.float16)


@pytest.mark.parametrize("pixels", ["symmetric", "unit"])
def test_pictures_are_mirrored_and_shifted_as_in_plain_pytorch(pixels):
    x = torch.randint(0, 256, (9, 3, 13, 20), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    at = torch.arange(18).view(2, 9) % 9
    shifts = moves("crop-flip", torch.tensor([5, 6]), torch.arange(9))
    assert (shifts.amin((0, 1)) < torch.tensor([1, 0, 0])).all()
    assert (shifts.amax((0, 1)) > 0).all()  # every move, both ways
    seen = row_gather.pictures(x.to(DEVICE), at.to(DEVICE), pixels == "symmetric", shifts.to(DEVICE))
    black = as_input(torch.zeros(1, dtype=torch.uint8), pixels).item()
    assert torch.equal(seen.cpu(), moved(as_input(x[at], pixels), shifts, black))


def test_the_cpu_has_no_kernels():
    assert not usable(torch.device("cpu"))
