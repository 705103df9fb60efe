"""Unknown keyword arguments are answered with the nearest one, or with all there are."""

import inspect
import re

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.train import Config, derive
from hypersphere.train.config import Optimizer

HEAD_NAMES = {"s": "scale", "m": "margin", "in_features": "embedding_size", "out_features": "num_classes"}
HEAD_NAMES |= {"n_classes": "num_classes", "feat_dim": "embedding_size", "num_features": "embedding_size"}
HEAD_NAMES |= {"gamma": "scale", "weight": "class_weight", "smoothing": "label_smoothing"}
HEAD_NAMES |= dict.fromkeys(("num_subcenters", "sub_centers"), "subcenters")
HEAD_NAMES |= dict.fromkeys(("easy_margin", "interclass_filtering_threshold"))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def unexpected(called: str, name: str, near: str) -> str:
    return re.escape(f"{called}() got an unexpected keyword argument {name!r}; did you mean {near!r}?") + "$"


@pytest.mark.parametrize("head", [hs.losses.AngularSoftmaxLoss, hs.WSoftmaxLoss, hs.ArcFaceLoss])
@pytest.mark.parametrize(("name", "near"), HEAD_NAMES.items())
def test_heads_name_the_keyword_and_ours(head, name, near):
    taken = [parameter for parameter in inspect.signature(head).parameters if parameter not in ("options", "metric")]
    if near is None or (near in ("margin", "scale") and near not in taken):
        message = rf"^{head.__name__}\(\) got an unexpected keyword argument '{name}'; it takes {', '.join(taken)}, "
    else:
        message = unexpected(head.__name__, name, near)
    with pytest.raises(TypeError, match=message):
        head(10, 16, **{name: 1})


def test_names_come_before_missing_arguments():
    with pytest.raises(TypeError, match=unexpected("ArcFaceLoss", "in_features", "embedding_size")):
        hs.ArcFaceLoss(in_features=16, out_features=10)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'embedding_size'"):
        hs.ArcFaceLoss(10)


def test_a_head_of_ones_own_is_called_by_its_name():
    class Mine(hs.ArcFaceLoss):
        def __init__(self, classes: int, **options) -> None:
            super().__init__(classes, 16, **options)

    with pytest.raises(TypeError, match=unexpected("Mine", "s", "scale")):
        Mine(10, s=64)


def test_a_text_is_not_taken_for_the_number_in_it():
    with pytest.raises(ValueError, match=r"^bits must be one of 1, 4, 8; got '1'$"):
        hs.quantize.fit_rotation(torch.randn(9, 4), bits="1")


def test_other_type_errors_pass():
    with pytest.raises(TypeError, match=r"^margin must be a number, got 'x'$"):
        hs.ArcFaceLoss(10, 16, margin="x")


@pytest.mark.parametrize(
    ("function", "arguments", "name", "near"),
    [
        (hs.losses.CenterLoss, (10, 16), "centre_weight", "center_weight"),
        (hs.integrations.pytorch_metric_learning.MetricLoss, ("TripletMarginLoss", 10, 16), "m", "margin"),
        (hs.SphereLinear, (3, 4), "sim", "similarity"),
        (hs.SphereConv2d, (3, 4, 3), "s", "scale"),
        (hs.SphereLSTM, (3, 4), "batchfirst", "batch_first"),
        (hs.spherize, (net(),), "target_modules", "layers"),
        (hs.rotate, (net(),), "oft_block_size", "block_size"),
        (hs.EnergyRegularizer, (net(),), "weight", "hidden_weight"),
        (hs.OGD, (net().parameters(),), "learning_rate", "lr"),
        (hs.param_groups, (net(),), "weight_deacy", "weight_decay"),
        (Config, (), "epoch", "epochs"),
        (Optimizer, (), "rl", "lr"),
    ],
)
def test_layers_and_verbs_name_the_keyword_and_ours(function, arguments, name, near):
    with pytest.raises(TypeError, match=unexpected(function.__name__, name, near)):
        function(*arguments, **{name: 1})


@pytest.mark.parametrize("name", ["n_classes", "num_class"])
def test_networks_name_the_number_of_classes(name):
    with pytest.raises(ValueError, match=f"^unknown resnet20 option '{name}', did you mean 'num_classes'\\?"):
        hs.models.create("resnet20", **{name: 10})


def test_networks_list_their_options_if_none_is_near():
    with pytest.raises(ValueError, match=r"^resnet20 option must be one of num_classes, .*; got 'pretrained'$"):
        hs.models.create("resnet20", pretrained=True)


def test_a_setting_of_the_same_letters_is_near():
    with pytest.raises(ValueError, match=r"^unknown setting 'optimizer\.rl', did you mean 'optimizer\.lr'\?$"):
        derive(Config(), {"optimizer.rl": 3})
