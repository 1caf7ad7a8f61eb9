"""k-means without chance."""

import torch

from fedfew.methods.k_means import grouped


def test_groups_are_numbered_by_their_first_member_whatever_rounding_makes_the_farthest() -> None:
    points = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.1], [1.1, 0.0]], dtype=torch.float64)
    for nudged in range(4):  # which of them is the farthest from the mean, and so the first to begin with
        moved = points.clone()
        moved[nudged] *= 1.2
        assert grouped(moved, 2).tolist() == [0, 1, 0, 1]


def test_points_that_are_alike_are_one_group() -> None:
    assert grouped(torch.ones(3, 2, dtype=torch.float64), 2).tolist() == [0, 0, 0]
