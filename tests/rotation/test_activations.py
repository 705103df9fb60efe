"""Rotations of inputs and outputs: both forms, sides, shuffle, scale, magnitude, dropout, frozen weights."""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import hypersphere as hs
from hypersphere.rotation import _file
from hypersphere.rotation.parametrization import find_rotated
from tests.rotated_nets import Tied
from tests.rotations import registry

SIDES = ("input", "output", "both")


def net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(24, 36),
        nn.ReLU(),
        nn.Unflatten(1, (36, 1, 1)),
        nn.Conv2d(36, 48, 1),
        nn.Flatten(),
        nn.Linear(48, 48, bias=False),
        nn.Tanh(),
        nn.Linear(48, 5),
    ).to(dtype)


def shake(model: nn.Module, size: float = 0.3) -> nn.Module:
    """Move the parameters of all rotations away from the start, alike for alike models."""
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in find_rotated(model):
            for parameter in layer.rotation.parameters():
                parameter.add_(size * torch.randn(parameter.shape, generator=noise, dtype=torch.float64).to(parameter))
    return model


def batch(dtype: torch.dtype = torch.float64, rows: int = 7) -> Tensor:
    return torch.randn(rows, 24, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)


def is_formed(y: Tensor) -> bool:
    """Whether the weight of a rotated Linear was formed: see rotation/formed_weight.py."""
    pending, names = [y.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is not None:
            names.add(node.name())
            pending += [parent for parent, _ in node.next_functions]
    return any("FormedLinear" in name for name in names)


def literal_weight(layer: nn.Module, plain: Tensor) -> Tensor:
    """diag(magnitude)·R_out V R_inᵀ, every matrix written out."""
    rotation = layer.parametrizations.weight[0]
    plan, task = rotation.plan, rotation.task
    w = plain.flatten(1)
    for prefix, width in (("", w.shape[1]), ("output_", w.shape[0])):
        numbers = getattr(task, f"{prefix}cayley", None)
        if numbers is None:
            continue
        blocks = plan.blocks if prefix == "" else plan.output_blocks
        m = width // blocks
        whole = torch.zeros(width, width, dtype=w.dtype)
        for b in range(blocks):
            a = torch.zeros(m, m, dtype=w.dtype)
            values = numbers[0 if plan.shared else b] / (2 * (m - 1) ** 0.5 if plan.scaled else 1)
            a[torch.triu_indices(m, m, 1).unbind()] = values
            a = a - a.T
            eye = torch.eye(m, dtype=w.dtype)
            whole[b * m : b * m + m, b * m : b * m + m] = (eye + a) @ torch.linalg.inv(eye - a)
        if plan.shuffle:
            order = torch.eye(width, dtype=w.dtype)[task.get_buffer(f"{prefix}dims")]
            whole = order.T @ whole @ order
        w = w @ whole.T if prefix == "" else whole @ w
    if plan.magnitude:
        w = task.magnitude[:, None] * w
    return w.view_as(plain)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("shuffle", "shared"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(("magnitude", "scaled"), [(False, False), (True, True)])
def test_all_forms_are_the_literal_formula(side, shuffle, shared, magnitude, scaled):
    options = {"side": side, "shuffle": shuffle, "share_blocks": shared, "magnitude": magnitude, "scaled": scaled}
    plain, x = net(), batch(rows=60)  # more rows than neurons: "auto" forms the weights of Linears
    models = {}
    for apply in ("weight", "activation", "auto"):
        model = hs.rotate(net(), block_size=12, apply=apply, **options)
        torch.testing.assert_close(model(x), plain(x))  # wrapping does not change the function
        models[apply] = shake(model)
    by_weight, by_input = models["weight"], models["activation"]
    assert list(by_weight.state_dict()) == list(by_input.state_dict()) == list(models["auto"].state_dict())
    assert [is_formed(model(x)) for model in models.values()] == [False, False, True]
    expected = net()
    with torch.no_grad():
        for i in (0, 3, 5):
            expected[i].weight.copy_(literal_weight(by_input[i], plain[i].weight))
            assert by_input[i].parametrizations.weight[0].plan.apply == "activation"
    for model in models.values():
        torch.testing.assert_close(model(x), expected(x))
        model(x).square().sum().backward()
    for other in (by_input, models["auto"]):
        for (name, p), q in zip(by_weight.named_parameters(), other.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None) == (not p.requires_grad), name
            if p.grad is not None:
                torch.testing.assert_close(p.grad, q.grad, msg=name)
    merged = net()
    merged.load_state_dict(hs.rotation.merge_state_dict(by_input.state_dict()))
    torch.testing.assert_close(merged(x), expected(x))
    assert [type(module) for module in hs.merge(by_input).modules()] == [type(module) for module in plain.modules()]
    torch.testing.assert_close(by_input(x), expected(x))


@pytest.mark.parametrize("side", SIDES)
def test_what_each_side_keeps_over_redraws(side):
    model = hs.rotate(net(torch.float32), block_size=12, side=side, shuffle=True)
    optimizer = torch.optim.SGD(hs.param_groups(model), lr=0.05)
    resampler = hs.Resampler(model, optimizer, every=3)
    layers = (0, 3, 5)
    values = [torch.linalg.svdvals(model[i].weight.detach().flatten(1)) for i in layers]
    energies = [hs.hyperspherical_energy(model[i].weight.detach()) for i in layers]
    dims = [copy.deepcopy(model[0].parametrizations.weight[0].default.state_dict())]
    x = batch(torch.float32)
    for _ in range(10):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    dims.append(model[0].parametrizations.weight[0].default.state_dict())
    assert int(dims[1]["draw"]) == 3
    assert all(not torch.equal(dims[0][k], dims[1][k]) for k in dims[0] if k.endswith("dims"))
    before = model(x)
    resampler.resample()
    torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)  # redrawing does not change the function
    moved = 0.0
    for i, old, energy in zip(layers, values, energies, strict=True):
        weight = model[i].weight.detach()
        torch.testing.assert_close(torch.linalg.svdvals(weight.flatten(1)), old, rtol=1e-5, atol=1e-5)
        moved = max(moved, float((hs.hyperspherical_energy(weight) - energy).abs()))
    assert (moved < 1e-5) == (side == "input")


def test_auto_takes_the_form_with_fewer_multiplications():
    def form(layer: nn.Module, **options) -> str:
        return (
            hs.rotate(nn.Sequential(layer, nn.Linear(4, 2)), layers="0", **options)[0]
            .parametrizations.weight[0]
            .plan.apply
        )

    assert form(nn.Linear(96, 32), block_size=32) == "auto"  # 32 ≤ 32
    assert form(nn.Linear(96, 31), block_size=32) == "weight"
    assert form(nn.Linear(96, 288)) == "auto"  # 3·96 ≤ 288
    assert form(nn.Linear(96, 287)) == "weight"
    assert form(nn.Linear(96, 96), block_size=48, side="both") == "auto"  # 48 + 48 ≤ 96
    assert form(nn.Linear(96, 95), block_size=48, side="both") == "weight"  # outputs in one block
    assert form(nn.Linear(96, 95), block_size=32, neurons="learned") == "weight"
    assert form(nn.Linear(96, 95), block_size=32, method="ogd") == "weight"  # 3·32 > 95
    assert form(nn.Conv2d(96, 96, 1), block_size=32) == "auto"
    assert form(nn.Conv2d(96, 95, 1), block_size=32) == "weight"
    assert form(nn.Conv2d(32, 96, 3), block_size=32) == "weight"  # patches overlap
    assert form(hs.SphereLinear(96, 96), block_size=32) == "weight"


@pytest.mark.parametrize("block_size", [32, 48])
def test_auto_decides_at_each_call(block_size):
    """More rows than neurons: the weight is formed. Else inputs are rotated, or the weight with its gradient."""
    layer = hs.rotate(nn.Sequential(nn.Linear(96, 96)), layers="0", block_size=block_size)
    x = torch.randn(2, 49, 96)
    assert is_formed(layer(x))
    assert not is_formed(layer(x[:, :48]))
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_formed(layer(x))
    assert not is_formed(layer.bfloat16()(x.bfloat16()))


def formed_layer(**options) -> nn.Sequential:
    torch.manual_seed(0)
    return shake(hs.rotate(nn.Sequential(nn.Linear(24, 12, dtype=torch.float64)), layers="0", block_size=4, **options))


@pytest.mark.slow
def test_a_compiled_gradient_of_torch_func_has_all_parts():
    layer, x = formed_layer(), batch(rows=40)
    values = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layer, values, (x,)).pow(3).sum()

    expected = torch.func.grad(loss)(values)
    torch.testing.assert_close(torch.compile(torch.func.grad(loss), backend="aot_eager")(values), expected)


@pytest.mark.slow
def test_an_export_holds_for_any_number_of_rows():
    layer, x = formed_layer().eval(), batch(rows=40)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    for rows in (3, 40):
        torch.testing.assert_close(program.module()(x[:rows]), layer(x[:rows]))


@pytest.mark.parametrize("side", SIDES)
def test_formed_layers_keep_what_they_need_and_no_more(side):
    layer, x = formed_layer(side=side), batch(rows=40).requires_grad_()

    def kept() -> set[tuple[int, ...]]:
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(tuple(t.shape)) or t, lambda t: t):
            assert is_formed(layer(x))
        return set(shapes)

    assert ((40, 24) in kept(), (40, 12) in kept()) == (side != "output", side != "input")
    layer.requires_grad_(False)
    assert kept().isdisjoint({(40, 24), (40, 12)})


def test_an_output_may_be_changed_in_place():
    torch.manual_seed(0)
    plain = nn.Linear(24, 12, bias=False, dtype=torch.float64)
    gradients = []
    for apply in ("auto", "weight"):
        model = hs.rotate(nn.Sequential(copy.deepcopy(plain)), layers="0", block_size=4, side="both", apply=apply)
        shake(model).append(nn.ReLU(inplace=True))
        model(batch(rows=40)).sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    torch.testing.assert_close(*gradients)


def test_other_inputs_are_left_to_the_layer():
    layer = formed_layer()
    with pytest.raises(RuntimeError, match="shape"):
        layer(torch.zeros(40, 0, dtype=torch.float64))
    x = batch(rows=40).relu()
    torch.testing.assert_close(layer(x.to_sparse()), layer(x))


def test_a_method_of_the_user_s_may_be_only_nearly_orthogonal():
    near = replace(hs.orthogonal.ORTHOGONALIZERS["cayley"], name="near_cayley")
    with registry():
        model = hs.rotate(nn.Sequential(nn.Linear(24, 12)), layers="0", block_size=4, method=near)
    assert not is_formed(model(torch.randn(40, 24)))


def test_a_block_may_cut_through_channels():
    model = hs.rotate(nn.Sequential(nn.Conv2d(8, 6, 3)), block_size=12, layers="0")
    assert model[0].parametrizations.weight[0].plan.blocks == 6
    with pytest.raises(ValueError, match=r"block_size.*11.*0 \(8 channels of 9\): 2, 3, 4"):
        hs.rotate(nn.Sequential(nn.Conv2d(8, 6, 3)), block_size=11, layers="0")


@pytest.mark.slow
@pytest.mark.parametrize("side", ["input", "both"])
@pytest.mark.parametrize(("apply", "rows"), [("activation", 3), ("auto", 5)])
def test_gradients_of_the_input_and_the_formed_weight(side, apply, rows):
    torch.manual_seed(0)
    layer = hs.rotate(
        nn.Sequential(nn.Linear(6, 4).double()), layers="0", apply=apply, block_size=2, side=side, magnitude=True
    )
    shake(layer)
    names = [name for name, p in layer.named_parameters() if p.requires_grad]
    x = torch.randn(rows, 6, dtype=torch.float64, requires_grad=True)
    assert is_formed(layer(x)) == (apply == "auto")

    def call(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    parameters = dict(layer.named_parameters())
    values = [parameters[name].detach().clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(call, (x, *values))
    assert torch.autograd.gradgradcheck(call, (x, *values))


def test_dropout_replaces_blocks_in_training_only():
    model = shake(hs.rotate(net(), block_size=12, dropout=0.5, apply="activation"))
    x = batch()
    expected = model.eval()(x)
    torch.testing.assert_close(model(x), expected)
    model.train()
    torch.manual_seed(3)
    first, second = model(x), model(x)
    assert not torch.allclose(first, second)
    torch.manual_seed(3)
    torch.testing.assert_close(model(x), first)  # drawn from torch's generator
    energy = hs.hyperspherical_energy(model[0].weight)
    torch.testing.assert_close(energy, hs.hyperspherical_energy(net()[0].weight))
    torch.testing.assert_close(hs.merge(model)(x), expected)  # merging ignores it


def test_float16_bfloat16_and_autocast_rotate_in_float32():
    for dtype in (torch.float16, torch.bfloat16):
        model = shake(hs.rotate(net(dtype), block_size=12, apply="activation"), 0.05)
        y = model(batch(dtype))
        assert y.dtype is dtype
        reference = shake(hs.rotate(net(), block_size=12), 0.05)(batch())
        torch.testing.assert_close(y.double(), reference, rtol=0.05, atol=0.05)
    model = shake(hs.rotate(net(torch.float32), block_size=12, apply="activation"), 0.05)
    rotation = model[0].parametrizations.weight[0]
    (turn,) = rotation.task.block_rotations(rotation.plan, dropout=False)
    x = torch.randn(5, 24)
    with torch.autocast("cpu", torch.bfloat16):
        rotated = turn.rotate_features(x)
        assert model(x).dtype is torch.bfloat16
    torch.testing.assert_close(rotated.norm(dim=1), x.norm(dim=1), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_compile():
    model = shake(hs.rotate(net(torch.float32), block_size=12, apply="activation", side="both", scaled=True))
    x = batch(torch.float32)
    with torch.no_grad():  # a graph without the backward pass is captured in half the time
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x))
    model, x = shake(hs.rotate(net(torch.float32), block_size=12)), batch(torch.float32, rows=60)
    assert is_formed(model(x))
    losses = [
        network(x).square().sum() for network in (model, torch.compile(model, fullgraph=True, backend="aot_eager"))
    ]
    first, second = (torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad]) for loss in losses)
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("options", [{"scaled": True}, {"shuffle": True}, {"side": "both"}, {"magnitude": True}])
def test_a_file_does_not_load_into_a_model_with_further_options(options, tmp_path):
    hs.rotation.save_rotations(shake(hs.rotate(net(), block_size=12)), tmp_path / "r.safetensors")
    target = shake(hs.rotate(net(), block_size=12, **options))
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(ValueError, match=f"rotated differently.*{next(iter(options))}"):
        hs.rotation.load_rotations(target, tmp_path / "r.safetensors")
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())


def test_a_file_with_the_old_word_for_activations_loads(tmp_path, monkeypatch):
    """Files from before said apply="input"."""
    model = shake(hs.rotate(net(), block_size=12, apply="activation"))
    describe = _file.describe

    def describe_as_before(rotation):
        described = describe(rotation)
        described["plan"]["apply"] = "input"
        return described

    monkeypatch.setattr(_file, "describe", describe_as_before)
    hs.rotation.save_rotations(model, tmp_path / "r.safetensors")
    other = hs.rotation.load_rotations(net(), tmp_path / "r.safetensors")
    assert all(weight.rotation.plan.apply == "activation" for weight in find_rotated(other))
    assert torch.equal(other(batch()), model(batch()))


def test_tied_weights_keep_their_tie():
    model, ids = Tied(), torch.arange(20)
    with pytest.raises(ValueError, match=r"'head'.*tied.*apply='activation'"):
        hs.rotate(model, layers="head", block_size=4)
    before = model(ids)
    hs.rotate(model, layers="head", block_size=4, apply="activation")
    assert model.head.weight is model.embedding.weight
    torch.testing.assert_close(model(ids), before)
    shake(model)
    rotation = model.head.parametrizations.weight[0]
    turned = rotation(model.head.weight)
    hidden = model.hidden(model.embedding(ids))
    torch.testing.assert_close(model(ids), hidden @ turned.T)
    assert "head.parametrizations.weight.0.default.cayley" in model.state_dict()
    assert any(p is model.embedding.weight for group in hs.param_groups(model) for p in group["params"])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(ids), model(ids))
    with pytest.raises(ValueError, match="'head' is quantized or tied"):
        hs.merge(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TracerWarning: sizes are tensors there
        torch.testing.assert_close(torch.jit.trace(model, (ids,))(ids), model(ids))


def test_the_rotation_of_a_tied_layer_merges_into_an_untied_one(tmp_path):
    ids = torch.arange(20)
    model = shake(hs.rotate(Tied(), layers=["hidden", "head"], apply="activation", block_size=4))
    hs.rotation.save_rotations(model, tmp_path / "r.safetensors")
    untied = Tied()
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    hs.rotation.load_rotations(untied, tmp_path / "r.safetensors")
    torch.testing.assert_close(untied(ids), model(ids))
    torch.testing.assert_close(hs.merge(untied)(ids), model(ids))


def test_quantized_layers(tmp_path):
    plain = net(torch.float32).eval()
    quantized = torch.ao.quantization.quantize_dynamic(copy.deepcopy(plain), {nn.Linear}, dtype=torch.qint8)
    x = batch(torch.float32)
    before = quantized(x)
    with pytest.raises(ValueError, match=r"quantized.*apply='activation'"):
        hs.rotate(quantized, layers="0", block_size=12)
    hs.rotate(quantized, layers=["0", "5"], block_size=12, apply="activation")
    quantized.train()
    with pytest.warns(UserWarning, match=r"quantized activations.*not trained"):
        torch.testing.assert_close(quantized(x), before, rtol=0.1, atol=0.1)
    optimizer = torch.optim.SGD(hs.param_groups(quantized), lr=0.01)
    shake(quantized)
    moved = quantized(x)
    assert (moved - before).abs().max() > 0.05
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) > 0
    with pytest.raises(ValueError, match="quantized or tied"):
        hs.merge(quantized)
    hs.rotation.save_rotations(quantized, tmp_path / "r.safetensors")
    again = torch.ao.quantization.quantize_dynamic(copy.deepcopy(plain), {nn.Linear}, dtype=torch.qint8)
    assert torch.equal(hs.rotation.load_rotations(again, tmp_path / "r.safetensors")(x), moved)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"apply": "output"}, "apply"),
        ({"side": "left"}, "side"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": float("nan")}, "dropout"),
        ({"shuffle": True}, "shuffle needs blocks"),
        ({"shuffle": True, "sample": 0.5}, "shuffle"),
        ({"scaled": True, "method": "gram_schmidt"}, "scaled.*cayley"),
        ({"side": "both", "sample": 0.5}, "sample"),
        ({"magnitude": True, "method": "none"}, "none.*magnitude"),
    ],
)
def test_bad_input_leaves_the_model_unchanged(options, message):
    model = net()
    keys = list(model.state_dict())
    with pytest.raises(ValueError, match=message):
        hs.rotate(model, **options)
    assert list(model.state_dict()) == keys
    with pytest.raises(ValueError, match="SphereLinear"):
        hs.rotate(nn.Sequential(hs.SphereLinear(4, 4), nn.Linear(4, 2)), apply="activation")
    with pytest.raises(TypeError, match="magnitude"):
        hs.rotate(net(), magnitude=1)
