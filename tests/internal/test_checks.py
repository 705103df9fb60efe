import inspect

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere._internal import checks


@pytest.mark.parametrize(
    "call",
    [
        lambda: hs.GASoftmaxLoss(3, 4, annealing=False),
        lambda: hs.ASoftmaxLoss(3, 4, annealing=False),  # a constructor inside a constructor
        lambda: hs.EnergyRegularizer(nn.Conv2d(4, 4, 3, groups=4)),
        lambda: hs.EmbeddingRegularizer("energy")(torch.zeros(3, 2)),
    ],
)
def test_a_warning_points_at_the_line_of_the_caller(call):
    """However many decorators and constructors of this package, and of torch, lie between."""
    with pytest.warns(checks.HypersphereWarning) as caught:
        call()
    assert (caught[0].filename, caught[0].lineno) == (__file__, inspect.getsourcelines(call)[1])
