"""Fields of a config that rows of the papers' tables need, each against what it stands for."""

import pytest
import torch

import hypersphere as hs
from hypersphere.train import Rotation, building
from tests import reference


def paper_energy(net):
    """The energy of OPT's Tables 2 and 4: half space, s = 2, mean over pairs of the 2N points, over layers."""
    layers = [each.matrix().detach()[0].double() for each in hs.select(net).values() if not each.is_output]
    return sum(float(reference.energy(each, 2.0, half_space=True)) for each in layers)


# ------------------------------------------------------------------------------------------------------- spread


def start(**fields):
    torch.manual_seed(0)
    net = hs.models.create("cnn6.opt")
    before = paper_energy(net)
    building.prepare(net, None, Rotation("none", spread=True, **fields), seed=0)
    return before, paper_energy(net)


def test_spread_alone_reaches_the_least_energy_of_the_paper_s_measure():
    before, after = start()
    assert before == pytest.approx(3.5115, abs=1e-3)
    assert after == pytest.approx(3.4973, abs=1e-4)


def test_spread_in_full_space_pairs_opposite_neurons_unless_it_stops_early():
    assert start(spread_half_space=False)[1] > 100
    assert 3.4973 < start(spread_half_space=False, spread_steps=5)[1] < 3.51


@pytest.mark.parametrize("measure", ["orthonormal", "comhe_angle"])
def test_spread_by_other_measures_lowers_the_energy_too(measure):
    before, after = start(spread_measure=measure, spread_steps=10)
    assert after < before - 0.005
