"""STCH-Set against autograd, exact arithmetic in high precision, its bound, its limits and its symmetries."""

import math
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfew import scalarization
from fedfew.scalarization import log_weights, stch_set, tch_set, weights

MUS = st.floats(-6, 6).map(lambda e: 10.0**e)


@st.composite
def losses(draw, dtype=torch.float64, most=1e6):
    m, k = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    values = draw(st.lists(st.floats(0, most), min_size=m * k, max_size=m * k))
    return torch.tensor(values, dtype=dtype).reshape(m, k)


def exact(L: Tensor, mu: float) -> float:
    """g by Python's arbitrary-precision exponents: logs of sums taken with the largest term divided out, client by client."""

    def log_sum_exp(values):
        top = max(values)
        return top + math.log(math.fsum(math.exp(v - top) for v in values))

    log_s = [log_sum_exp([-x / mu for x in row]) for row in L.tolist()]
    return mu * log_sum_exp([-s for s in log_s])


def test_values_worked_out_by_hand():
    # μ = 1, one client, losses log 2 and log 4: S = 1/2 + 1/4 = 3/4, g = log(4/3); w = (2/3, 1/3).
    L = torch.tensor([[math.log(2), math.log(4)]], dtype=torch.float64)
    assert stch_set(L, 1.0).item() == pytest.approx(math.log(4 / 3), rel=1e-14)
    alpha, w = weights(L, 1.0)
    assert alpha.tolist() == [1.0]
    assert w[0].tolist() == pytest.approx([2 / 3, 1 / 3], rel=1e-14)
    # Two clients and one model, losses log 1 and log 3: α = (1/4, 3/4), g = log 4.
    L = torch.tensor([[0.0], [math.log(3)]], dtype=torch.float64)
    assert stch_set(L, 1.0).item() == pytest.approx(math.log(4), rel=1e-14)
    assert weights(L, 1.0)[0].tolist() == pytest.approx([0.25, 0.75], rel=1e-14)


def test_preference_and_ideal_go_in_as_the_paper_says():
    L = torch.tensor([[1.0, 3.0], [2.0, 5.0]], dtype=torch.float64)
    lam, z = torch.tensor([2.0, 0.5], dtype=torch.float64), torch.tensor([0.5, 1.0], dtype=torch.float64)
    by_hand = torch.tensor([[2 * 0.5, 2 * 2.5], [0.5 * 1.0, 0.5 * 4.0]], dtype=torch.float64)
    assert torch.equal(stch_set(L, 0.7, lam, z), stch_set(by_hand, 0.7))
    assert tch_set(L, lam, z).item() == 1.0  # max(min(1, 5), min(0.5, 2))
    assert torch.equal(weights(L, 0.7, lam, z)[1], weights(by_hand, 0.7)[1])


@given(losses(most=1e3), st.floats(-3, 3).map(lambda e: 10.0**e))
def test_equals_exact_arithmetic(L, mu):
    assert stch_set(L, mu).item() == pytest.approx(exact(L, mu), rel=1e-9, abs=1e-9 * mu)


@given(losses(most=1e3), st.floats(-2, 3).map(lambda e: 10.0**e), st.randoms(use_true_random=False))
def test_with_preferences_ideals_and_client_weights_value_weights_and_gradient_are_those_of_their_definitions(L, mu, random):
    m, k = L.shape
    lam, z = ([random.choice([0.0, 1.0, random.uniform(0, 3)]) for _ in range(m)] for _ in range(2))
    p = [random.choice([1.0, random.uniform(0.1, 3)]) for _ in range(m)]
    objectives = [[lam[i] * (x - z[i]) for x in row] for i, row in enumerate(L.tolist())]
    least = [min(row) for row in objectives]
    sums = [math.fsum(math.exp((least[i] - x) / mu) for x in row) for i, row in enumerate(objectives)]
    worst = max(least)
    shares = [p[i] * math.exp((least[i] - worst) / mu) / sums[i] for i in range(m)]
    alpha = [share / math.fsum(shares) for share in shares]
    w = [[math.exp((least[i] - x) / mu) / sums[i] for x in row] for i, row in enumerate(objectives)]
    L.requires_grad_()
    found = stch_set(L, mu, *(torch.tensor(v, dtype=L.dtype) for v in (lam, z, p)))
    (gradient,) = torch.autograd.grad(found, L)
    assert found.item() == pytest.approx(worst + mu * math.log(math.fsum(shares)), rel=1e-9, abs=1e-9 * mu)
    found_alpha, found_w = weights(L.detach(), mu, *(torch.tensor(v, dtype=L.dtype) for v in (lam, z, p)))
    assert found_alpha.tolist() == pytest.approx(alpha, rel=1e-7, abs=1e-12)
    assert found_w.flatten().tolist() == pytest.approx([x for row in w for x in row], rel=1e-7, abs=1e-12)
    expected = [lam[i] * alpha[i] * w[i][j] for i in range(m) for j in range(k)]
    assert gradient.flatten().tolist() == pytest.approx(expected, rel=1e-7, abs=1e-12)


@given(losses(), MUS)
def test_gradient_is_alpha_times_w(L, mu):
    L = L.requires_grad_()
    (gradient,) = torch.autograd.grad(stch_set(L, mu), L)
    alpha, w = weights(L.detach(), mu)
    assert torch.allclose(gradient, alpha[:, None] * w, rtol=1e-9, atol=1e-12)


@given(losses(), MUS)
def test_weights_are_shares_that_sum_to_one(L, mu):
    alpha, w = weights(L, mu)
    assert alpha.sum().item() == pytest.approx(1)
    assert torch.allclose(w.sum(1), torch.ones(len(L), dtype=L.dtype))
    assert (alpha >= 0).all()
    assert (w >= 0).all()


@given(losses(), MUS)
def test_smoothing_bound(L, mu):
    m, k = L.shape
    gap = (tch_set(L) - stch_set(L, mu)).item()
    slack = 1e-12 * (L.abs().max().item() + mu)
    assert -mu * math.log(m) - slack <= gap <= mu * math.log(k) + slack


@given(losses(), MUS, st.randoms())
def test_permuting_clients_and_models_permutes_the_weights(L, mu, random):
    rows, columns = list(range(len(L))), list(range(L.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    shuffled = L[rows][:, columns]
    assert stch_set(shuffled, mu).item() == pytest.approx(stch_set(L, mu).item(), rel=1e-12, abs=1e-12 * mu)
    (alpha, w), (alpha_s, w_s) = weights(L, mu), weights(shuffled, mu)
    assert torch.allclose(alpha_s, alpha[rows], rtol=1e-9)
    assert torch.allclose(w_s, w[rows][:, columns], rtol=1e-9)


@given(losses(most=100.0), st.floats(-2, 2).map(lambda e: 10.0**e), st.floats(0, 100))
def test_a_common_shift_moves_g_and_leaves_the_weights(L, mu, shift):
    assert stch_set(L + shift, mu).item() == pytest.approx(stch_set(L, mu).item() + shift, rel=1e-9, abs=1e-9)
    for before, after in zip(weights(L, mu), weights(L + shift, mu), strict=True):
        assert torch.allclose(before, after, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mu", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1e6])
@pytest.mark.parametrize(("m", "k"), [(1, 1), (10_000, 3)])
def test_extremes_stay_finite_and_right(dtype, mu, scale, m, k):
    generator = torch.Generator().manual_seed(0)
    L = (torch.rand(m, k, generator=generator, dtype=torch.float64) * scale).to(dtype)
    g, (alpha, w) = stch_set(L, mu), weights(L, mu)
    assert g.dtype == alpha.dtype == w.dtype == dtype
    for value in (g, alpha, w):
        assert value.isfinite().all()
    reference_alpha, reference_w = weights(L.double(), mu)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    assert g.item() == pytest.approx(stch_set(L.double(), mu).item(), rel=tolerance, abs=tolerance * mu)
    # float32 cannot tell losses of 1e6 apart below 0.06, which is many μ: there only the sums are asked for.
    if dtype == torch.float64 or scale / mu < 1e2:
        assert torch.allclose(alpha.double(), reference_alpha, rtol=1e-3, atol=1e-6)
    assert torch.allclose(w.double(), reference_w, rtol=1e-3, atol=1e-5)
    assert alpha.sum().item() == pytest.approx(1, rel=1e-4)


def test_small_mu_is_a_hard_choice_of_model_and_of_client():
    L = torch.tensor([[1.0, 2.0, 3.0], [6.0, 5.0, 9.0], [4.0, 2.0, 2.5]])
    alpha, w = weights(L, 1e-6)
    assert alpha.tolist() == [0, 1, 0]  # client 1 is worst off under its best model
    assert w.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert stch_set(L, 1e-6).item() == tch_set(L).item() == 5


def test_large_mu_makes_all_alike():
    alpha, w = weights(torch.tensor([[1.0, 2.0, 3.0], [6.0, 5.0, 9.0]]), 1e6)
    assert torch.allclose(alpha, torch.full((2,), 1 / 2), atol=1e-5)
    assert torch.allclose(w, torch.full((2, 3), 1 / 3), atol=1e-5)


@given(losses(most=1e3), st.floats(-2, 2).map(lambda e: 10.0**e))
@settings(max_examples=30)
def test_log_weights_are_the_logarithms(L, mu):
    alpha, w = weights(L, mu)
    log_alpha, log_w = log_weights(L, mu)
    assert torch.allclose(torch.softmax(log_alpha, 0), alpha, rtol=1e-6, atol=1e-12)
    assert torch.allclose(log_w.exp(), w, rtol=1e-6, atol=1e-12)


HUGE = torch.full((3, 2), 3e38)
GOOD = torch.ones(3, 2)


@pytest.mark.parametrize("mu", [0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("function", [stch_set, weights, log_weights])
def test_bad_mu_is_named(function, mu):
    with pytest.raises(ValueError, match="mu must be"):
        function(GOOD, mu)


@pytest.mark.parametrize("kind", [np.array, np.float64, np.float32, np.float16, Decimal, Fraction, torch.tensor])
def test_mu_is_a_number_of_any_kind(kind: Any) -> None:
    losses, mu = GOOD.clone().requires_grad_(), kind("0.25") if kind in (Decimal, Fraction) else kind(0.25)
    value = stch_set(losses, mu)
    assert isinstance(value, torch.Tensor)
    assert torch.equal(value, stch_set(losses, 0.25))
    assert all(torch.equal(a, b) for a, b in zip(weights(losses, mu), weights(losses, 0.25), strict=True))
    assert torch.equal(stch_set(losses.double(), mu), stch_set(losses.double(), 0.25))  # without a warning of NumPy's
    with pytest.raises(ValueError, match="mu must be a finite number > 0"):
        stch_set(losses, kind(-1))


def test_a_mu_that_the_losses_cannot_hold_is_named_whatever_its_kind() -> None:
    for tiny in (1e-60, Fraction(1, 10**60), Decimal("1e-60")):
        with pytest.raises(ValueError, match=r"mu is 1e-60, which float32 cannot hold: give losses as float64"):
            stch_set(GOOD.float(), tiny)  # type: ignore[arg-type]  # any kind of number works


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ((torch.ones(3), 1.0), ValueError, "losses must have shape"),
        ((torch.ones(0, 2), 1.0), ValueError, "losses must have shape"),
        ((torch.tensor([[1.0, float("nan")]]), 1.0), ValueError, "some are NaN or -inf"),
        ((torch.tensor([[1.0, float("-inf")]]), 1.0), ValueError, "some are NaN or -inf"),
        ((torch.full((1, 2), float("inf")), 1.0), ValueError, "losses of client 0 are all infinite"),
        ((torch.ones(3, 2, dtype=torch.int64), 1.0), TypeError, "losses must be a floating-point.*not torch.int64"),
        ((torch.ones(3, 2).to(torch.float8_e5m2), 1.0), TypeError, "losses must be a floating-point.*not torch.float8_e5m2"),
        (
            ([[1.0]], 1.0),
            TypeError,
            "losses must be a floating.*not list: torch.as_tensor.losses, dtype=torch.float64. makes one",
        ),
        ((GOOD, 1.0, torch.ones(2)), ValueError, "preference must be one number or one per client"),
        ((GOOD, 1.0, torch.tensor([1.0, -1.0, 1.0])), ValueError, "preference must be ≥ 0"),
        ((GOOD, 1.0, None, torch.ones(3, 2)), ValueError, "ideal must be one number or one per client"),
        ((GOOD, 1.0, None, float("nan")), ValueError, "ideal must be finite"),
        ((GOOD, 1.0, "one"), TypeError, r"preference must be one number or one per client \(3\), not 'one'"),
        ((GOOD, 1.0, None, [0.0, None, 1.0]), TypeError, r"ideal must be one number or one .*, not \[0.0, None, 1.0\]"),
        ((GOOD, 1.0, None, None, [[1], [1, 2], [1]]), TypeError, "client_weights must be one number or one per client"),
        ((HUGE, 1.0, 10.0), ValueError, "too large for torch.float32"),  # these five gave NaN
        ((HUGE, 1.0, None, -3e38), ValueError, "too large for torch.float32"),
        ((GOOD.float(), 1e-300), ValueError, "mu is 1e-300, which float32 cannot hold: give losses as float64"),
        ((GOOD.float(), 1e39), ValueError, r"mu is 1e\+39, which float32 cannot hold"),
        ((GOOD.half(), 1e39), ValueError, r"mu is 1e\+39, which float32 cannot hold"),
        ((GOOD.half(), 1e6), ValueError, "the value is too large for torch.float16: give losses of a wider type"),  # was inf
        ((torch.ones(100, 2), 1e38), ValueError, "the value is too large for torch.float32"),  # was inf
        ((GOOD, "0.5"), TypeError, "mu must be one number, not '0.5'"),
        ((GOOD, None), TypeError, "mu must be one number, not None"),
        ((GOOD, torch.ones(3)), TypeError, "mu must be one number, not tensor"),
    ],
)
def test_bad_arguments_are_named(arguments, error, named):
    with pytest.raises(error, match=named):
        stch_set(*arguments)


def test_public_names():
    assert scalarization.__all__ == ["stch_set", "tch_set", "weights"]


@given(st.integers(0, 1000), st.sampled_from([1e-3, 0.1, 1.0, 1e3]), st.booleans())
def test_a_model_of_infinite_loss_is_as_if_it_were_not_there(seed, mu, preferred):
    draw = torch.Generator().manual_seed(seed)
    losses = torch.rand(4, 2, generator=draw, dtype=torch.float64)
    lam = torch.tensor([0.0, 1.0, 0.5, 2.0]).double() if preferred else None
    wider = torch.cat([losses, torch.full((4, 1), torch.inf, dtype=torch.float64)], 1)
    torch.testing.assert_close(stch_set(wider, mu, lam), stch_set(losses, mu, lam))
    torch.testing.assert_close(tch_set(wider, lam), tch_set(losses, lam))
    (alpha, w), (alpha_wider, w_wider) = weights(losses, mu, lam), weights(wider, mu, lam)
    torch.testing.assert_close(alpha_wider, alpha)
    torch.testing.assert_close(w_wider[:, :2], w)
    assert (w_wider[:, 2] == 0).all()


def test_derivatives_by_all_arguments_where_a_model_has_infinite_loss():
    def of(*shape):
        return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()

    def value(losses, lam, z, p):
        cannot_use = torch.tensor([[False, True], [False, False], [True, False]])
        return stch_set(losses.masked_fill(cannot_use, torch.inf), 0.3, lam, z, p)

    assert torch.autograd.gradcheck(value, (of(3, 2), of(3), of(3), of(3)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mu", [1e-4, 1.0, 1e5, 1e6])
def test_half_precision_losses_have_the_weights_of_single_ones(dtype, mu):
    losses = torch.tensor([[0.5, 0.25], [1.0, 4.0], [2.0, 2.0]], dtype=dtype)
    for half, single in zip(weights(losses, mu), weights(losses.float(), mu), strict=True):
        assert half.dtype == dtype
        torch.testing.assert_close(half, single.to(dtype))
    if mu < 1e6:  # μ log(M / K) of 1e6 is beyond float16
        assert stch_set(losses, mu).dtype == dtype


def test_the_page_runs_and_its_figures_are_right(capsys):
    page = Path(__file__).parents[1] / "docs" / "scalarization.md"
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    names = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    # By symmetry a solution is (t, t), with losses 2t² and, twice, (1 − t)² + t²; the derivative of g by t is 0.
    t, mu = 0.4374, 0.1
    corner, others = math.exp(2 * t**2 / mu), 2 * math.exp(((1 - t) ** 2 + t**2) / mu)
    assert (corner * 4 * t + others * (4 * t - 2)) / (corner + others) == pytest.approx(0, abs=1e-3)
    assert names["solutions"].tolist() == [pytest.approx([t, t], abs=2e-3), pytest.approx([9 - t, 9 - t], abs=2e-3)]
    sums = [math.exp(-a / 0.5) + math.exp(-b / 0.5) for a, b in names["measured"].tolist()]
    alpha = [1 / s / sum(1 / s for s in sums) for s in sums]
    assert names["alpha"].tolist() == pytest.approx(alpha)
    printed = capsys.readouterr().out
    assert f"[{' '.join(f'{round(a, 2):<4}' for a in alpha).rstrip()}]" in printed
    assert ", ".join(f"{round(a, 2)}" for a in alpha) in page.read_text()
