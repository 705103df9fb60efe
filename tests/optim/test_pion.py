"""Pion: its step as it is written down, what each side keeps over many steps, hostile gradients, and bad input."""

import copy
import io

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.optim.pion import Pion, rotate_both
from tests.reference import cayley_of, pion_step

F64 = torch.float64


def pion(*parameters, lr=0.05, **options):
    group = {"params": list(parameters), "rotated": True}
    return Pion([group | {key: options.pop(key) for key in ("layout",) if key in options}], lr=lr, **options)


def matrix(*shape, dtype=F64):
    return nn.Parameter(torch.randn(*shape, dtype=dtype))


def svd(w):
    return torch.linalg.svdvals(w.detach().double())


def train(optimizer, steps, w):
    for _ in range(steps):
        w.grad = torch.randn_like(w)
        optimizer.step()


# the step


STEPS = [(shape, side) for shape in [(4, 7), (7, 4), (5, 5)] for side in ("both", "input", "output")]
STEPS += [((1, 4), "both"), ((4, 1), "both"), ((1, 4), "input"), ((4, 1), "output")]


@pytest.mark.parametrize(("shape", "side"), STEPS, ids=str)
@pytest.mark.parametrize("rms", [None, 0.2])
def test_many_steps_as_they_are_written(shape, side, rms):
    w, moments = matrix(*shape), {}
    expected, optimizer = w.detach().clone(), pion(w, side=side, rms=rms)
    for _ in range(20):
        w.grad = torch.randn_like(w)
        expected = pion_step(expected, w.grad, moments, 0.05, side, rms=rms)
        optimizer.step()
        torch.testing.assert_close(w.detach(), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("shape", "side"), [((1, 4), "output"), ((4, 1), "input")], ids=str)
@pytest.mark.parametrize("rms", [None, 0.2])
def test_one_dimension_does_not_rotate(shape, side, rms):
    w = matrix(*shape)
    before = w.detach().clone()
    train(pion(w, side=side, rms=rms), 3, w)
    assert torch.equal(w, before)


def test_sides_take_turns():
    w, moments = matrix(4, 6), {}
    expected, optimizer = w.detach().clone(), pion(w, side="alternate")
    for i in range(8):
        w.grad = torch.randn_like(w)
        expected = pion_step(expected, w.grad, moments, 0.05, ("input", "output")[i % 2])
        optimizer.step()
    torch.testing.assert_close(w.detach(), expected, rtol=0, atol=1e-12)


def test_cayley_is_the_exponential_up_to_third_order():
    w, g = torch.randn(4, 6, dtype=F64), torch.randn(4, 6, dtype=F64)
    errors = [
        (pion_step(w, g, {}, lr) - pion_step(w, g, {}, lr, turn=torch.linalg.matrix_exp)).norm() for lr in (0.02, 0.01)
    ]
    assert 7 < errors[0] / errors[1] < 9


def test_a_step_has_the_length_lr():
    w = matrix(20, 30)
    before = w.detach().clone()
    train(pion(w, lr=1e-3), 1, w)
    assert ((w - before).norm() / before.norm()).item() == pytest.approx(1e-3, rel=1e-3)


# what it keeps


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(48, 48), (32, 96), (96, 32)], ids=str)
@pytest.mark.parametrize("side", ["both", "alternate"])
def test_singular_values_over_1000_steps(shape, side):
    w = matrix(*shape, dtype=torch.float32)
    before = svd(w)
    train(pion(w, side=side), 1000, w)
    assert ((svd(w) - before).abs().max() / before.max()).item() < 1e-6


@pytest.mark.parametrize("dimension", [0, 1])
def test_one_side_keeps_lengths_and_angles(dimension):
    w = matrix(24, 40, dtype=torch.float32)
    rows = (lambda: w.detach().double()) if dimension == 0 else (lambda: w.detach().double().mT)
    gram, energy = rows() @ rows().mT, hs.hyperspherical_energy(rows())
    train(pion(w, side=("input", "output")[dimension]), 100, w)
    torch.testing.assert_close(rows() @ rows().mT, gram, rtol=0, atol=2e-5 * gram.max().item())
    assert hs.hyperspherical_energy(rows()).item() == pytest.approx(energy.item(), rel=1e-5)


@pytest.mark.slow
def test_hostile_gradients_stay_finite():
    """12,000 matrices in six steps, as parts of a layout; momentum meets a plain gradient afterwards."""
    parts, m, n = 2000, 3, 4
    w = matrix(parts * m, n, dtype=torch.float32)
    g = torch.randn(parts, m, n)
    rank_one = torch.randn(parts, m, 1) @ torch.randn(parts, 1, n)
    before = torch.linalg.svdvals(w.detach().double().view(parts, m, n))
    mixed = g * torch.logspace(-45, 30, parts)[:, None, None]
    optimizer = pion(w, layout={"parts": parts}, lr=10.0)
    for hostile in (torch.zeros_like(g), rank_one, g * 1e30, g * 1e-42, mixed, g / g.abs().max() * 1e38, g):
        w.grad = hostile.reshape(parts * m, n).clone()
        optimizer.step()
        assert bool(w.isfinite().all())
    after = torch.linalg.svdvals(w.detach().double().view(parts, m, n))
    torch.testing.assert_close(after, before, rtol=0, atol=2e-4)


def test_a_degenerate_direction_turns_no_further_than_its_limit():
    """A acts on the null space of W only: ‖WA‖ = 0, so α is bounded by its floor and by ‖αA‖."""
    w = torch.zeros(1, 3, 3)
    w[0, 0, 0] = 1.0
    a = torch.tensor([[0.0, 0.0, 1e6]])  # turns rows 1 and 2
    assert torch.equal(rotate_both(w, a, None, lr=0.1), w)
    assert torch.equal(rotate_both(w, torch.zeros(1, 3), torch.zeros(1, 3), lr=0.1), w)


# layouts and groups


def test_param_groups_split_what_select_finds():
    net = nn.ModuleDict(
        {
            "words": nn.Embedding(7, 6),
            "attention": nn.MultiheadAttention(6, 2),
            "conv": nn.Conv2d(4, 6, 3, groups=2),
            "norm": nn.LayerNorm(6),
            "inner": nn.Linear(6, 5),
            "out": nn.Linear(5, 3),
        }
    )
    groups = hs.param_groups(net, 0.1, pion=True)
    shapes = [(g["name"], g["weight_decay"], [tuple(p.shape) for p in g["params"]]) for g in groups]
    assert shapes[0] == ("weights", 0.1, [(7, 6), (3, 5)])
    assert shapes[2:] == [
        ("matrices", 0.0, [(18, 6)]),
        ("matrices", 0.0, [(6, 6), (5, 6)]),
        ("matrices", 0.0, [(6, 2, 3, 3)]),
    ]
    assert [g["layout"]["parts"] * g["layout"]["groups"] for g in groups[2:]] == [3, 1, 2]


def test_blocks_of_a_layout_are_matrices_apart():
    fused, conv = matrix(6, 4), matrix(4, 3, 2, 2)
    alone = [nn.Parameter(part.detach().clone()) for part in fused.chunk(3)]
    groups = [nn.Parameter(part.detach().flatten(1).clone()) for part in conv.chunk(2)]
    optimizers = [pion(fused, layout={"parts": 3}), pion(conv, layout={"groups": 2}), pion(*alone), pion(*groups)]
    for _ in range(5):
        for whole, parts in ((fused, alone), (conv, groups)):
            whole.grad = torch.randn_like(whole)
            for part, gradient in zip(parts, whole.grad.chunk(len(parts)), strict=True):
                part.grad = gradient.reshape(part.shape).clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(fused.detach(), torch.cat([p.detach() for p in alone]))
    torch.testing.assert_close(conv.detach().flatten(1), torch.cat([p.detach() for p in groups]))


def test_tied_embeddings_are_not_rotated():
    net = nn.Sequential(nn.Embedding(7, 7), nn.Linear(7, 7), nn.Linear(7, 3))
    net[1].weight = net[0].weight
    assert not any(g.get("rotated") for g in hs.param_groups(net, pion=True))


def mlp():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def steps(net, optimizer, count, seed=0):
    data = torch.Generator().manual_seed(seed)
    loss = None
    for _ in range(count):
        x = torch.randn(16, 6, generator=data)
        optimizer.zero_grad()
        loss = (net(x) - x[:, :3].sin()).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_the_rest_is_adam_and_the_whole_learns():
    net = mlp()
    optimizer = Pion(hs.param_groups(net, 0.01, pion=True), lr=0.02, betas=(0.9, 0.99))
    out = nn.Parameter(net[4].weight.detach().clone())
    reference = torch.optim.Adam([out], lr=0.02, betas=(0.9, 0.99), weight_decay=0.01)
    before = steps(net, optimizer, 1)
    out.grad = net[4].weight.grad.clone()
    reference.step()
    torch.testing.assert_close(net[4].weight, out)
    assert steps(net, optimizer, 150) < before / 5


@pytest.mark.parametrize("side", ["both", "alternate"])
def test_resume_is_bit_equal(side):
    def build():
        net = mlp()
        return net, Pion(hs.param_groups(net, pion=True), lr=0.02, side=side)

    net, optimizer = build()
    steps(net, optimizer, 3)
    file = io.BytesIO()
    torch.save([net.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    other, resumed = build()
    weights, state = torch.load(file, weights_only=True)
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    steps(net, optimizer, 3, seed=1)
    steps(other, resumed, 3, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_moments_of_half_precision_are_loaded_as_they_were():
    w = matrix(4, 6, dtype=torch.float16)
    optimizer, other = pion(w), pion(w)
    w.grad = torch.randn_like(w) * 1e-3
    optimizer.step()
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for key in ("exp_avg_in", "exp_avg_sq_out"):
        assert other.state[w][key].dtype == torch.float32
        assert torch.equal(other.state[w][key], optimizer.state[w][key])


def test_a_state_of_other_matrices_is_refused():
    """Also where the groups agree in number and size."""
    net = nn.ModuleDict({"attention": nn.MultiheadAttention(6, 2), "out": nn.Linear(6, 3)})
    whole, split = (Pion(hs.param_groups(net, pion=True, split_heads=split), lr=0.1) for split in (False, True))
    with pytest.raises(ValueError, match=r"same split_heads: group 2 \('matrices'\) has parts=6, got parts=3"):
        split.load_state_dict(whole.state_dict())
    split.load_state_dict(split.state_dict())
    w = matrix(4, 6)
    optimizer = pion(w)
    w.grad = torch.ones_like(w)
    optimizer.step()
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match=r"exp_avg_in must be \(1, 10\) for parameter 0 of .*, got \(1, 15\)"):
        pion(matrix(4, 5)).load_state_dict(state)
    optimizer.load_state_dict(state)


def test_closure_scheduler_scaler_and_clipping():
    net = mlp()
    optimizer = Pion(hs.param_groups(net, pion=True), lr=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.0)
    scaler = torch.amp.GradScaler("cpu")

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(2, 6)).square().sum()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        return loss

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first
    schedule.step()
    before = [p.clone() for p in net.parameters()]
    scaler.scale(net(torch.ones(2, 6)).sum()).backward()
    scaler.step(optimizer)
    torch.testing.assert_close(before, list(net.parameters()), rtol=0, atol=1e-7)  # lr is 0 now
    net[0].weight.grad.fill_(float("inf"))
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    scaler.update()
    scaler.step(optimizer)
    torch.testing.assert_close(before, list(net.parameters()), rtol=0, atol=1e-7)


# bad input


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: pion(matrix(4)), ValueError, r"at least two dimensions, got parameter 0 of group 0, \(4,\)"),
        (lambda: pion(matrix(0, 4)), ValueError, "at least two dimensions"),
        (lambda: pion(nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))), TypeError, "real floating point"),
        (lambda: pion(nn.Parameter(torch.zeros(2, 2))), ValueError, "must not be zero"),
        (
            lambda: pion(matrix(2, 2), weight_decay=0.1),
            ValueError,
            "weight_decay must be 0 in a rotated group, got 0.1",
        ),
        (lambda: pion(matrix(2, 2), side="left"), ValueError, "side"),
        (lambda: pion(matrix(2, 2), lr=-1.0), ValueError, "lr must be"),
        (lambda: pion(matrix(2, 2), rms=0.0), ValueError, "rms must be"),
        (lambda: pion(matrix(2, 2), betas=(0.9, 1.0)), ValueError, "betas"),
        (lambda: pion(matrix(4, 2), layout={"parts": 3}), ValueError, "does not fit"),
        (
            lambda: pion(matrix(4, 2), layout={"heads": 2}),
            ValueError,
            "layout must be a dict with keys of groups, parts",
        ),
    ],
)
def test_bad_input_is_one_line(make, error, words):
    with pytest.raises(error, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "sparse"])
def test_bad_gradients_are_named_and_nothing_is_stepped(bad):
    a, b = matrix(3, 4), matrix(2, 5)
    optimizer = pion(a, b)
    a.grad, b.grad = torch.randn_like(a), torch.randn_like(b)
    b.grad = b.grad.to_sparse() if bad == "sparse" else b.grad.index_fill(0, torch.tensor([1]), bad)
    before = a.detach().clone()
    with pytest.raises(ValueError, match=r"gradients, got .*parameter 1 of group 0, \(2, 5\)"):
        optimizer.step()
    assert torch.equal(a, before)


def test_other_optimizers_refuse_the_group():
    net = mlp()
    optimizer = torch.optim.SGD(hs.param_groups(net, pion=True), lr=0.1)
    with pytest.raises(ValueError, match="SGD would not keep the matrices of group 'matrices' with their singular"):
        steps(net, optimizer, 1)


def test_rotations_and_matrices_of_ogd_are_not_for_pion():
    net = hs.rotate(mlp(), layers="0")
    p = net[0].parametrizations.weight[0].default.parameters()
    with torch.no_grad():
        packed = next(p).normal_()
    optimizer = pion(packed)
    with pytest.raises(ValueError, match="Pion would rotate the rotations of layer "):
        steps(net, optimizer, 1)
    net = hs.rotate(mlp(), "ogd")
    with pytest.raises(ValueError, match=r"'orthogonal' has orthogonal=True, which is for hypersphere\.OGD"):
        Pion(hs.param_groups(net, ogd=True), lr=0.1)


def test_cayley_of_the_reference_is_orthogonal():
    a = torch.randn(5, 5, dtype=F64)
    q = cayley_of(a - a.T)
    torch.testing.assert_close(q.T @ q, torch.eye(5, dtype=F64))


@pytest.mark.slow
def test_compiled_step():
    def build():
        w = matrix(4, 6, dtype=torch.float32)
        return w, pion(w)

    torch.manual_seed(0)
    w, optimizer = build()
    torch.manual_seed(0)
    v, other = build()
    compiled = torch.compile(other.step, backend="eager")
    for _ in range(3):
        w.grad = torch.randn_like(w)
        v.grad = w.grad.clone()
        optimizer.step()
        compiled()
    torch.testing.assert_close(w.detach(), v.detach())
