"""Which layers are rotated, and what that costs: dominating layers, layers by name in a config, layers left plain."""

import json
import warnings

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.rotation.parametrization import find_rotated
from hypersphere.rotation.plan import Plan
from hypersphere.rotation.planning import step_cost
from hypersphere.train import Config, Rotation, neurons
from hypersphere.train.config import ConfigError, apply, from_tree, load_file, to_tree, to_yaml


def on_meta(make):
    with torch.device("meta"):
        return make()


def said(model, **options):
    """What rotate warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hs.rotate(model, **options)
    return [str(warning.message) for warning in caught]


def names(model):
    return [layer.name for layer in find_rotated(model)]


# one layer takes most of the work


def convolutional(features=1568):
    convolutions = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 10))


def test_a_layer_that_takes_most_of_the_work_is_named_once_with_the_ways_out():
    (message,) = said(on_meta(convolutional))
    assert message.startswith("layer '5' takes 99% of the cost of all rotations")
    assert "1568 dimensions" in message
    for way in ("exclude='5'", "block_size=56", "sample=0.25", "rotation."):
        assert way in message
    assert said(on_meta(convolutional)) == []  # once


@pytest.mark.parametrize(
    "options", [{"exclude": "5"}, {"block_size": 56}, {"sample": 0.25}, {"sample": 0.9}, {"layers": "5"}]
)
def test_each_way_out_is_one(options):
    assert not [message for message in said(on_meta(convolutional), **options) if "cost" in message]


NOT_WORTH_A_WORD = {
    "cnn6.opt": lambda: hs.models.create("cnn6.opt"),  # the layer of 1024 dimensions takes half
    "digits": lambda: hs.models.create("cnn3", 10, in_channels=1, input_size=8, widths=(16, 32, 48), fc=64),
    "almost all of little": lambda: convolutional(576),
    "many classes": lambda: nn.Linear(512, 10_572),
}


@pytest.mark.parametrize("make", NOT_WORTH_A_WORD.values(), ids=NOT_WORTH_A_WORD)
def test_what_is_not_worth_a_word(make):
    assert said(on_meta(make)) == []


def test_a_slower_factorization_is_told_of_earlier():
    assert len(said(on_meta(lambda: convolutional(576)), method="exponential")) == 1
    assert said(on_meta(lambda: convolutional(576)), method="unconstrained") == []


def test_ways_out_that_are_none_are_not_named():
    first = nn.Sequential(nn.Linear(1571, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    (message,) = said(first)  # sample leaves the first layer whole, and a prime number of dimensions has no blocks
    assert "exclude='0'" in message
    assert "block_size" not in message
    assert "sample" not in message
    (message,) = said(on_meta(lambda: nn.Linear(1571, 64)))
    assert "exclude" not in message
    assert "sample=0.25" in message


def test_the_formula_of_the_work():
    """d³/k² and 4nd²/k for k blocks of their own, d³/k³ for one that they share."""
    whole = step_cost(Plan("cayley", 600), 10)
    assert whole == (600**3, 4 * 10 * 600**2)
    assert step_cost(Plan("cayley", 600, blocks=5), 10) == (whole[0] / 25, whole[1] / 5)
    assert step_cost(Plan("cayley", 600, blocks=5, shared=True), 10) == (whole[0] / 125, whole[1] / 5)
    assert step_cost(Plan("cayley", 600, sample=150), 10) == (150**3, 4 * 10 * 150**2)
    assert step_cost(Plan("gram_schmidt", 600), 10)[0] > whole[0]
    assert step_cost(Plan("none", 600), 10)[0] == 0


# layers by name in a config


def body():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("layers", "exclude", "expected"),
    [
        ("hidden", (), ["0", "2"]),
        ("output", (), ["4"]),
        ("all", (), ["0", "2", "4"]),
        ("2", (), ["2"]),
        ("[02]", (), ["0", "2"]),
        ("0, 4", (), ["0", "4"]),
        ("hidden,4", (), ["0", "2", "4"]),
        ("*", (), ["0", "2", "4"]),
        ("hidden", "0", ["2"]),
        ("all", "0,4", ["2"]),
        ("*", "[04]", ["2"]),
        ("output,2", "4", ["2"]),
    ],
)
def test_layers_and_exclude(layers, exclude, expected):
    net = body()
    neurons.prepare(net, None, Rotation(layers=layers, exclude=exclude), 0)
    assert names(net) == expected


class Embedding(nn.Sequential):
    """A network without a classifier."""

    def get_classifier(self):
        return nn.Identity()


@pytest.mark.parametrize(
    ("layers", "exclude", "of_body", "of_head"),
    [("all", (), ["0"], True), ("all", "head", ["0"], False), ("head", (), [], True), ("0,head", (), ["0"], True)],
)
def test_a_loss_head_is_called_head(layers, exclude, of_body, of_head):
    net, head = Embedding(nn.Linear(6, 5)), hs.ArcFaceLoss(3, 5)
    neurons.prepare(net, head, Rotation(layers=layers, exclude=exclude), 0)
    assert names(net) == of_body
    assert bool(names(head)) == of_head


@pytest.mark.parametrize("settings", [{"layers": "fc"}, {"exclude": "fc"}, {"layers": "0", "exclude": ("0", "f*")}])
def test_unknown_layers_are_refused_with_those_there_are(settings, tmp_path, capsys):
    net = body()
    with pytest.raises(ValueError, match=r"rotation\.\w+ must be .*layers of the network, 0, 2, 4; got 'f"):
        neurons.prepare(net, None, Rotation(**settings), 0)
    assert names(net) == []


FORMS = [
    lambda: Config(rotation=Rotation(layers=("a", "b*"), exclude="c")),
    lambda: Config(rotation=Rotation(layers="a, b*", exclude=["c"])),
    lambda: apply(Config(), {"rotation.layers": "a,b*", "rotation.exclude": "c"}),
    lambda: apply(Config(), {"rotation.layers": "[a, b*]", "rotation.exclude": "[c]"}),
    lambda: from_tree({"rotation": {"layers": ["a", "b*"], "exclude": "c"}}),
]


@pytest.mark.parametrize("make", FORMS)
def test_every_way_to_write_them_is_one_config(make, tmp_path):
    config = make()
    assert (config.rotation.layers, config.rotation.exclude) == (("a", "b*"), "c")
    assert config == FORMS[0]()
    assert from_tree(json.loads(json.dumps(to_tree(config)))) == config
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert load_file(file) == config


@pytest.mark.parametrize("value", [3, ["a", None], "a,,b", []])
def test_what_is_no_name_is_refused(value):
    with pytest.raises(ConfigError, match=r"rotation\.layers"):
        Rotation(layers=value)


def test_a_generator_takes_no_names():
    with pytest.raises(ConfigError, match=r"rotation\.exclude"):
        from_tree({"model": {"name": "generator.mhe"}, "rotation": {"exclude": "a"}})


# layers that a network leaves plain


@pytest.mark.parametrize("name", ["cnn10.opt", "sphereface20"])
def test_wide_layers_of_presets_stay_plain_unless_named(name):
    net = on_meta(lambda: hs.models.create(name))
    (message,) = said(net)
    assert "'fc'" in message
    assert "rotation.layers=hidden,fc" in message
    assert names(net)
    assert "fc" not in names(net)
    asked = on_meta(lambda: hs.models.create(name))
    said(asked, layers="fc")
    assert names(asked) == ["fc"]


def test_the_networks_of_tables_10_and_11_are_rotated_whole():
    for name in ("cnn6.opt", "cnn9.opt", "wide_cnn9.opt"):
        net = on_meta(lambda name=name: hs.models.create(name))
        said(net)
        assert names(net) == [name for name in hs.select(net) if name != "classifier"]


def test_inside_another_module():
    net = on_meta(lambda: nn.ModuleDict({"inner": hs.models.create("cnn10.opt", 0), "head": nn.Linear(256, 10)}))
    said(net)
    assert "inner.fc" not in names(net)
    assert "inner.stages.0.0" in names(net)
