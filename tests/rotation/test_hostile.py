"""Cases that a hostile tester found: other options in a file, shared classes, tied weights, strengths, dropout."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import hypersphere as hs
from hypersphere.rotation.parametrization import find_rotated
from tests.rotated_nets import Tied


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4))


def shake(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for each in find_rotated(model):
            for parameter in each.rotation.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("options", [{"scaled": True}, {"shuffle": True}, {"side": "both"}, {"magnitude": True}])
def test_a_file_does_not_load_into_a_model_with_further_options(options, tmp_path):
    hs.rotation.save_rotations(shake(hs.rotate(net(), block_size=8)), tmp_path / "r.safetensors")
    target = shake(hs.rotate(net(), block_size=8, **options))
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(ValueError, match=f"rotated differently.*{next(iter(options))}"):
        hs.rotation.load_rotations(target, tmp_path / "r.safetensors")
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())


class Unchanged(nn.Module):
    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def test_rotating_a_deepcopy_leaves_the_original_alone():
    model, x = net(), torch.randn(3, 16)
    parametrize.register_parametrization(model[0], "bias", Unchanged())
    expected = model(x)
    other = hs.rotate(copy.deepcopy(model), block_size=4)
    assert torch.equal(model(x), expected)
    torch.testing.assert_close(other(x), expected)
    hs.rotate(model, block_size=4)
    torch.testing.assert_close(hs.merge(other)(x), expected)
    torch.testing.assert_close(model(x), expected)


def test_the_rotation_of_a_tied_layer_merges_into_an_untied_one(tmp_path):
    ids = torch.arange(20)
    model = shake(hs.rotate(Tied(), layers=["hidden", "head"], apply="activation", block_size=4))
    hs.rotation.save_rotations(model, tmp_path / "r.safetensors")
    untied = Tied()
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    hs.rotation.load_rotations(untied, tmp_path / "r.safetensors")
    torch.testing.assert_close(untied(ids), model(ids))
    torch.testing.assert_close(hs.merge(untied)(ids), model(ids))


def test_extracted_rotations_ignore_dropout():
    tuned = shake(hs.rotate(net(), block_size=4, dropout=0.5)).train()
    found = hs.rotation.extract_rotations(net(), tuned, block_size=4)
    torch.testing.assert_close(found.model[0].weight, hs.merge(copy.deepcopy(tuned))[0].weight, rtol=1e-4, atol=1e-5)
    assert all(share > 0.999 for share in found.explained.values())


class Numbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> list[float]:
        return self.head(self.body(x)).sum(0).tolist()


def test_a_model_that_returns_no_tensor_keeps_its_output():
    model = Numbers()
    with pytest.warns(UserWarning, match="returns no tensor"):
        hs.spherize(model, layers=hs.select(model, example_inputs=torch.randn(3, 4)))
    assert type(model.head) is nn.Linear


def test_batch_norm_over_another_dimension_stays():
    model, x = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)).eval(), torch.randn(3, 7, 5)
    expected = model(x)
    with pytest.raises(ValueError, match="channels are not those of '0'"):
        hs.fuse_bn(model, example_inputs=x)
    assert torch.equal(model(x), expected)
    rows = torch.randn(3, 5)
    flat = model(rows)
    torch.testing.assert_close(hs.fuse_bn(model, example_inputs={"input": rows})(rows), flat)
