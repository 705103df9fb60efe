"""Rotated networks in torch's own machinery: compile, checkpointing, DDP, autocast, clipping, schedules, averages."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler, swa_utils
from torch.utils.checkpoint import checkpoint

import hypersphere as hs

ORTHOGONAL = ["cayley", "exponential", "gram_schmidt", "householder", "lowdin", "canonical"]
ROTATED = ("conv", "fc1")


class Net(nn.Module):
    """A convolution with overlapping patches, a hidden and an output layer; (B, 3, 6, 6) in, four classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.fc1 = nn.Linear(8 * 9, 12)
        self.fc2 = nn.Linear(12, 4)

    def forward(self, x):
        x = F.max_pool2d(self.norm(self.conv(x)).relu(), 2).flatten(1)
        return self.fc2(self.fc1(x).relu())


def net(method="cayley", **options):
    torch.manual_seed(5)
    return hs.rotate(Net(), method, init="normal" if method == "canonical" else "identity", **options)


def turned(model, method="cayley"):
    """A model whose rotations are not the identity any more."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(f".{method}"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def batch(size=8):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, 6, 6, generator=generator), torch.randint(4, (size,), generator=generator)


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def matrix_of(layer):
    weights = layer.parametrizations.weight
    d = weights.original[0].numel()
    with torch.no_grad():
        return weights[0](torch.eye(d).view(d, *weights.original.shape[1:])).flatten(1).T.clone()


def error(r):
    r = r.double()
    return (r.T @ r - torch.eye(len(r), dtype=r.dtype)).abs().max().item()


def optimizer_of(model, method="cayley", lr=0.02):
    groups = hs.param_groups(model, weight_decay=0.01, ogd=method == "ogd")
    return hs.OGD(groups, lr=lr) if method == "ogd" else torch.optim.AdamW(groups, lr=lr)


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_gradients(ours, expected, tolerance):
    assert set(ours) == set(expected)
    assert any("parametrizations" in name for name in ours)
    for name, gradient in expected.items():
        assert gradient.any(), name
        assert (ours[name] - gradient).abs().max() <= tolerance * gradient.abs().max(), name


# compile


def check_compiled(model, backend, x, y):
    torch.compiler.reset()
    other = copy.deepcopy(model)
    compiled = torch.compile(other, fullgraph=True, backend=backend)
    for each in (compiled, model):
        loss_of(each, x, y).backward()
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    check_gradients(gradients(other), gradients(model), 1e-3)


def test_compile_to_machine_code():
    model = turned(hs.rotate(nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 4))))
    check_compiled(model, "inductor", torch.randn(8, 10), torch.arange(8) % 4)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("exponential", {}),
        ("gram_schmidt", {}),
        ("lowdin", {}),
        ("ogd", {}),
        ("cayley", {"sample": 0.25}),
        ("cayley", {"blocks": 3}),
        ("cayley", {"blocks": 3, "share_blocks": True}),
        ("network", {}),
    ],
    ids=lambda value: ("-".join(value) or "whole") if isinstance(value, dict) else value,
)
def test_compile_fullgraph(method, options):
    check_compiled(turned(net(method, **options), method), "aot_eager", *batch())


def test_compiled_training_sees_folds():
    """Nothing of a draw is baked into the graph: after a fold the compiled network is still the eager one."""
    torch.compiler.reset()
    model = net(sample=0.25)
    compiled, optimizer = torch.compile(model, fullgraph=True, backend="aot_eager"), optimizer_of(model)
    resampler, (x, y) = hs.Resampler(model, optimizer, inner=2), batch()
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(compiled, x, y).backward()
        optimizer.step()
        resampler.step()
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


# checkpointing, copies, merging


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("options", [{}, {"sample": 0.25}], ids=["whole", "sampled"])
def test_gradient_checkpointing_is_exact(options, use_reentrant):
    model, (x, y) = turned(net(**options)), batch()
    loss_of(model, x, y).backward()
    expected = gradients(model)
    model.zero_grad()
    F.cross_entropy(checkpoint(model, x.requires_grad_(), use_reentrant=use_reentrant), y).backward()
    ours = gradients(model)
    assert set(ours) == set(expected)
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


@pytest.mark.parametrize("method", ORTHOGONAL)
def test_deepcopy_and_state_dict_round_trip(method):
    model, (x, y) = turned(net(method), method), batch()
    other = copy.deepcopy(model)
    assert torch.equal(other(x), model(x))
    turned(other, method)
    assert not torch.allclose(other(x), model(x), atol=1e-3)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))
    loss_of(other, x, y).backward()
    assert not gradients(model)


@pytest.mark.parametrize("method", ORTHOGONAL)
def test_a_convolution_with_overlapping_patches(method):
    """Filters turn, not images: R applied to unfolded patches, Rᵀ of them before the neurons, and the merged layer."""
    model, (x, _) = turned(net(method), method), batch()
    conv = model.conv
    r, neurons = matrix_of(conv), conv.parametrizations.weight.original
    patches = F.unfold(x, 3, padding=1)  # (B, 27, 36)
    expected = neurons.flatten(1) @ (r.T @ patches) + conv.bias[:, None]
    torch.testing.assert_close(conv(x), expected.view(8, 8, 6, 6), rtol=0, atol=1e-4)
    output, merged = model(x), hs.merge(copy.deepcopy(model))
    assert type(merged.conv) is nn.Conv2d
    torch.testing.assert_close(merged(x), output, rtol=0, atol=1e-5)
    assert torch.equal(model(x), output)


# two processes


CASES = {"cayley": {}, "gram_schmidt": {}, "ogd": {}, "sampled": {"sample": 0.25}}
METHODS = {"sampled": "cayley"}  # of cases that are not named after theirs


def _steps(model, inner, case, x, y):
    """A few training steps of `model`, which is `inner` or wraps it."""
    groups = hs.param_groups(inner, weight_decay=0.01, ogd=case == "ogd")
    optimizer = hs.OGD(groups, lr=0.1) if case == "ogd" else torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    resampler = hs.Resampler(model, optimizer, inner=2) if case == "sampled" else None
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        if resampler is not None:
            resampler.step()
    return {key: value.clone() for key, value in inner.state_dict().items()}


def _start(case):
    return net(METHODS.get(case, case), **CASES[case])


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.set_num_threads(1)
    x, y = batch(8)
    states = {}
    for case in CASES:
        inner = _start(case)
        states[case] = _steps(DistributedDataParallel(inner), inner, case, x[rank::2], y[rank::2])
    torch.save(states, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def test_distributed_data_parallel(tmp_path):
    """Both ranks hold the same rotations to the last bit, and those of one process with the whole batch."""
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    for case in CASES:
        first, second = (states[case] for states in ranks)
        for key in first:
            assert torch.equal(first[key], second[key]), (case, key)
        model = _start(case)
        start = model.state_dict()["conv.parametrizations.weight.0.default." + METHODS.get(case, case)].clone()
        alone = _steps(model, model, case, *batch(8))
        for key, value in alone.items():
            torch.testing.assert_close(first[key], value, rtol=0, atol=1e-6, msg=f"{case}: {key}")
        moved = first["conv.parametrizations.weight.0.default." + METHODS.get(case, case)]
        assert (moved - start).abs().max() > 1e-3, case
    assert ranks[0]["sampled"]["fc1.parametrizations.weight.0.default.draw"] == 2


# bfloat16


@pytest.mark.parametrize("method", [*ORTHOGONAL, "ogd"])
def test_autocast_leaves_the_factorization_in_float32(method):
    model, (x, y) = net(method), batch()
    if method != "ogd":
        turned(model, method)
    weights = [getattr(model, name).weight.detach().clone() for name in ROTATED]
    with torch.autocast("cpu", torch.bfloat16):
        inside = [getattr(model, name).weight for name in ROTATED]
        assert model(x).dtype == torch.bfloat16
    for ours, weight in zip(inside, weights, strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, weight)
    optimizer, losses = optimizer_of(model, method), []
    before = [hs.hyperspherical_energy(weight).item() for weight in weights]
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for name, value in zip(ROTATED, before, strict=True):
        layer = getattr(model, name)
        assert layer.get_parameter(f"parametrizations.weight.0.default.{method}").dtype == torch.float32
        assert error(matrix_of(layer)) <= 1e-5
        assert hs.hyperspherical_energy(layer.weight.detach()).item() == pytest.approx(value, rel=1e-5)


def test_autocast_gradients_are_those_of_float32_to_bfloat16s_precision():
    model, (x, y) = turned(net()), batch()
    loss_of(model, x, y).backward()
    expected = gradients(model)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, x, y)
    loss.backward()
    check_gradients(gradients(model), expected, 0.2)


def test_folding_under_autocast_is_exact():
    model, (x, _) = net(sample=0.25), batch()
    turned(model)
    resampler = hs.Resampler(model, optimizer_of(model))
    output = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        resampler.resample()
    torch.testing.assert_close(model(x), output, rtol=0, atol=1e-5)


# what a training loop has besides


@pytest.mark.parametrize("method", ["cayley", "ogd"])
def test_clipping_and_a_schedule(method):
    model, (x, y) = net(method), batch()
    optimizer = optimizer_of(model, method, lr=0.05)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 20)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        clipped = torch.cat([g.flatten() for g in gradients(model).values()]).norm()
        assert clipped <= 0.1 * (1 + 1e-4)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(group["lr"] < 1e-6 for group in optimizer.param_groups)
    before = [matrix_of(getattr(model, name)) for name in ROTATED]
    assert all(error(r) <= 1e-5 for r in before)
    optimizer.step()  # at a rate of 0
    for r, name in zip(before, ROTATED, strict=True):
        torch.testing.assert_close(matrix_of(getattr(model, name)), r, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["cayley", "exponential"])
def test_moving_averages_stay_orthogonal(method):
    model, (x, y) = net(method), batch()
    energies = [hs.hyperspherical_energy(getattr(model, name).weight.detach()).item() for name in ROTATED]
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = optimizer_of(model, method)
    for _ in range(40):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        averaged.update_parameters(model)
    for name, before in zip(ROTATED, energies, strict=True):
        layer = getattr(averaged.module, name)
        r = matrix_of(layer)
        assert error(r) <= 1e-5
        assert (r - torch.eye(len(r))).norm() > 0.05
        assert (r - matrix_of(getattr(model, name))).norm() > 1e-3  # the average, not the model itself
        assert hs.hyperspherical_energy(layer.weight.detach()).item() == pytest.approx(before, rel=1e-5)
    output, merged = averaged(x), hs.merge(copy.deepcopy(averaged.module))
    torch.testing.assert_close(merged(x), output, rtol=0, atol=1e-5)


def test_double_precision_and_back():
    model, (x, _) = turned(net()), batch()
    output = model(x)
    model.double()
    torch.testing.assert_close(model(x.double()).float(), output, rtol=0, atol=1e-5)
    for name in ROTATED:
        assert getattr(model, name).weight.dtype == torch.float64
    model.float()
    torch.testing.assert_close(model(x), output, rtol=0, atol=1e-5)
