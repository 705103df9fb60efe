"""select: which tensors are neurons, which layer is the output. Rows are checked against what a layer does."""

import itertools
import re
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import hypersphere as hs


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.conv2 = nn.Conv2d(4, 6, 3)
        self.bn = nn.BatchNorm2d(6)
        self.block = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
        self.fc = nn.Linear(4, 2)


ALL = ["conv1", "conv2", "block.0", "block.2", "fc"]


def output_of(model, output="auto"):
    """The names that are marked as the output: never more than one."""
    marked = [name for name, neurons in hs.select(model, output=output).items() if neurons.is_output]
    assert len(marked) <= 1
    return marked[0] if marked else None


# layers and exclude


def test_everything_eligible_in_the_models_order():
    net = Net()
    selected = hs.select(net)
    assert list(selected) == ALL
    for name, neurons in selected.items():
        assert neurons.module is net.get_submodule(name)
        assert neurons.tensor_name == "weight"
        assert neurons.is_output is (name == "fc")


@pytest.mark.parametrize(
    ("specs", "names"),
    [
        ("block.2", ["block.2"]),
        ("block", []),  # a container has no neurons of its own
        ("conv*", ["conv1", "conv2"]),
        ("conv[2-9]", ["conv2"]),
        ("CONV1", []),  # case counts
        ("conv", []),  # a name is whole
        (nn.Linear, ["block.0", "block.2", "fc"]),
        (nn.BatchNorm2d, []),
        (lambda name, module: module.weight.shape[0] > 4, ["conv2", "block.0"]),
        (["fc", "conv1"], ["conv1", "fc"]),  # the model's order
        (("conv1", nn.Linear), ["conv1", "block.0", "block.2", "fc"]),
        (["*2", lambda name, module: name == "fc"], ["conv2", "block.2", "fc"]),
        ([], []),
    ],
)
def test_layers_and_exclude(specs, names):
    net = Net()
    assert list(hs.select(net, specs)) == names
    assert list(hs.select(net, exclude=specs)) == [name for name in ALL if name not in names]


def test_exclude_wins():
    assert list(hs.select(Net(), nn.Linear, "block.*")) == ["fc"]
    assert hs.select(Net(), "fc", "fc") == {}


def test_recurrent_embeddings_and_norms_are_passed_over():
    model = nn.ModuleDict(
        {
            "tokens": nn.Embedding(9, 4),
            "bag": nn.EmbeddingBag(9, 4),
            "lstm": nn.LSTM(4, 4, proj_size=2),
            "gru": hs.SphereGRU(4, 4),
            "cell": nn.GRUCell(4, 4),
            "norm": nn.LayerNorm((4, 4)),
            "bilinear": nn.Bilinear(2, 2, 2),
            "fc": nn.Linear(4, 2),
        }
    )
    assert list(hs.select(model)) == ["fc"]
    assert hs.select(nn.BatchNorm2d(3)) == {}
    assert hs.select(model, ["lstm", "gru", "tokens", nn.RNNBase, nn.Embedding]) == {}


def test_a_module_under_two_names_is_one_layer():
    shared = nn.Linear(3, 3)
    assert list(hs.select(nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(3, 2)))) == ["0", "3"]


# the output


def test_output_auto_is_the_last_linear():
    assert output_of(Net()) == "fc"
    with pytest.warns(UserWarning, match="not known for certain: '0'.*'1' comes after it"):
        assert output_of(nn.Sequential(nn.Linear(3, 2), nn.Conv2d(2, 2, 1))) == "0"
    assert output_of(nn.Sequential(nn.Conv2d(2, 2, 1))) is None


def test_output_by_name_or_none():
    assert output_of(Net(), "conv1") == "conv1"
    assert output_of(Net(), None) is None


def test_the_output_does_not_depend_on_what_is_selected():
    assert not any(n.is_output for n in hs.select(Net(), exclude="fc").values())
    assert hs.select(Net(), "fc")["fc"].is_output


def test_unknown_outputs_are_refused():
    for name in ("nowhere", "block", "conv*"):
        with pytest.raises(ValueError, match=rf"output.*conv1.*fc.*{re.escape(repr(name))}"):
            hs.select(Net(), output=name)
    with pytest.raises(TypeError, match="output"):
        hs.select(Net(), output=["fc"])


def with_classifier(module_or_path):
    class Backbone(Net):
        def get_classifier(self):
            return self.get_submodule(module_or_path) if isinstance(module_or_path, str) else module_or_path

    return Backbone()


def test_get_classifier_says_which_layer():
    assert output_of(with_classifier("block.0")) == "block.0"
    assert output_of(with_classifier("conv2")) == "conv2"  # a convolutional classifier
    assert output_of(with_classifier("block")) == "block.2"  # the last one inside
    assert output_of(with_classifier("block.0"), None) is None
    assert output_of(with_classifier("block.0"), "fc") == "fc"


def test_get_classifier_identity_or_none_means_no_output():
    assert output_of(with_classifier(nn.Identity())) is None
    assert output_of(with_classifier(None)) is None


def test_get_classifier_goes_before_a_loss_head():
    model = with_classifier("block.2")
    model.head = hs.ArcFaceLoss(3, 4)
    assert output_of(model) == "block.2"


def test_the_last_loss_head_goes_before_the_last_linear():
    model = nn.ModuleDict(
        {
            "first": hs.ArcFaceLoss(3, 4),
            "second": hs.WSoftmaxLoss(5, 4, similarity="learnable"),
            "body": nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4)),
        }
    )
    selected = hs.select(model)
    assert list(selected) == ["first", "second", "body.0", "body.2"]
    assert output_of(model) == "second"
    assert selected["second"].matrix().shape == (1, 5, 4)
    assert selected["second"].tensor_name == "weight"


def test_every_loss_head_is_known():
    heads = (hs.WSoftmaxLoss, hs.GASoftmaxLoss, hs.ASoftmaxLoss, hs.SSoftmaxLoss, hs.AMSoftmaxLoss, hs.ArcFaceLoss)
    assert all(output_of(nn.ModuleDict({"head": head(3, 4), "fc": nn.Linear(4, 3)})) == "head" for head in heads)


@pytest.mark.parametrize("root", [nn.Linear(3, 2), hs.ArcFaceLoss(3, 2), nn.MultiheadAttention(4, 2)])
def test_the_root_is_never_the_output(root):
    selected = hs.select(root)
    assert selected[""].module is root
    assert not selected[""].is_output
    root.get_classifier = lambda: root
    assert not hs.select(root)[""].is_output


# attention


def test_attention_of_one_size_is_three_groups():
    model = nn.ModuleDict({"attn": nn.MultiheadAttention(4, 2), "fc": nn.Linear(4, 2)})
    selected = hs.select(model)
    assert selected["attn"].module is model["attn"]
    assert selected["attn"].tensor_name == "in_proj_weight"
    assert torch.equal(selected["attn"].matrix(), torch.stack(model["attn"].in_proj_weight.chunk(3)))
    assert selected["attn"].matrix().shape == (3, 4, 4)
    parametrizations.weight_norm(model["attn"], "in_proj_weight")
    assert torch.equal(hs.select(model)["attn"].matrix().flatten(0, 1), model["attn"].in_proj_weight)
    assert output_of(model) == "fc"


def test_attention_of_several_sizes_is_three():
    attention = nn.MultiheadAttention(4, 2, kdim=3, vdim=5)
    for prefix, model in (("attn.", nn.ModuleDict({"attn": attention})), ("", attention)):
        selected = hs.select(model, nn.MultiheadAttention)
        assert list(selected) == [f"{prefix}{x}_proj_weight" for x in "qkv"]
        for (name, neurons), shape in zip(selected.items(), [(1, 4, 4), (1, 4, 3), (1, 4, 5)], strict=True):
            assert neurons.module is attention
            assert neurons.tensor_name == name.removeprefix(prefix)
            assert neurons.matrix().shape == shape
            assert torch.equal(neurons.matrix()[0], getattr(attention, neurons.tensor_name))
    assert list(hs.select(nn.ModuleDict({"attn": attention}), "attn.k*")) == ["attn.k_proj_weight"]


def test_the_projection_inside_attention_is_not_the_models_output():
    model = nn.ModuleDict({"embed": nn.Linear(4, 4), "attn": nn.MultiheadAttention(4, 2)})
    assert output_of(model) == "embed"


# rows are neurons


def impulse_rows(layer):
    """(O, C, places): what each output channel answers to an impulse at each place of its field, by running it."""
    n = len(layer.kernel_size)
    channels = layer.in_channels
    kernel = layer.kernel_size
    if isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        # one impulse in each input channel: the output is that channel's kernel for every output channel
        x = torch.eye(channels, dtype=torch.float64).reshape(channels, channels, *[1] * n)
        y = layer(x) - layer(torch.zeros_like(x))
        return y.flatten(2).transpose(0, 1)
    x = torch.eye(channels * torch.Size(kernel).numel(), dtype=torch.float64).reshape(-1, channels, *kernel)
    y = layer(x) - layer(torch.zeros_like(x))
    return y.flatten(1).T.unflatten(1, (channels, -1))


CONVOLUTIONS = [
    *itertools.product([nn.Conv1d, nn.ConvTranspose1d], [(3,)], [2]),
    *itertools.product([nn.Conv2d, nn.ConvTranspose2d], [(3, 2)], [1, 2]),
    *itertools.product([nn.Conv3d, nn.ConvTranspose3d], [(2, 1, 3)], [2]),
]


@pytest.mark.parametrize(("cls", "kernel", "groups"), CONVOLUTIONS)
def test_rows_are_the_weights_that_make_one_output_channel(cls, kernel, groups, device):
    c, o = 4, 6
    layer = cls(c, o, kernel, groups=groups, dtype=torch.float64).to(device)
    matrix = hs.select(layer)[""].matrix()
    d = c // groups * torch.Size(kernel).numel()
    assert matrix.shape == (groups, o // groups, d)
    rows = impulse_rows(layer.cpu()).reshape(o, c, -1)
    for channel in range(o):
        group = channel // (o // groups)
        inside = range(group * c // groups, (group + 1) * c // groups)
        torch.testing.assert_close(matrix[group, channel % (o // groups)].cpu(), rows[channel, inside].flatten())
        outside = [i for i in range(c) if i not in inside]
        assert rows[channel, outside].abs().sum() < 1e-12  # nothing else makes this channel


@pytest.mark.parametrize(
    "layer", [nn.Linear(4, 3), nn.ConvTranspose1d(4, 6, 3, groups=2)], ids=["linear", "transposed"]
)
def test_the_matrix_has_gradients_and_sees_later_changes(layer):
    neurons = hs.select(layer)[""]
    first = neurons.matrix().detach().clone()
    neurons.matrix().square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, 2 * layer.weight)
    with torch.no_grad():
        layer.weight.mul_(2)
    torch.testing.assert_close(neurons.matrix(), 2 * first)


def test_parametrized_layers_are_included_with_the_weight_they_use():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    parametrizations.weight_norm(model[0])
    parametrizations.orthogonal(model[2])
    selected = hs.select(model)
    assert list(selected) == ["0", "2", "4"]
    assert selected["4"].is_output
    assert torch.equal(selected["0"].matrix()[0], model[0].weight.flatten(1))
    rows = selected["2"].matrix()[0]
    torch.testing.assert_close(rows.T @ rows, torch.eye(3))
    assert list(hs.select(model, nn.Conv2d)) == ["0"]
    parametrizations.weight_norm(model[4])
    assert output_of(model) == "4"


# what is refused


def test_arguments_of_a_wrong_type_are_named():
    with pytest.raises(TypeError, match="model"):
        hs.select(nn.Linear)
    for argument, specs in (("layers", 3), ("layers", [["conv1"]]), ("exclude", None), ("exclude", nn.Linear(2, 2))):
        with pytest.raises(TypeError, match=argument):
            hs.select(Net(), **{argument: specs})


def test_a_wrapper_does_not_hide_which_layer_is_the_output():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.body = nn.Linear(4, 3), nn.Linear(5, 4)

        def get_classifier(self):
            return self.head

    selected = hs.select(nn.DataParallel(Backwards()))
    assert {name: n.is_output for name, n in selected.items()} == {"module.head": True, "module.body": False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "body"}, r"^spherize: no layer named 'body', did you mean 'body\.\*'\?$"),
        ({"layers": "body.O"}, r"^spherize: no layer named 'body\.O', did you mean 'body\.0'\?$"),
        (
            {"layers": "x"},
            r"^spherize: no layer to work on named 'x'; .* are: body\.0 \[Linear\], head \[Linear, the out",
        ),
        ({"exclude": "body"}, r"^spherize: unknown layer 'body' in exclude, did you mean 'body\.\*'\?$"),
        ({"exclude": "haed"}, r"^spherize: unknown layer 'haed' in exclude, did you mean 'head'\?$"),
    ],
)
def test_verbs_name_the_nearest_layer(options, message):
    net = nn.Sequential(OrderedDict(body=nn.Sequential(nn.Linear(3, 4), nn.ReLU()), head=nn.Linear(4, 2)))
    with pytest.raises(ValueError, match=message):
        hs.spherize(net, **options)
    hs.spherize(net, exclude="body.1")  # a module without neurons


def test_a_selection_as_layers():
    """Verbs skip its output unless select was called with layers; names in exclude are dropped."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    chosen = hs.select(net, output="2")
    assert [n.is_output for n in hs.select(net, chosen, exclude="0").values()] == [True, False]
    hs.rotate(net, layers=chosen)
    assert [name for name, module in net.named_children() if hasattr(module, "parametrizations")] == ["0", "3"]
    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    hs.rotate(other, layers=hs.select(other, "1"))
    assert [name for name, module in other.named_children() if hasattr(module, "parametrizations")] == ["1"]
    with pytest.raises(ValueError, match="layers: the selection is of another model, which has the layer '0'"):
        hs.diagnose(other, layers=chosen)
    with pytest.raises(TypeError, match="output and example_inputs have no effect on layers that are a selection"):
        hs.select(net, chosen, output=None)
