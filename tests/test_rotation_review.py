"""What a review of the rotations found: each once wrong, now kept right."""

import copy
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrize

import hypersphere as hs
from tests.rotations import close, mlp, refused, shake


@pytest.mark.parametrize(("d", "blocks"), [(16, 7), (8, 3), (8, 8)])
def test_blocks_must_divide_the_dimensions(d, blocks):
    net = nn.Sequential(nn.Linear(d, 4), nn.Linear(4, 3))
    with refused(ValueError, f"{blocks} blocks", net):
        hs.rotate(net, blocks=blocks)


def test_a_task_that_a_layer_lacks_is_an_error_in_a_state_dict_too():
    net = mlp()
    hs.rotate(net, layers="0")
    hs.add_task(net, "birds")
    hs.rotate(net, layers="2")
    with pytest.raises(ValueError, match=r"2\.parametrizations"):
        hs.merge_state_dict(net.state_dict(), task="birds")
    hs.add_task(net, "birds")  # for the layer that lacks it
    hs.use_task(net, "birds")
    assert set(hs.merge_state_dict(net.state_dict(), task="birds")) == set(mlp().state_dict())


def test_folds_of_a_network_do_not_depend_on_the_global_seed():
    states = []
    for seed in (1, 2):
        torch.manual_seed(0)
        net = hs.rotate(mlp(), "network", sample=0.5)
        resampler = hs.Resampler(net, torch.optim.SGD(hs.param_groups(net), lr=0.1), inner=1)
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        resampler.step()
        assert torch.equal(torch.random.get_rng_state(), before)
        states.append(net.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in states), strict=True))


def test_diagnose_sees_fixed_neurons_and_asks_for_the_task_of_many():
    net = hs.rotate(mlp(), "none")
    assert [row.name for row in hs.diagnose(net.state_dict())] == [row.name for row in hs.diagnose(net)]
    net = hs.rotate(mlp())
    hs.add_task(net, "birds")
    with pytest.raises(ValueError, match=r"merge_state_dict.*birds"):
        hs.diagnose(net.state_dict())


def test_order_of_parameters_after_two_calls():
    attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=4)
    names = [name for name, _ in attention.named_parameters()]
    hs.rotate(attention, layers="k_proj_weight")
    hs.rotate(attention, layers="q_proj_weight")
    hs.merge(attention)
    assert [name for name, _ in attention.named_parameters()] == names


@pytest.mark.parametrize("method", ["cayley", "gram_schmidt", "householder", "lowdin", "exponential"])
def test_gradients_of_single_samples(method):
    net = shake(hs.rotate(mlp().double(), method))
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    x = torch.randn(3, next(iter(mlp().modules()))[0].in_features, dtype=torch.float64)

    def loss(parameters, x):
        return functional_call(net, parameters, (x[None],)).square().sum()

    together = vmap(grad(loss), (None, 0))(parameters, x)
    for i in range(len(x)):
        alone = grad(loss)(parameters, x[i])
        for name, value in alone.items():
            close(together[name][i], value)


def test_wrappers_are_no_part_of_the_names(tmp_path):
    net = hs.rotate(mlp())
    compiled = torch.compile(net)  # not run
    hs.save_rotations(compiled, tmp_path / "rotations.safetensors")
    fresh = hs.load_rotations(mlp(), tmp_path / "rotations.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(fresh.state_dict().values(), net.state_dict().values(), strict=True))


def test_meta_device():
    with torch.device("meta"):
        net = hs.rotate(mlp(), sample=0.5)
    assert net(torch.empty(2, net[0].in_features, device="meta")).shape[0] == 2
    assert hs.merge(net)[0].weight.is_meta
    with torch.device("meta"):
        assert hs.rotate(mlp().to_empty(device="cpu").apply(zero))[0].weight.device.type == "cpu"


def zero(module):
    for parameter in module.parameters(recurse=False):
        nn.init.zeros_(parameter)


def test_start_is_exact_whatever_the_default_dtype():
    torch.set_default_dtype(torch.bfloat16)
    try:
        net = hs.rotate(nn.Sequential(nn.Linear(24, 8), nn.Linear(8, 2)).double(), "ogd", init="normal")
    finally:
        torch.set_default_dtype(torch.float32)
    r = net[0].parametrizations.weight[0].default.ogd[0]
    assert (r.mT @ r - torch.eye(24)).abs().max() < 1e-13


def test_a_resampler_of_a_merged_model_says_so():
    net = hs.rotate(mlp(), sample=0.5)
    resampler = hs.Resampler(net, torch.optim.SGD(hs.param_groups(net), lr=0.1))
    hs.merge(net)
    with pytest.raises(ValueError, match="not rotated any more"):
        resampler.step()


def test_tasks_that_are_not_in_use_are_in_no_group():
    net = hs.rotate(mlp())
    hs.add_task(net, "birds")
    net.requires_grad_(True)
    in_groups = {p for group in hs.param_groups(net) for p in group["params"]}
    assert net[0].parametrizations.weight[0].default.cayley in in_groups
    assert net[0].parametrizations.weight[0].birds.cayley not in in_groups


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


def test_learned_neurons_of_a_frozen_model_learn():
    net = mlp().requires_grad_(False)
    hs.rotate(net, neurons="learned")
    assert net[0].parametrizations.weight.original.requires_grad
    assert not hs.merge(net)[0].weight.requires_grad


def test_backward_under_autocast_is_exact():
    net = shake(hs.rotate(nn.Linear(12, 6), "gram_schmidt"))
    coefficients = torch.randn(6, 12)
    p = net.parametrizations.weight[0].default.gram_schmidt
    (expected,) = torch.autograd.grad((net.weight * coefficients).sum(), p)
    with torch.autocast("cpu", torch.bfloat16):
        (got,) = torch.autograd.grad((net.weight * coefficients).sum(), p)
    assert torch.equal(got, expected)


# files that were tampered with


def double(layers):
    layers.append(layers[0])


HEADERS = {
    "task": lambda layers: layers[1].update(task="forward"),
    "dots": lambda layers: layers[1].update(task="a.b"),
    "empty": lambda layers: layers[1].update(task=""),
    "twice": double,
    "init": lambda layers: layers[0]["plan"].update(init="zzz"),
    "shared": lambda layers: layers[0]["plan"].update(shared="no"),
    "seed": lambda layers: layers[0].update(seed=2**70),
    "none": lambda layers: layers.clear(),
    "blocks": lambda layers: layers[0]["plan"].update(blocks=5),
}


def tampered(path, header=None, tensors=None):
    with safe_open(path, "pt") as file:
        meta = json.loads(file.metadata()["hypersphere.rotations"])
    content = load_file(path)
    if header is not None:
        header(meta["layers"])
    if tensors is not None:
        tensors(content)
        from hypersphere.rotation._file import hash_of

        meta["hashes"] = {key: hash_of(value) for key, value in content.items()}
    save_file(content, path, {"hypersphere.rotations": json.dumps(meta)})


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_tampered_headers_are_refused_and_nothing_changes(header, tmp_path):
    path = tmp_path / "rotations.safetensors"
    hs.save_rotations(hs.rotate(mlp()), path)
    tampered(path, header=header)
    net = mlp()
    with refused(ValueError, "rotations.safetensors", net):
        hs.load_rotations(net, path)


@pytest.mark.parametrize("change", ["nan", "dims", "kind"])
def test_tampered_tensors_are_refused_and_nothing_changes(change, tmp_path):
    path = tmp_path / "rotations.safetensors"
    hs.save_rotations(hs.rotate(mlp(), sample=0.5), path)

    def change_it(content):
        key = next(key for key in content if key.endswith({"nan": "cayley", "dims": "dims", "kind": "cayley"}[change]))
        if change == "nan":
            content[key].fill_(torch.nan)
        else:
            content[key] = content[key] + 1 if change == "dims" else content[key].to(torch.complex64)

    tampered(path, tensors=change_it)
    net = mlp()
    with refused(ValueError, "rotations.safetensors", net):
        hs.load_rotations(net, path)


def test_a_flipped_bit_is_found(tmp_path):
    path = tmp_path / "rotations.safetensors"
    hs.save_rotations(hs.rotate(mlp()), path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    net = mlp()
    with refused(ValueError, "damaged", net):
        hs.load_rotations(net, path)


def test_loading_draws_nothing(tmp_path):
    path = tmp_path / "rotations.safetensors"
    hs.save_rotations(hs.rotate(mlp(), "gram_schmidt", init="normal"), path)
    net = mlp()
    before = torch.random.get_rng_state()
    hs.load_rotations(net, path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_another_parametrization_with_a_module_of_its_own_is_named():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(1, 1)

        def forward(self, weight):
            return weight * self.inner.weight

    net = mlp()
    parametrize.register_parametrization(net[-1], "weight", Scaled())
    hs.rotate(net, layers="0")
    with pytest.raises(ValueError, match="no rotation this package knows"):
        hs.merge_state_dict(net.state_dict())
    plain = copy.deepcopy(net)
    assert isinstance(hs.merge(plain)[-1].parametrizations.weight[0], Scaled)


# optimizers that would go wrong without a word


def step(net, optimizer):
    net(torch.randn(4, net[0].in_features, dtype=net[-1].weight.dtype)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("make", [hs.OGD, torch.optim.SGD])
def test_ogd_matrices_in_a_plain_group_are_refused(make):
    net = hs.rotate(mlp(), "ogd")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(ValueError, match="param_groups"):
        step(net, make(net.parameters(), lr=0.1))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.fixture
def _warnings_again(monkeypatch):
    monkeypatch.setattr("hypersphere._internal.checks._warned", set())


@pytest.mark.usefixtures("_warnings_again")
def test_an_optimizer_made_before_rotate_is_noticed():
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    hs.rotate(net)
    with pytest.warns(UserWarning, match="made before hypersphere.rotate"):
        step(net, optimizer)


@pytest.mark.usefixtures("_warnings_again")
def test_sampling_without_a_resampler_is_noticed(recwarn):
    net = hs.rotate(mlp(), sample=0.5)
    optimizer = torch.optim.SGD(hs.param_groups(net), lr=0.1)
    hs.Resampler(net, optimizer)
    step(net, optimizer)
    assert not [w for w in recwarn if "Resampler" in str(w.message)]
    net = hs.rotate(mlp(), sample=0.5)
    with pytest.warns(UserWarning, match="Resampler"):
        step(net, torch.optim.SGD(hs.param_groups(net), lr=0.1))
