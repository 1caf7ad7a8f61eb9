"""Back through pooling, against PyTorch's own: on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from fedfew.engines.stacked.kernels import scaling
from fedfew.engines.stacked.kernels.unpooling import unpool

SCALE = scaling.SCALE["fp16"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize(("batch", "filters", "height", "width"), [(3, 5, 4, 6), (35, 2, 5, 4), (2, 33, 4, 3)])
def test_gradients_before_pooling_in_both_layouts(batch, filters, height, width, channels_first):
    """More samples and more filters than a program takes; a row or a column that pooling leaves out; ReLU that cuts off."""
    draw = torch.Generator().manual_seed(0)
    y = torch.randn(2, batch, filters, height, width, generator=draw).to(DEVICE).requires_grad_()
    pooled, at = F.max_pool2d(y.flatten(0, 1).relu(), 2, return_indices=True)
    g = torch.randn(pooled.shape, generator=draw).to(DEVICE)
    (want,) = torch.autograd.grad((pooled * g).sum(), y)
    which = at // width % 2 * 2 + at % width % 2
    source = which.where(pooled > 0, 4).to(torch.int8).unflatten(0, (2, batch)).movedim(2, -1).contiguous()
    g = g.unflatten(0, (2, batch)).movedim(2, -1)
    out, last, sums = unpool(g if channels_first else g.contiguous(), source, height, width, "tf32")
    assert (source == 4).any()
    assert torch.equal(out.movedim(-1, 2), want)
    assert torch.equal(last[..., :batch], want.movedim(1, -1))
    assert last.shape[-1] % 4 == 0
    assert (last[..., batch:] == 0).all()
    torch.testing.assert_close(sums.sum(0), want.sum((1, 3, 4)))
    g = 1e-6 * g  # in float16 stored scaled, whether it comes so or not; its sum is not
    for given in (g, (SCALE * g).half()):
        out, last, sums = unpool(given if channels_first else given.contiguous(), source, height, width, "fp16")
        assert torch.equal(out.movedim(-1, 2), (SCALE * 1e-6 * want).half())
        assert torch.equal(last[..., :batch], (SCALE * 1e-6 * want).half().movedim(1, -1))
        torch.testing.assert_close(sums.sum(0), 1e-6 * want.sum((1, 3, 4)), rtol=1e-3, atol=1e-8)
