"""Methods whose server compares the replies of a round with each other: how many clients come at a time makes no difference."""

from __future__ import annotations

import pytest

from fedfew.methods import PACFL, CLoVE, FedGroup, FedMGDA, Method
from fedfew.methods.collected import ROUND
from tests.methods.small import assert_same, tensors, train


@pytest.mark.slow
@pytest.mark.parametrize("method", [FedMGDA(), PACFL(), FedGroup(), CLoVE()])
def test_replies_may_come_in_parts_and_none_is_kept(method: Method) -> None:
    whole, parts = (train(method, rounds=2, chunk=chunk) for chunk in (None, 2))
    assert_same(tensors(whole), tensors(parts), 2e-5)
    assert ROUND not in whole.state.server
