"""What rotate refuses: the error names the layer or the argument, and the model is as it was."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import hypersphere as hs
from tests.rotated_nets import Tied
from tests.rotations import NO_IDENTITY, mlp, refused, shake


@pytest.mark.parametrize("method", NO_IDENTITY)
def test_methods_without_an_identity_start(method):
    net = mlp()
    with refused(ValueError, f"{method} cannot begin at the identity: set init=normal", net):
        hs.rotate(net, method)


VALUES = {
    "method_near": ({"method": "caley"}, ValueError, "^unknown method 'caley', did you mean 'cayley'.*gram_schmidt"),
    "init": ({"init": "zeros"}, ValueError, "init.*identity.*normal.*zeros"),
    "neurons": ({"neurons": "free"}, ValueError, "neurons.*fixed.*learned.*free"),
    "blocks_0": ({"blocks": 0}, ValueError, "blocks"),
    "blocks_5": ({"blocks": 5}, ValueError, "blocks=5.*0.*6.*2.*8"),
    "block_size_5": ({"block_size": 5}, ValueError, "block_size=5.*0.*6.*2.*8"),
    "block_size_0": ({"block_size": 0}, ValueError, "block_size"),
    "both": ({"blocks": 2, "block_size": 3}, ValueError, "block_size"),
    "share_alone": ({"share_blocks": True}, ValueError, "share_blocks needs blocks > 1"),
    "none_blocks": ({"method": "none", "blocks": 2}, ValueError, "none.*blocks"),
    "sample_1": ({"sample": 1}, ValueError, "sample.*1"),
    "sample_0": ({"sample": 0}, ValueError, "sample.*0"),
    "sample_share_over": ({"sample": 1.5}, ValueError, "sample.*1.5"),
    "sample_over_d": ({"sample": 9, "layers": ["0", "2"]}, ValueError, "sample.*(9.*'2'|'2'.*9)"),
    "sample_share_too_small": ({"sample": 0.1, "layers": ["0", "2"]}, ValueError, "sample.*'2'|'2'.*sample"),
    "sample_blocks": ({"sample": 4, "blocks": 2}, ValueError, "sample.*block|block.*sample"),
    "sample_normal": ({"sample": 4, "init": "normal"}, ValueError, "sample.*init|init.*sample"),
    "sample_none": ({"sample": 4, "method": "none"}, ValueError, "sample.*none|none.*sample"),
    "nothing": ({"layers": "encoder.*"}, ValueError, "encoder"),
    "nothing_left": ({"exclude": nn.Linear}, ValueError, "."),
    # types
    "method_type": ({"method": 3}, TypeError, "method.*3"),
    "method_function": ({"method": hs.orthogonal.cayley}, TypeError, "method"),
    "blocks_type": ({"blocks": 2.0}, TypeError, "blocks.*2.0"),
    "block_size_type": ({"block_size": "3"}, TypeError, "block_size.*'3'"),
    "share_type": ({"share_blocks": "yes", "blocks": 2}, TypeError, "share_blocks.*yes"),
    "sample_bool": ({"sample": True}, TypeError, "sample.*True"),
    "sample_type": ({"sample": "half"}, TypeError, "sample.*half"),
    "seed_type": ({"seed": 0.5}, TypeError, "seed.*0.5"),
    "layers_type": ({"layers": 3}, TypeError, "layers.*3"),
    "exclude_type": ({"exclude": 3}, TypeError, "exclude.*3"),
}


@pytest.mark.parametrize("case", VALUES)
def test_bad_arguments(case):
    options, error, match = VALUES[case]
    net = mlp()
    with refused(error, match, net):
        hs.rotate(net, **options)
    hs.rotate(net)  # nothing is in the way


def test_sample_that_fits_no_layer_names_it():
    net = mlp()
    with refused(ValueError, "(?s)sample.*'0'|'0'.*sample", net):
        hs.rotate(net, layers="0", sample=7)  # the only one, so not passed over
    hs.rotate(net, layers="0", sample=6)  # p = d is whole


@pytest.mark.parametrize("model", [None, nn.Linear, {}], ids=type)
def test_model_must_be_a_module(model):
    with pytest.raises(TypeError, match="model"):
        hs.rotate(model)


@pytest.mark.parametrize("again", ["householder", "none"])
def test_rotating_twice(again):
    net = shake(hs.rotate(mlp(), layers="2"))
    with refused(ValueError, "'2'.*rotated", net):
        hs.rotate(net, again, layers="2")
    with refused(ValueError, "'2'.*rotated", net):
        hs.rotate(net, again)
    hs.rotate(net, again, exclude="2")


def test_an_output_tied_to_an_embedding():
    net = Tied()
    with refused(ValueError, "head", net):
        hs.rotate(net, layers="head")
    hs.rotate(net)  # leaves both alone
    assert net.head.weight is net.embedding.weight
    assert "hidden.parametrizations.weight.0.default.cayley" in net.state_dict()


def test_lazy_layers():
    net = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))
    with refused(ValueError, "0.*(lazy|Lazy|initial)", net):
        hs.rotate(net)
    with refused(ValueError, "0.*(lazy|Lazy|initial)", net):
        hs.rotate(net, layers="0")
    net(torch.zeros(1, 6))
    hs.rotate(net)


def test_weights_that_are_not_floating_point():
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))
    net[2].weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
    with refused((TypeError, ValueError), "2", net):
        hs.rotate(net)
    with refused((TypeError, ValueError), "2.*(torch.int8|floating|quantized)", net):
        hs.rotate(net, layers="2")


def test_weights_that_are_computed():
    pruned, normed = mlp(), mlp()
    prune.l1_unstructured(pruned[2], "weight", 0.5)
    parametrizations.weight_norm(normed[2])
    with pytest.raises(ValueError, match=r"got computed before each forward pass.*prune\.remove"):
        hs.rotate(pruned)
    for verb in (hs.normalize_neurons, hs.spread):  # what they write would be lost
        with pytest.raises(ValueError, match=r"weight of Linear\(.* cannot be changed.*prune\.remove"):
            verb(pruned)
    rotated = hs.rotate(mlp())
    with pytest.raises(ValueError, match=r"weight_orig of a Linear cannot be replaced: the layer is rotated.*merge"):
        prune.l1_unstructured(rotated[2], "weight", 0.5)
    for net in (pruned, normed):
        with refused(ValueError, "'2'", net):
            hs.rotate(net)
        hs.rotate(net, exclude="2")


def test_weights_that_are_not_finite():
    net = mlp()
    with torch.no_grad():
        net[2].weight[1, 1] = float("nan")
    with pytest.raises(ValueError, match=r"'2'.*finite|finite.*'2'"):
        hs.rotate(net)
    assert "0.weight" in net.state_dict()


RECURRENT = {
    "lstm": lambda: nn.LSTM(6, 4),
    "cell": lambda: nn.LSTMCell(6, 4),
    "sphere": lambda: hs.SphereLSTM(6, 4),
    "words": lambda: nn.Embedding(5, 6),
}


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_and_embeddings_are_refused_when_asked_for(kind):
    module = RECURRENT[kind]()
    net = nn.ModuleDict({"this": module, "fc": nn.Linear(4, 4), "out": nn.Linear(4, 2)})
    for asked in ("this", type(module), ["fc", "this"], ["fc", type(module)]):
        with refused((ValueError, TypeError), "this", net):
            hs.rotate(net, layers=asked)
    alone = nn.ModuleDict({"this": module})
    with refused(ValueError, ".", alone):
        hs.rotate(alone)


def test_quantized_and_odd_weights_are_named():
    net = torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear})
    with pytest.raises(ValueError, match=r"'0' \[Linear\] is quantized"):
        hs.rotate(net)
    eighth = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    eighth[0].weight = nn.Parameter(eighth[0].weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(ValueError, match="'0' must have a floating point"):
        hs.rotate(eighth)
    with pytest.raises(ValueError, match="'0' must not be empty"):
        hs.rotate(nn.Sequential(nn.Linear(0, 8), nn.Linear(8, 2)))
