"""save_rotations and load_rotations: what is in the file, onto what it loads, and what is refused."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hypersphere as hs
from hypersphere._internal.tensor_files import TensorFile
from hypersphere._internal.tensors import hash_of
from tests.rotations import METHODS, close, inputs, mlp, refused, registry, shake, signs, train

pytestmark = pytest.mark.filterwarnings("ignore:the Cayley transform of N")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rotations.safetensors"


def net_of(seed=1, dtype=torch.float32):
    """A network with buffers, biases, groups, an output and every way to be rotated."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ConvTranspose2d(4, 4, 2, groups=2),
        nn.Flatten(),
        hs.SphereLinear(100, 6, similarity="learnable", scale=True),
        nn.Linear(6, 3),
    ).to(dtype)


def images(dtype=torch.float32):
    return inputs(3, 2, 4, 4, dtype=dtype)


def keys_of(path):
    return set(TensorFile(path).infos)


def equal(a, b):
    """Two models that are the same in every bit of their state."""
    assert list(a.state_dict()) == list(b.state_dict())
    for key, value in a.state_dict().items():
        assert torch.equal(b.state_dict()[key], value), key


# --------------------------------------------------------------------------------------------------- round trips


def test_onto_a_fresh_model_of_the_same_seed(path):
    net = train(hs.rotate(net_of()), images())
    before = copy.deepcopy(net)
    assert hs.rotation.save_rotations(net, path) is None
    equal(net, before)
    assert keys_of(path) == {key for key in net.state_dict() if not key.endswith("original")}  # fixed neurons are not
    fresh = net_of()
    assert hs.rotation.load_rotations(fresh, path) is fresh
    equal(fresh, net)
    assert torch.equal(fresh.eval()(images()), net.eval()(images()))
    assert [(n, p.requires_grad) for n, p in fresh.named_parameters()] == [
        (n, p.requires_grad) for n, p in net.named_parameters()
    ]
    assert type(hs.merge(fresh)[0]) is nn.Conv2d


def test_onto_a_rotated_model(path):
    net = train(hs.rotate(net_of()), images())
    hs.rotation.save_rotations(net, path)
    other = train(hs.rotate(net_of()), 2 * images())
    parameters = [id(p) for p in other.parameters()]
    hs.rotation.load_rotations(other, path)
    equal(other, net)
    assert [id(p) for p in other.parameters()] == parameters  # an optimizer that has them goes on


def test_under_another_task(tmp_path):
    """Files are loaded side by side, each as a task of its own, and keep their outputs."""
    x, models = torch.randn(3, 12), []
    for seed in (1, 2):
        torch.manual_seed(0)
        model = hs.rotate(nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4)).requires_grad_(False), layers="0")
        torch.manual_seed(seed)
        nn.init.normal_(model[0].parametrizations.weight[0].default.cayley, std=0.3)
        models.append(model)
        hs.rotation.save_rotations(model, tmp_path / f"{seed}.safetensors")
    torch.manual_seed(0)
    both = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4)).requires_grad_(False)
    for seed, model in zip((1, 2), models, strict=True):
        assert torch.equal(
            hs.rotation.load_rotations(both, tmp_path / f"{seed}.safetensors", task=f"t{seed}")(x), model(x)
        )
    hs.rotation.use_task(both, "t1")
    assert torch.equal(both(x), models[0](x))
    assert list(both[0].parametrizations.weight[0].tasks) == ["t1", "t2"]
    models[1][0].bias.data.add_(1)
    models[1][0].bias.requires_grad_(True)
    hs.rotation.save_rotations(models[1], tmp_path / "biased.safetensors")
    with pytest.warns(UserWarning, match=r"biased.safetensors changes '0.bias', which the tasks t1, t2 share"):
        hs.rotation.load_rotations(both, tmp_path / "biased.safetensors", task="t3")
    keys = list(both.state_dict())
    for wrong, kind in (("a.b", ValueError), ("forward", ValueError), (3, TypeError)):
        with pytest.raises(kind, match=r"^task must"):
            hs.rotation.load_rotations(both, tmp_path / "1.safetensors", task=wrong)
    assert list(both.state_dict()) == keys


@pytest.mark.parametrize("method", [*METHODS, "none"])
def test_every_method(method, path):
    init = "identity" if method == "none" else "normal"
    net = shake(hs.rotate(mlp(), method, init=init))
    hs.rotation.save_rotations(net, path)
    fresh = hs.rotation.load_rotations(mlp(), path)
    equal(fresh, net)
    assert torch.equal(fresh(inputs(3, 6)), net(inputs(3, 6)))


OPTIONS = {
    "blocks": {"blocks": 2},
    "block_size": {"block_size": 2},
    "shared": {"blocks": 2, "share_blocks": True},
    "sample": {"sample": 0.5, "seed": 7},
    "learned": {"neurons": "learned"},
    "normal": {"init": "normal"},
    "one": {"layers": "2"},
    "sides": {"block_size": 2, "side": "both", "scaled": True, "magnitude": True, "apply": "activation"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option(options, path):
    net = train(hs.rotate(mlp(), **options), inputs(3, 6))
    hs.rotation.save_rotations(net, path)
    fresh = hs.rotation.load_rotations(mlp(), path)
    equal(fresh, net)
    train(net, inputs(3, 6))
    train(fresh, inputs(3, 6))  # goes on as the saved one does
    equal(fresh, net)


def test_attention_and_heads(path):
    def make():
        torch.manual_seed(3)
        return nn.ModuleDict(
            {
                "packed": nn.MultiheadAttention(6, 2),
                "apart": nn.MultiheadAttention(6, 2, kdim=4, vdim=5),
                "head": hs.ASoftmaxLoss(5, 6),
            }
        )

    net = shake(hs.rotate(make(), layers=["packed", "apart*", "head"]))
    net["head"](torch.randn(2, 6), torch.tensor([0, 1]))  # a step of its annealing
    hs.rotation.save_rotations(net, path)
    fresh = hs.rotation.load_rotations(make(), path)
    equal(fresh, net)
    assert fresh["head"].step == 1


def test_a_root_in_bfloat16(path):
    layer = nn.Linear(6, 5, dtype=torch.bfloat16)
    plain = copy.deepcopy(layer)
    hs.rotation.save_rotations(shake(hs.rotate(layer)), path)
    equal(hs.rotation.load_rotations(plain, path), layer)


def test_twice_onto_the_same_path(path):
    net = hs.rotate(mlp())
    hs.rotation.save_rotations(net, path)
    first = path.read_bytes()
    hs.rotation.save_rotations(net, str(path))  # a str too
    assert path.read_bytes() == first
    shake(net)
    hs.rotation.save_rotations(net, path)
    equal(hs.rotation.load_rotations(mlp(), str(path)), net)
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no temporary file is left


# ------------------------------------------------------------------------------------------------ what is in it


def test_frozen_parameters_are_not_and_must_be_the_same(path):
    net = net_of()
    net[5].weight.requires_grad_(False)
    net[0].bias.requires_grad_(False)
    hs.rotate(net)
    hs.rotation.save_rotations(net, path)
    assert not {"5.weight", "0.bias"} & keys_of(path)
    assert {"5.bias", "1.running_mean", "1.num_batches_tracked"} <= keys_of(path)
    fresh = hs.rotation.load_rotations(net_of(), path)
    assert torch.equal(fresh[5].weight, net[5].weight)
    other = net_of()
    with torch.no_grad():
        other[5].weight.fill_(2)
    with refused(ValueError, "'5.weight' was frozen", other):
        hs.rotation.load_rotations(other, path)


class Tied(nn.Module):
    """The words are the output's weight; two branches share a layer."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.fc = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.again = self.norm
        self.out = nn.Linear(6, 9, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens):
        return self.out(self.again(self.fc(self.norm(self.words(tokens)))))


def test_tied_parameters_are_saved_once(path):
    torch.manual_seed(5)
    net = Tied()
    fresh = copy.deepcopy(net)
    train(hs.rotate(net), torch.tensor([[0, 3, 8]]))
    hs.rotation.save_rotations(net, path)
    assert len({"words.weight", "out.weight"} & keys_of(path)) == 1
    assert len({"norm.weight", "again.weight"} & keys_of(path)) == 1
    hs.rotation.load_rotations(fresh, path)
    equal(fresh, net)
    assert fresh.out.weight is fresh.words.weight


def test_weights_that_are_not_contiguous(path):
    net = mlp()
    net.register_buffer("cache", torch.ones(2), persistent=False)  # not in the state_dict
    net[4].weight = nn.Parameter(torch.randn(4, 3).double().T)
    fresh = copy.deepcopy(net)
    shake(hs.rotate(net))
    hs.rotation.save_rotations(net, path)
    equal(hs.rotation.load_rotations(fresh, path), net)


# -------------------------------------------------------------------------------------------------------- tasks


def two_tasks():
    net = shake(hs.rotate(mlp()))
    hs.rotation.add_task(net, "birds")
    hs.rotation.use_task(net, "birds")
    return shake(net)


def test_each_task_alone(tmp_path):
    net = two_tasks()
    x = inputs(3, 6)
    outputs = {}
    for task in ("default", "birds"):
        hs.rotation.use_task(net, task)
        outputs[task] = net(x)
    for task in outputs:
        hs.rotation.save_rotations(net, tmp_path / task, task=task)
        assert {key.split(".")[4] for key in keys_of(tmp_path / task) if "parametrizations" in key} == {task}
    hs.rotation.save_rotations(net, tmp_path / "active")
    assert keys_of(tmp_path / "active") == keys_of(tmp_path / "birds")
    for task, output in outputs.items():
        fresh = hs.rotation.load_rotations(mlp(), tmp_path / task)
        assert torch.equal(fresh(x), output)
        close(hs.merge(fresh)(x), output)
    for order in (("default", "birds"), ("birds", "default")):
        both = mlp()
        for task in order:
            hs.rotation.load_rotations(both, tmp_path / task)
            assert torch.equal(both(x), outputs[task])  # the file's is in use afterwards
        for task, output in outputs.items():
            hs.rotation.use_task(both, task)
            assert torch.equal(both(x), output)


def test_a_task_onto_a_rotated_model(tmp_path):
    net = two_tasks()
    x = inputs(3, 6)
    hs.rotation.save_rotations(net, tmp_path / "birds", task="birds")
    other = shake(hs.rotate(mlp()))
    own = {key: value.clone() for key, value in other.state_dict().items() if "default" in key}
    hs.rotation.load_rotations(other, tmp_path / "birds")
    assert torch.equal(other(x), net(x))
    assert [n for n, p in other.named_parameters() if p.requires_grad and "parametrizations" in n] == [
        f"{i}.parametrizations.weight.0.birds.cayley" for i in (0, 2)
    ]
    for key, value in own.items():
        assert torch.equal(other.state_dict()[key], value)
    hs.rotation.use_task(other, "default")
    assert all(p.requires_grad for n, p in other.named_parameters() if ".default." in n)


def test_an_inactive_task_keeps_out_of_use(path):
    net = two_tasks()
    before = [(n, p.requires_grad) for n, p in net.named_parameters()]
    hs.rotation.save_rotations(net, path, task="default")
    assert [(n, p.requires_grad) for n, p in net.named_parameters()] == before
    with refused(ValueError, "fish.*default.*birds|default.*birds.*fish", net):
        hs.rotation.save_rotations(net, path, task="fish")


# ------------------------------------------------------------------------------------------------------ refusals


def test_other_neurons_are_refused(path):
    net = hs.rotate(mlp())
    hs.rotation.save_rotations(net, path)
    fresh = mlp()
    with torch.no_grad():
        fresh[2].weight[0, 0] += 1e-6
    for other in (fresh, hs.rotate(copy.deepcopy(fresh))):
        with refused(ValueError, "'2'.*neurons|neurons.*'2'", other):
            hs.rotation.load_rotations(other, path)


@pytest.mark.parametrize("options", [{"sample": 4}, {"neurons": "learned"}])
def test_neurons_of_another_seed_where_the_file_has_them(options, path):
    """Their values are in the file, so it does not matter which the model has."""
    net = train(hs.rotate(mlp(), **options), inputs(3, 6))
    hs.rotation.save_rotations(net, path)
    other = mlp()
    with torch.no_grad():
        other[2].weight.mul_(2)
    equal(hs.rotation.load_rotations(other, path), net)


def rewrite(path, header=lambda header: None, tensors=lambda tensors: None, hashed=False):
    """Write the file again with another header or other tensors, whose hashes are right if `hashed`."""
    ((key, text),) = TensorFile(path).metadata.items()
    described, content = json.loads(text), load_file(path)
    header(described)
    tensors(content)
    if hashed:
        described["hashes"] = {name: hash_of(value) for name, value in content.items()}
    save_file(content, path, {key: json.dumps(described)})


def other_files(path):
    """Write what is no file of rotations at this path."""
    raw = path.read_bytes()
    for content in (b"no rotations at all\n" * 20, b"", raw[:-8], raw[:40]):
        path.write_bytes(content)
        yield
    torch.save({"a": torch.zeros(2)}, path)
    yield
    save_file(dict(mlp().state_dict()), path)
    yield
    save_file(dict(mlp().state_dict()), path, {"hypersphere.rotations": "[]"})
    yield
    path.unlink()
    yield
    path.mkdir()
    yield


def test_other_files(path):
    hs.rotation.save_rotations(shake(hs.rotate(mlp())), path)
    for _ in other_files(path):
        for other in (mlp(), hs.rotate(mlp())):
            with refused(ValueError, "rotations.safetensors", other):
                hs.rotation.load_rotations(other, path)


ROTATION = "0.parametrizations.weight.0.default.cayley"
HEADERS = {
    "format_2": lambda header: header.update(format=2),
    "no_fields": lambda header: header.pop("layers"),
    "an_alias_of_nothing": lambda header: header.update(aliases={"4.bias": "nowhere"}),
    "another_option": lambda header: header["layers"][0]["plan"].update(bricks=1),
    "task": lambda header: header["layers"][1].update(task="forward"),
    "dots": lambda header: header["layers"][1].update(task="a.b"),
    "twice": lambda header: header["layers"].append(header["layers"][0]),
    "init": lambda header: header["layers"][0]["plan"].update(init="zzz"),
    "shared": lambda header: header["layers"][0]["plan"].update(shared="no"),
    "seed": lambda header: header["layers"][0].update(seed=2**70),
    "none": lambda header: header["layers"].clear(),
    "blocks": lambda header: header["layers"][0]["plan"].update(blocks=5),
}
TENSORS = {
    "no_rotation": lambda tensors: tensors.pop(ROTATION),
    "small_rotation": lambda tensors: tensors.update({ROTATION: torch.zeros(1, 10).double()}),
    "one_more": lambda tensors: tensors.update({"5.bias": torch.zeros(3).double()}),
    "nan": lambda tensors: tensors[ROTATION].fill_(torch.nan),
    "kind": lambda tensors: tensors.update({ROTATION: tensors[ROTATION].to(torch.complex64)}),
}


@pytest.mark.parametrize("how", [*HEADERS, *TENSORS])
def test_wrong_files_are_refused_and_nothing_changes(how, path):
    hs.rotation.save_rotations(shake(hs.rotate(mlp())), path)
    rewrite(path, HEADERS.get(how, lambda header: None), TENSORS.get(how, lambda tensors: None), hashed=how in TENSORS)
    for other in (mlp(), hs.rotate(mlp())):
        with refused(ValueError, "format 2" if how == "format_2" else "rotations.safetensors", other):
            hs.rotation.load_rotations(other, path)


def test_wrong_draws_are_refused(path):
    hs.rotation.save_rotations(hs.rotate(mlp(), sample=0.5), path)
    rewrite(path, tensors=lambda content: content[next(k for k in content if k.endswith("dims"))].add_(1), hashed=True)
    net = mlp()
    with refused(ValueError, "does not match seed and draw", net):
        hs.rotation.load_rotations(net, path)


def other_models():
    """Models that do not fit the file of mlp(), and what the error names."""
    wide = mlp()
    wide[2], wide[4] = nn.Linear(8, 5).double(), nn.Linear(5, 3).double()
    yield "'2'", wide
    classes = mlp()
    classes[4] = nn.Linear(4, 7).double()  # the rotated layers fit
    yield r"4\.", classes
    yield "4", mlp()[:3]
    yield "0", nn.ModuleDict({"body": mlp()})
    without = mlp()
    without[2] = nn.Tanh()
    yield "2", without
    yield "'0'", hs.rotate(mlp(), "lowdin")
    yield "'0'", hs.rotate(mlp(), blocks=2)


def test_models_that_do_not_fit(path):
    hs.rotation.save_rotations(hs.rotate(mlp()), path)
    for name, model in other_models():
        with refused(ValueError, name, model):
            hs.rotation.load_rotations(model, path)


def test_another_kind_of_layer_at_the_same_name(path):
    """The same numbers, but its neurons run along another dimension."""
    net = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Linear(2, 2))
    other = nn.Sequential(nn.ConvTranspose2d(4, 4, 3), nn.Linear(2, 2))
    other.load_state_dict(net.state_dict())
    hs.rotation.save_rotations(shake(hs.rotate(net)), path)
    with refused(ValueError, "0", other):
        hs.rotation.load_rotations(other, path)


def test_a_method_that_is_not_registered(path):
    with registry():
        net = hs.rotate(mlp(), signs())
        hs.rotation.save_rotations(net, path)
        equal(hs.rotation.load_rotations(mlp(), path), net)
    other = mlp()
    with refused(ValueError, "signs", other):
        hs.rotation.load_rotations(other, path)


def test_a_plain_model_has_nothing_to_save(path):
    net = mlp()
    with refused(ValueError, "rotate", net):
        hs.rotation.save_rotations(net, path)
    assert not path.exists()


def test_models_and_paths_must_be_such(path):
    net = hs.rotate(mlp())
    hs.rotation.save_rotations(net, path)
    for verb in (hs.rotation.save_rotations, hs.rotation.load_rotations):
        with pytest.raises(TypeError, match="model"):
            verb({}, path)
        with refused(TypeError, "path|PathLike", net):
            verb(net, 3)


@pytest.mark.slow
def test_wrappers_are_no_part_of_the_names(path):
    net = hs.rotate(mlp())
    hs.rotation.save_rotations(torch.compile(net), path)  # not run
    equal(hs.rotation.load_rotations(mlp(), path), net)


def test_a_flipped_bit_is_found(path):
    hs.rotation.save_rotations(hs.rotate(mlp()), path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    net = mlp()
    with refused(ValueError, "damaged", net):
        hs.rotation.load_rotations(net, path)


def test_loading_draws_nothing(path):
    hs.rotation.save_rotations(hs.rotate(mlp(), "gram_schmidt", init="normal"), path)
    net = mlp()
    before = torch.random.get_rng_state()
    hs.rotation.load_rotations(net, path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_hash_knows_shape_and_dtype():
    tensors = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32)]
    assert len({hash_of(tensor) for tensor in tensors}) == 3
