"""Trees of stacked tensors, and their leading axes."""

import math

import torch

from fedfew import axes, stack

TREE = {"a": torch.arange(6.0).reshape(3, 2), "b": {"c": torch.ones(3)}}


def test_names_and_back():
    named = dict(stack.named_leaves(TREE))
    assert list(named) == ["a", "b/c"]
    assert stack.from_named(named).keys() == TREE.keys()
    assert torch.equal(stack.from_named(named)["b"]["c"], TREE["b"]["c"])


def test_take_put_stack():
    rows = [stack.take(TREE, i) for i in range(3)]
    assert torch.equal(stack.stack(rows)["a"], TREE["a"])
    target = stack.tree_map(torch.zeros_like, TREE)
    stack.put(target, torch.tensor([2, 0]), stack.take(TREE, torch.tensor([2, 0])))
    assert target["a"].tolist() == [[0, 1], [0, 0], [4, 5]]


def test_arithmetic():
    assert stack.squared_distance({"x": torch.tensor([1.0, 2.0])}, {"x": torch.tensor([4.0, 6.0])}).item() == 25
    moved = stack.add({"x": torch.ones(2, 3)}, {"x": torch.ones(2, 3)}, torch.tensor([0.0, 2.0]))
    assert moved["x"].tolist() == [[1, 1, 1], [3, 3, 3]]
    assert stack.finite({"x": torch.tensor([[1.0, 2.0], [1.0, math.nan]]), "y": torch.zeros(2)}).tolist() == [True, False]
    assert stack.count_bytes(TREE) == 36


def test_booleans_are_numbers_on_their_way():
    """A mask that no client changes stays; what most have changed is changed."""
    mask, changed = torch.tensor([True, False, True]), torch.tensor([True, True, False])
    moved = stack.subtract({"m": changed}, {"m": mask})
    assert moved["m"].tolist() == [0, 1, -1]
    assert stack.add({"m": mask}, moved, 0.6)["m"].tolist() == changed.tolist()
    assert stack.add({"m": mask}, moved, 0.4)["m"].tolist() == mask.tolist()
    assert stack.squared_distance({"m": changed}, {"m": mask}).item() == 2


def test_an_empty_branch_may_be_missing_in_the_other_trees():
    """As after a tree was sent, which leaves no trace of one."""
    tree = {"own": {}, "a": torch.ones(2)}
    moved = stack.tree_map(torch.add, tree, {"a": torch.ones(2)})
    assert moved["own"] == {}
    assert moved["a"].tolist() == [2.0, 2.0]


def test_axes():
    model = {"a": torch.tensor([1.0, 2.0])}
    copied = axes.copies(model, 3)
    copied["a"][0] += 1  # each is a copy of its own
    assert copied["a"].tolist() == [[2, 3], [1, 2], [1, 2]]
    assert axes.expanded({"a": torch.ones(1, 2)}, 3)["a"].shape == (3, 2)
    assert axes.add_model_axis(copied)["a"].tolist() == [[[2, 3]], [[1, 2]], [[1, 2]]]
    assert torch.equal(axes.drop_model_axis(axes.add_model_axis(copied))["a"], copied["a"])


def test_the_magnitude_by_which_a_gpu_is_asked_whether_all_numbers_are_finite():
    real, whole = torch.tensor([[1.0, -2.0], [0.5, 0.0]]).mT, torch.tensor([7, -7])
    assert float(stack.magnitude([real, whole, torch.zeros(0), torch.tensor([-3.0], dtype=torch.float64)])) == 6.5
    assert float(stack.magnitude([torch.tensor([3 + 4j])])) == 5
    assert float(stack.magnitude([whole])) == 0
    for wrong in (math.nan, math.inf, -math.inf):
        assert not math.isfinite(float(stack.magnitude([real, torch.tensor([wrong, 1.0])])))
