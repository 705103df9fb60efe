"""Adapters of other tools: files written by hand, by their formulas; the real PEFT is in tests/integrations."""

import copy
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hypersphere as hs
from hypersphere.rotation import load_rotations, save_rotations
from hypersphere.rotation.adapter_files import CONFIG, TENSORS
from tests.rotations import close, refused, shake


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleDict({"a": nn.Linear(12, 8), "b_c": nn.Linear(8, 16)})
        self.conv = nn.Conv2d(4, 6, 3)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body["b_c"](self.body["a"](x).tanh()).tanh())


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().double()


def triangles(blocks, size, std=0.2):
    return std * torch.randn(blocks, size * (size - 1) // 2, dtype=torch.float64)


def skew(numbers):
    """Q (blocks, m, m) from the triangles above the diagonal, row by row."""
    size = (1 + math.isqrt(1 + 8 * numbers.shape[1])) // 2
    q = torch.zeros(len(numbers), size, size, dtype=torch.float64)
    rows, columns = torch.triu_indices(size, size, 1)
    q[:, rows, columns] = numbers
    return q - q.mT


def exact(q):
    """(I + Q)(I − Q)⁻¹."""
    eye = torch.eye(q.shape[-1], dtype=q.dtype)
    return (eye + q) @ torch.linalg.inv(eye - q)


def diagonal(blocks, times=1):
    return torch.block_diag(*list(blocks) * times)


def write_peft(folder, tensors, **changes):
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "OFT", "use_cayley_neumann": False, "coft": False} | changes
    (folder / CONFIG).write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    save_file({f"base_model.model.{key}": value for key, value in tensors.items()}, folder / TENSORS)
    return folder


# ------------------------------------------------------------------------------------------------------------ PEFT


@pytest.mark.parametrize("series", [False, True], ids=["exact", "series"])
@pytest.mark.parametrize("shared", [False, True], ids=["own blocks", "shared"])
@pytest.mark.filterwarnings("ignore:.*series")
def test_peft(tmp_path, net, series, shared):
    q = triangles(1 if shared else 3, 4)
    path = write_peft(tmp_path / "p", {"body.a.oft_R.weight": q}, use_cayley_neumann=series)
    r = diagonal(exact(skew(q) if series else -skew(q)), 3 if shared else 1)  # x R
    plain = copy.deepcopy(net)
    assert load_rotations(net, path) is net
    x = torch.randn(5, 12, dtype=torch.float64)
    close(net.body["a"](x), plain.body["a"](x @ r), 1e-12)
    close(hs.merge(copy.deepcopy(net)).body["a"].weight, plain.body["a"].weight @ r.T, 1e-12)
    beside = load_rotations(copy.deepcopy(plain), path / TENSORS)  # the file beside its config
    assert beside(x).equal(net(x))


def test_the_series_is_said_and_the_exact_form_is_not(tmp_path, net, recwarn):
    path = write_peft(tmp_path / "exact", {"body.a.oft_R.weight": triangles(3, 4)})
    load_rotations(copy.deepcopy(net), path)
    assert not [w for w in recwarn if "series" in str(w.message)]
    path = write_peft(tmp_path / "series", {"body.a.oft_R.weight": triangles(3, 4)}, use_cayley_neumann=True)
    with pytest.warns(UserWarning, match=r"PEFT's series .*exact"):
        load_rotations(net, path)


def test_peft_with_biases_and_saved_modules(tmp_path, net):
    bias, weight = torch.randn(8, dtype=torch.float64), torch.randn(3, 16, dtype=torch.float64)
    tensors = {"body.a.oft_R.weight": triangles(3, 4), "body.a.base_layer.bias": bias, "head.weight": weight}
    load_rotations(net, write_peft(tmp_path / "p", tensors))
    assert net.body["a"].bias.equal(bias)
    assert net.head.weight.equal(weight)


def test_peft_into_a_rotated_model(tmp_path, net):
    q = triangles(3, 4)
    path = write_peft(tmp_path / "p", {"body.a.oft_R.weight": q})
    other = copy.deepcopy(net)
    for apply in ("activation", "weight"):
        rotated = hs.rotate(copy.deepcopy(net), layers="body.a", block_size=4, apply=apply)
        hs.rotation.use_task(rotated, "default", strength=0.5)
        load_rotations(rotated, path)
        task = rotated.body["a"].parametrizations.weight[0].default
        assert task.cayley.equal(-q)
        assert task.strength == 1
    with refused(ValueError, "body.a.*rotated differently.*blocks", hs.rotate(other, layers="body.a", block_size=6)):
        load_rotations(other, path)


@pytest.mark.parametrize(
    "options", [{"block_size": 4}, {"blocks": 2, "share_blocks": True}, {}, {"scaled": True}], ids=str
)
def test_to_peft_and_back(tmp_path, net, options):
    start = copy.deepcopy(net)
    shake(hs.rotate(net, layers=["body.a", "body.b_c"], **options))
    save_rotations(net, tmp_path / "p", format="peft")
    tensors = load_file(tmp_path / "p" / TENSORS)
    config = json.loads((tmp_path / "p" / CONFIG).read_text())
    sizes = {"block_size": (0, 4), "blocks": (2, 0)}.get(next(iter(options), ""), (1, 0))
    assert (config["r"], config["oft_block_size"]) == sizes
    assert config["block_share"] == ("share_blocks" in options)
    assert config["use_cayley_neumann"] is False
    assert {key for key in tensors if "body" in key} == {
        *(f"base_model.model.body.{name}.oft_R.weight" for name in ("a", "b_c")),
        *(f"base_model.model.body.{name}.base_layer.bias" for name in ("a", "b_c")),
    }
    loaded = load_rotations(start, tmp_path / "p")
    x = torch.randn(5, 12, dtype=torch.float64)
    close(loaded(x), net(x), 1e-12)
    if not options.get("scaled"):  # the scale is folded into the numbers
        for name in ("a", "b_c"):
            ours, theirs = (model.body[name].parametrizations.weight[0].default.cayley for model in (net, loaded))
            assert ours.equal(theirs)


def test_trained_modules_are_named_for_peft(tmp_path, net):
    """PEFT saves them again after it loaded them, whole: frozen tensors of theirs are written too."""
    hs.rotate(net, layers=["body.a", "body.b_c"])
    net.conv.requires_grad_(False)
    net.head.weight.requires_grad_(False)
    net.body["a"].bias.requires_grad_(False)
    save_rotations(net, tmp_path / "p", format="peft")
    config = json.loads((tmp_path / "p" / CONFIG).read_text())
    assert (config["modules_to_save"], config["bias"]) == (["head"], "oft_only")
    tensors = load_file(tmp_path / "p" / TENSORS)
    assert tensors["base_model.model.head.weight"].equal(net.head.weight)
    net.head.requires_grad_(False)
    net.body["b_c"].bias.requires_grad_(False)
    save_rotations(net, tmp_path / "p", format="peft")
    config = json.loads((tmp_path / "p" / CONFIG).read_text())
    assert (config["modules_to_save"], config["bias"]) == (None, "none")
    assert sorted(load_file(tmp_path / "p" / TENSORS)) == [
        f"base_model.model.body.{name}.oft_R.weight" for name in ("a", "b_c")
    ]


@pytest.mark.parametrize(("name", "label"), [("", r"\(root\)"), ("0", "0"), ("c", "c")])
def test_tensors_that_peft_cannot_save_are_warned_of(tmp_path, net, name, label):
    """Of the root, around a rotated layer, and in a module whose name is the end of a rotated one."""
    model = nn.Sequential(net)
    hs.rotate(model, layers=["0.body.a", "0.body.b_c"]).requires_grad_(False)
    if name == "c":
        model.add_module("c", nn.Linear(2, 2))
    else:
        model.get_submodule(name).register_buffer("offset", torch.ones(2))
    with pytest.warns(UserWarning, match=rf"PEFT loads the tensors of {label}, but does not save"):
        save_rotations(model, tmp_path / "p", format="peft")
    assert json.loads((tmp_path / "p" / CONFIG).read_text())["modules_to_save"] is None


def test_damage_of_a_peft_folder_is_found(tmp_path, net):
    base = copy.deepcopy(net)
    save_rotations(hs.rotate(net, layers="body.a"), tmp_path, format="peft")
    path, config = tmp_path / TENSORS, tmp_path / CONFIG
    whole, tree = path.read_bytes(), json.loads(config.read_text())
    config.write_text(json.dumps(tree | {"base_model_name_or_path": "moved"}))
    load_rotations(copy.deepcopy(base), tmp_path)
    config.write_text(json.dumps(tree | {"use_cayley_neumann": True}))
    with refused(ValueError, r"adapter_config.json is damaged or was edited", base):
        load_rotations(base, tmp_path)
    config.write_text(json.dumps(tree))
    path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    with refused(ValueError, r"adapter_model.safetensors is damaged: the checksum of 'base_model", base):
        load_rotations(base, tmp_path)


def test_a_task_at_strength_one_is_saved(tmp_path, net):
    shake(hs.rotate(net, layers="body.a"))
    expected = net.body["a"].weight.detach().clone()
    hs.rotation.use_task(net, "default", strength=0.5)
    for format in ("peft", "hypersphere"):
        with pytest.warns(UserWarning, match="strength 1"):
            save_rotations(net, tmp_path / format, format=format)
        close(load_rotations(copy.deepcopy(net), tmp_path / format).body["a"].weight, expected, 1e-12)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "exponential"}, "cayley.*exponential"),
        ({"side": "output"}, "side.*output"),
        ({"sample": 4}, "sample"),
        ({"shuffle": True, "block_size": 4}, "shuffle"),
        ({"neurons": "learned"}, "learned"),
        ({"layers": "conv"}, "Linear.*conv.*Conv2d"),
        ({"block_size": 3, "layers": ["body.a", "head"]}, r"sizes \[3, 16\]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.filterwarnings("ignore:block_size=3 does not fit")
def test_what_peft_cannot_hold(tmp_path, net, options, match):
    hs.rotate(net, **{"layers": "body.a"} | options)
    with refused(ValueError, match, net):
        save_rotations(net, tmp_path / "p", format="peft")
    assert not (tmp_path / "p").exists()


def test_format_and_path_of_save(tmp_path, net):
    hs.rotate(net, layers="body.a")
    with refused(ValueError, "format.*peft.*onnx", net):
        save_rotations(net, tmp_path / "p", format="onnx")
    (tmp_path / "file").write_text("")
    with refused(ValueError, "folder.*file", net):
        save_rotations(net, tmp_path / "file", format="peft")
    with refused(ValueError, r"\(root\)", hs.rotate(root := nn.Linear(4, 4))):
        save_rotations(root, tmp_path / "p", format="peft")


# ------------------------------------------------------------------------------------- OneTrainer, LyCORIS, kohya


@pytest.mark.parametrize(
    ("stem", "scaled"), [("body.b_c", False), ("lora_unet_body_b_c", True), ("transformer.body.b_c", False)]
)
@pytest.mark.filterwarnings("ignore:.*series")
def test_onetrainer(tmp_path, net, stem, scaled):
    q = triangles(2, 4)
    tensors = {f"{stem}.oft_R.weight": q} | ({f"{stem}.oft_R.scaled_oft": torch.tensor(True)} if scaled else {})
    save_file(tensors, tmp_path / "o.safetensors")
    r = diagonal(exact(skew(q) / (2 * math.sqrt(3) if scaled else 1)))
    expected = net.body["b_c"].weight @ r.T
    load_rotations(net, tmp_path / "o.safetensors")
    close(net.body["b_c"].weight, expected, 1e-12)
    assert net.body["b_c"].parametrizations.weight[0].plan.scaled == scaled


@pytest.mark.filterwarnings("ignore:.*series")
def test_onetrainer_convolutions_turn_the_other_way(tmp_path, net):
    q = triangles(4, 9)
    save_file({"conv.oft_R.weight": q}, tmp_path / "o.safetensors")
    expected = (net.conv.weight.flatten(1) @ diagonal(exact(skew(q)))).view_as(net.conv.weight)
    close(load_rotations(net, tmp_path / "o.safetensors").conv.weight, expected, 1e-12)


@pytest.mark.parametrize(
    ("layer", "alpha", "rescaled"),
    [
        ("body.a", None, False),
        ("body.a", 0.01, True),
        ("conv", 0.0, True),
        ("conv", 0.01, False),
        ("conv", 100.0, True),
    ],
)
def test_lycoris(tmp_path, net, layer, alpha, rescaled):
    weight = net.get_submodule(layer).weight
    outputs = len(weight)
    b = 0.3 * torch.randn(2, outputs // 2, outputs // 2, dtype=torch.float64)
    rescale = torch.rand(outputs, *[1] * (weight.dim() - 1), dtype=torch.float64) + 0.5
    stem = "lycoris_" + layer.replace(".", "_")
    tensors = {f"{stem}.oft_blocks": b}
    tensors |= {} if alpha is None else {f"{stem}.alpha": torch.tensor(alpha, dtype=torch.float64)}
    tensors |= {f"{stem}.rescale": rescale} if rescaled else {}
    save_file(tensors, tmp_path / "l.safetensors")
    q = b - b.mT
    if alpha and q.norm() > alpha * outputs:
        assert alpha == 0.01
        q = q * (alpha * outputs / q.norm())
    turned = torch.einsum("knm,kn...->km...", exact(q), weight.unflatten(0, (2, -1))).flatten(0, 1)
    expected = turned * (rescale if rescaled else 1)
    load_rotations(net, tmp_path / "l.safetensors")
    close(net.get_submodule(layer).weight, expected, 1e-10)


# ------------------------------------------------------------------------------------------------------- bad input

BLOCKS = torch.zeros(2, 4, 4)


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({"body.a.lora_A.weight": torch.zeros(2, 12)}, "LoRA"),
        ({"lora_unet_body_a.hada_w1_a": torch.zeros(2, 12)}, "LoHa"),
        ({"lycoris_body_a.oft_blocks": torch.zeros(1, 2, 4, 4)}, "body.a.*BOFT"),
        ({"body.a.oft_R.weight": torch.zeros(3, 6), "body.a.dora_scale": torch.ones(8, 1)}, "DoRA"),
        ({"body.a.oft_R.weight": torch.zeros(3, 6), "body.a.what": torch.ones(8, 1)}, "unknown.*body.a.what"),
        ({"body.a.oft_R.weight": torch.zeros(3, 6), "body.a.alpha": torch.ones(())}, "unknown.*alpha.*body.a"),
        ({"body.z.oft_R.weight": torch.zeros(3, 6)}, "no layer 'body.z'"),
        ({"body.a.oft_R.weight": torch.zeros(2, 6)}, r"\(2, 6\).*12 inputs.*body.a.*\(8, 12\)"),
        ({"body.a.oft_R.weight": torch.zeros(3, 6, dtype=torch.int64)}, r"\(3, 6\)"),
        ({"body.a.oft_blocks": BLOCKS.to(torch.complex64)}, r"\(2, 4, 4\)"),
        ({"body.a.oft_R.weight": torch.full((3, 6), math.nan)}, "finite"),
        ({"body.a.oft_R.scaled_oft": torch.ones(())}, "neither"),
        ({"body.a.oft_R.weight": torch.zeros(3, 6), "lora_unet_body_a.oft_R.weight": torch.zeros(3, 6)}, "second"),
        ({"body.a.oft_blocks": torch.zeros(2, 3, 3)}, r"\(2, 3, 3\).*8 outputs.*body.a"),
        ({"body.a.oft_blocks": torch.zeros(8, 1, 1)}, "at least 2"),
        ({"body.a.oft_blocks": BLOCKS, "body.a.alpha": torch.tensor(-1.0)}, "alpha"),
        ({"body.a.oft_blocks": BLOCKS, "body.a.rescale": torch.ones(3)}, "rescale.*body.a.*8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore:.*series")
def test_other_dialects_and_shapes_are_named(tmp_path, net, tensors, match):
    save_file(tensors, tmp_path / "x.safetensors")
    with refused(ValueError, match, net):
        load_rotations(net, tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"peft_type": "BOFT"}, "BOFT"),
        ({"peft_type": ...}, "None"),
        ({"use_cayley_neumann": "no"}, "use_cayley_neumann.*'no'"),
        ({"coft": True}, "coft"),
    ],
    ids=str,
)
def test_bad_configs(tmp_path, net, changes, match):
    path = write_peft(tmp_path / "p", {"body.a.oft_R.weight": triangles(3, 4)}, **changes)
    with refused(ValueError, match, net):
        load_rotations(net, path)


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({"conv.oft_R.weight": triangles(9, 4)}, "convolution.*conv|conv.*convolution"),
        ({"emb.oft_embedding_R.weight": triangles(9, 4)}, "embeddings"),
        ({"body.a.oft_r": torch.zeros(3, 4, 4)}, "no tensor|before 0.14"),
        ({"head.weight": torch.zeros(3, 16)}, "no tensor"),
        ({"body.a.oft_R.weight": triangles(3, 4), "head.weight": torch.zeros(3, 4)}, r"head.weight.*\(3, 16\)"),
        ({"body.a.oft_R.weight": triangles(3, 4), "tail.weight": torch.zeros(3, 4)}, "tail.weight"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_adapters_of_another_model(tmp_path, net, tensors, match):
    with refused(ValueError, match, net):
        load_rotations(net, write_peft(tmp_path / "p", tensors))


def test_broken_folders(tmp_path, net):
    path = write_peft(tmp_path / "p", {"body.a.oft_R.weight": triangles(3, 4)})
    for text in (b"{", b"[1]", b"\xff\xfe\xff"):
        (path / CONFIG).write_bytes(text)
        with refused(ValueError, CONFIG, net):
            load_rotations(net, path)
    (path / CONFIG).unlink()
    with refused(ValueError, f"{CONFIG} is missing", net):
        load_rotations(net, path)
    with refused(ValueError, f"{CONFIG} is missing", net):
        load_rotations(net, path / TENSORS)
    (path / TENSORS).write_bytes(b"\x08" + bytes(20))
    with refused(ValueError, "cannot be read", net):
        load_rotations(net, path)
    (path / TENSORS).rename(path / "adapter_model.bin")
    with refused(ValueError, "pickle", net):
        load_rotations(net, path)
    (path / "adapter_model.bin").unlink()
    with refused(ValueError, TENSORS, net):
        load_rotations(net, path)


def test_grouped_outputs_are_not_mixed(tmp_path):
    net = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Conv2d(8, 2, 1))
    save_file({"0.oft_blocks": torch.zeros(2, 4, 4)}, tmp_path / "x.safetensors")
    with refused(ValueError, "'0'.*groups", net):
        load_rotations(net, tmp_path / "x.safetensors")


def test_names_that_become_one(tmp_path):
    net = nn.ModuleDict({"a_b": nn.ModuleDict({"c": nn.Linear(4, 4)}), "a": nn.ModuleDict({"b_c": nn.Linear(4, 4)})})
    save_file({"lora_unet_a_b_c.oft_R.weight": torch.zeros(1, 6)}, tmp_path / "x.safetensors")
    with refused(ValueError, "a_b.c, a.b_c", net):
        load_rotations(net, tmp_path / "x.safetensors")


@pytest.mark.filterwarnings("ignore")  # torch.ao is deprecated
def test_tied_and_quantized_layers(tmp_path):
    """Their inputs are rotated, as PEFT and OneTrainer do; outputs cannot be."""
    q = triangles(4, 4).float()
    save_file({"1.oft_R.weight": q}, tmp_path / "inputs.safetensors")
    save_file({"1.oft_blocks": torch.zeros(2, 8, 8)}, tmp_path / "outputs.safetensors")
    tied = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    tied[1].weight = tied[0].weight
    x = torch.randn(5, 16)
    torch.backends.quantized.engine = "qnnpack" if "x86" not in torch.backends.quantized.supported_engines else "x86"
    quantized = torch.ao.quantization.quantize_dynamic(copy.deepcopy(tied), {"1"}, dtype=torch.qint8)
    for net in (tied, quantized):
        expected = net[1](x @ diagonal(exact(skew(q.double()))).float())
        with pytest.raises(ValueError, match=r"'1'.*(tied|quantized)"):
            load_rotations(net, tmp_path / "outputs.safetensors")
        for _ in range(2):  # plain, then rotated
            load_rotations(net, tmp_path / "inputs.safetensors")
            close(net[1](x), expected, 1e-5 if net is tied else 0.05)
