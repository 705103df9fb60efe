"""The heads since 2020 against their formulas, sample by sample, and in hostile cases."""

import copy
import math

import pytest
import torch
from torch.autograd import gradcheck

import hypersphere as hs
from hypersphere._internal.draws import normal_numbers, stable_hash
from hypersphere.losses.binary import balanced_offset
from tests import reference

F64 = torch.float64
C, D = 7, 12
HEADS = {
    "adaface": (hs.AdaFaceLoss, {}),
    "magface": (hs.MagFaceLoss, {}),
    "curricularface": (hs.CurricularFaceLoss, {}),
    "elastic arc": (hs.ElasticFaceLoss, {}),
    "elastic cos": (hs.ElasticFaceLoss, {"kind": "cos"}),
    "elastic arc plus": (hs.ElasticFaceLoss, {"plus": True}),
    "elastic cos plus": (hs.ElasticFaceLoss, {"kind": "cos", "plus": True}),
    "sphereface_r v0": (hs.SphereFaceRLoss, {"version": "v0"}),
    "sphereface_r v1": (hs.SphereFaceRLoss, {"version": "v1"}),
    "sphereface_r v2": (hs.SphereFaceRLoss, {"version": "v2"}),
    "sphereface_r v0 attached": (hs.SphereFaceRLoss, {"version": "v0", "detach_margin": False}),
    "sphereface_r v1 attached": (hs.SphereFaceRLoss, {"version": "v1", "detach_margin": False}),
    "sphereface_r v2 attached": (hs.SphereFaceRLoss, {"version": "v2", "detach_margin": False}),
    "sphereface2": (hs.SphereFace2Loss, {}),
    "uniface": (hs.UniFaceLoss, {}),
}
every_head = pytest.mark.parametrize("name", HEADS)
both_ways = pytest.mark.parametrize("stream", [False, 3])


def make(name, classes=C, size=D, **options):
    kind, own = HEADS[name]
    return kind(classes, size, **(own | options))


def literal(name, head, x, y, step=1):
    """The losses of the samples by the formula, of the head in training mode before its forward pass number `step`."""
    kind, own = HEADS[name]
    own = {key: value for key, value in own.items() if key != "detach_margin"}
    w = head.weight
    if kind is hs.AdaFaceLoss:
        n = x.detach().norm(dim=1).clamp(1e-3, 100)
        mean, std = 0.01 * n.mean() + 0.99 * head.norm_mean, 0.01 * n.std() + 0.99 * head.norm_std
        return reference.adaface(x, y, w, mean, std)
    if kind is hs.CurricularFaceLoss:
        own_cosines = reference.cosines(x, w).gather(1, y.unsqueeze(1)).detach()
        return reference.curricularface(x, y, w, 0.01 * own_cosines.mean() + 0.99 * head.t)
    if kind is hs.ElasticFaceLoss:
        drawn = normal_numbers(stable_hash(0, "ElasticFaceLoss"), torch.tensor(step), len(x))
        usual = {"arc": (0.5, 0.0175), "cos": (0.35, 0.02)}[head.kind]
        return reference.elasticface(x, y, w, usual[0] + (usual[1] if head.plus else 0.05) * drawn, **own)
    if kind is hs.SphereFaceRLoss:
        return reference.sphereface_r(x, y, w, detach=head.detach_margin, **own)
    if kind is hs.SphereFace2Loss:
        return reference.sphereface2(x, y, w, head.offset)
    if kind is hs.UniFaceLoss:
        return reference.uniface(x, y, w, -head.offset)
    return reference.magface(x, y, w)


def batch(dtype=F64, size=9):
    """Embeddings of lengths from 11 to 90."""
    lengths = torch.linspace(11, 90, size, dtype=F64).unsqueeze(1)
    x = torch.nn.functional.normalize(torch.randn(size, D, dtype=F64)) * lengths
    return x.to(dtype).requires_grad_(), torch.randint(C, (size,))


def gradients(loss, head, x):
    return torch.autograd.grad(loss, [x, *head.parameters()])


@pytest.mark.slow
@every_head
@both_ways
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_equals_the_formula_and_its_gradients(name, stream, dtype):
    tolerance = 1e-12 if dtype is F64 else 1e-6
    head = make(name, reduction="none", stream=stream, dtype=dtype)
    with torch.no_grad():
        head.weight[2] = -head.weight[1]
    exact = copy.deepcopy(head).double()
    x, y = batch(dtype)
    wide = x.detach().double().requires_grad_()
    for step in (1, 2):
        expected = literal(name, exact, wide, y, step)
        got = head(x, y)
        torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=10 * tolerance)
        pairs = zip(gradients(got.sum(), head, x), gradients(expected.sum(), exact, wide), strict=True)
        for ours, theirs in pairs:
            scale = theirs.abs().max().item()
            torch.testing.assert_close(ours.double(), theirs, rtol=10 * tolerance, atol=20 * tolerance * scale)
        exact.load_state_dict(head.state_dict())


@pytest.mark.slow
@every_head
@both_ways
def test_derivatives(name, stream):
    head = make(name, 4, 3, scale=6.0, stream=stream, dtype=F64, subcenters=2, bias=True).eval()
    head.detach_margin = False  # a detached margin's gradient is not that of the value
    x = 15 * torch.nn.functional.normalize(torch.randn(5, 3, dtype=F64)).requires_grad_()
    y, names = torch.tensor([0, 1, 2, 3, -100]), [key for key, _ in head.named_parameters()]

    def loss(x, *values):
        return torch.func.functional_call(head, dict(zip(names, values, strict=True)), (x, y))

    if name in ("adaface", "curricularface"):  # z and the threshold have no gradient
        head.h, head._label_cosines = 0.0, lambda *_: torch.full((5,), 0.3, dtype=F64)
    x = x.detach().requires_grad_()
    assert gradcheck(loss, (x, *head.parameters()), atol=1e-4)


@every_head
def test_reductions_and_weights(name):
    """Weights of classes and samples, ignored samples, energy, mined samples: all of the losses of the samples."""
    options = {"class_weight": torch.rand(C) + 0.1, "energy_weight": 0.3, "subcenters": 2, "dtype": F64}
    none, mean = make(name, reduction="none", **options), make(name, **options)
    mean.load_state_dict(none.state_dict())
    plain = make(name, reduction="none", subcenters=2, dtype=F64)
    plain.load_state_dict(none.state_dict())
    x, y = batch()
    y[4] = -100
    w = torch.rand(9, dtype=F64)
    factor = (w * none.class_weight.to(F64)[y.clamp(min=0)]) * (y >= 0)
    losses = none(x, y, sample_weight=w)
    none.energy_weight = mean.energy_weight = 0.0
    for head in (none, mean, plain):
        head.load_state_dict(plain.state_dict())
    bare = plain(x, y) if "plus" not in name else None  # which shares out the margins of all
    for head in (none, mean):
        head.load_state_dict(make(name, subcenters=2, dtype=F64).state_dict() | {"weight": plain.weight})
    without_energy = none(x, y, sample_weight=w)
    assert (losses - without_energy)[y >= 0].gt(0).all()
    assert losses[4] == without_energy[4] == 0
    if bare is not None:
        torch.testing.assert_close(without_energy, bare * factor)
    torch.testing.assert_close(mean(x, y, sample_weight=w), without_energy.sum() / factor.sum())
    mined = (torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2]))
    assert mean(x, y, mined).isfinite()


def hostile_cases(dtype):
    """10,000 embeddings (B, 6) with labels, and weights (8, 6): zero, tiny, huge, equal, opposite, close."""
    most, least = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    weight = torch.randn(8, 6)
    weight[1], weight[2], weight[3] = 0, 1e-30, weight[4]
    weight[5], weight[6] = -weight[4], 1e18
    labels = torch.randint(8, (10_000,))
    rows, own = torch.randn(10_000, 6).to(dtype), weight[labels].double().clamp(-most, most).to(dtype)
    kinds = [rows, own, -own, torch.zeros_like(rows), rows * least, rows.sign() * most, own + 1e-4 * rows, rows * 1e3]
    return torch.stack(kinds)[torch.arange(10_000) % len(kinds), torch.arange(10_000)], labels, weight


@pytest.mark.slow
@every_head
@pytest.mark.parametrize(("stream", "subcenters"), [(False, 1), (3, 2)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
def test_hostile_cases_are_finite(name, stream, dtype, subcenters):
    head = make(name, 8, 6, stream=stream, subcenters=subcenters, bias=True)
    x, y, weight = hostile_cases(dtype)
    with torch.no_grad():
        head.weight.copy_(weight if subcenters == 1 else torch.stack([weight, weight.flip(0)], 1))
    for start in range(0, 10_000, 500):
        rows, labels = x[start : start + 500].clone().requires_grad_(), y[start : start + 500]
        loss = head(rows, labels)
        loss.backward()
        assert loss.isfinite()
        assert rows.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in head.parameters())
    assert all(b.isfinite().all() for b in head.buffers())
    assert head.logits(x).isfinite().all()


@every_head
def test_very_long_embeddings_count_as_shorter_ones(name):
    head = make(name).eval()
    x, y = batch(torch.float32)
    torch.testing.assert_close(head(1e30 * x, y), head(1e4 * x, y), rtol=1e-4, atol=1e-4)


@every_head
def test_copies_continue_alike(name):
    head, (x, y) = make(name), batch(torch.float32)
    head(x, y)
    other, again = copy.deepcopy(head), make(name)
    again.load_state_dict(head.state_dict())
    for _ in range(3):
        loss = head(x, y)
        assert torch.equal(other(x, y), loss)
        assert torch.equal(again(x, y), loss)
    for key, value in head.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)


@every_head
def test_buffers_stand_still_in_eval_mode_and_without_gradients(name):
    head, (x, y) = make(name), batch(torch.float32)
    before = {key: value.clone() for key, value in head.named_buffers()}
    with torch.no_grad():
        head(x, y)
    head.eval()(x, y)
    assert all(torch.equal(value, before[key]) for key, value in head.named_buffers())
    head.train()(x, y)
    assert all(not torch.equal(value, before[key]) for key, value in head.named_buffers())


@pytest.mark.slow
@every_head
def test_compiled(name):
    torch._dynamo.reset()
    head, (x, y) = make(name, dtype=F64, subcenters=2, detach_margin=True), batch()
    other = copy.deepcopy(head)
    compiled = torch.compile(head, fullgraph=True, backend="eager")
    for _ in range(2):
        got, expected = compiled(x, y), other(x, y)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        for ours, theirs in zip(gradients(got, head, x), gradients(expected, other, x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


CONSTANT = ("sphereface2", "uniface", "elastic cos")  # margins without a gradient


@pytest.mark.parametrize("name", [name for name in HEADS if not name.startswith(CONSTANT)])
def test_a_detached_margin_has_the_gradient_of_the_plain_logit(name):
    """Where the probabilities are those of the margin, the target's logit moves as without it."""
    detached = make(name, detach_margin=True, dtype=F64, reduction="none").eval()
    attached = make(name, detach_margin=False, dtype=F64, reduction="none").eval()
    attached.load_state_dict(detached.state_dict())
    x, y = batch()
    one, other = detached(x, y), attached(x, y)
    torch.testing.assert_close(one, other)
    grads = [torch.autograd.grad(loss.sum(), x)[0] for loss in (one, other)]
    assert not torch.allclose(*grads, rtol=1e-3)


def test_statistics_of_small_and_ignored_batches():
    """One sample has no deviation, and ignored samples do not count."""
    head = hs.AdaFaceLoss(C, D)
    x = torch.ones(3, D)
    head(x[:1], torch.tensor([1]))
    assert head.norm_std == 100
    assert head.norm_mean.item() == pytest.approx(0.99 * 20 + 0.01 * math.sqrt(D))
    before = head.norm_mean.clone()
    head(x, torch.full((3,), -100))
    assert head.norm_mean == before
    two, three = hs.AdaFaceLoss(C, D), hs.AdaFaceLoss(C, D)
    x[2] *= 50
    two(x[:2], torch.tensor([1, 2]))
    three(x, torch.tensor([1, 2, -100]))
    assert two.norm_mean == three.norm_mean
    assert two.norm_std == three.norm_std


def test_magface_lengths_outside_of_the_range_come_back():
    head = hs.MagFaceLoss(C, D, dtype=F64)
    with torch.no_grad():
        head.weight.copy_(torch.eye(C, D))
    x = torch.eye(C, D, dtype=F64)[:2] + 0.3
    for length, sign in ((2.0, -1), (1e3, 1), (1e25, 1)):  # descent makes the short longer and the long shorter
        rows = (x / x.norm(dim=1, keepdim=True) * length).requires_grad_()
        (grad,) = torch.autograd.grad(head(rows, torch.tensor([0, 1])), rows)
        assert ((grad * rows.detach() / length).sum(1).sign() == sign).all()


def test_normal_numbers_are_normal_and_depend_on_seed_and_step():
    drawn = normal_numbers(3, torch.tensor(5), 100_000)
    assert drawn.dtype is F64
    assert abs(drawn.mean()) < 0.02
    assert abs(drawn.std() - 1) < 0.01
    assert abs((drawn**4).mean() - 3) < 0.1
    assert abs((drawn[1:] * drawn[:-1]).mean()) < 0.02
    for key, step in ((3, 6), (4, 5), (2**64 - 1, 5)):
        assert abs((drawn * normal_numbers(key, torch.tensor(step), 100_000)).mean()) < 0.02
    assert torch.equal(normal_numbers(3, torch.tensor(5), 100_000), drawn)


@pytest.mark.parametrize("classes", [2, 3, 10, 10_000_000])
def test_sphereface2_starts_balanced(classes):
    lam, r, m, t = 0.7, 40.0, 0.4, 3.0
    b = balanced_offset(classes, m, r, lam, t)
    g = 2 * 0.5**t - 1
    at_label = math.log(lam) - math.log1p(math.exp(r * (g - m) + b))  # log of λ·σ(−(a_y + b))
    a = r * (g + m) + b
    at_others = math.log(0.3 * (classes - 1)) + a - (math.log1p(math.exp(a)) if a < 500 else a)
    assert at_label == pytest.approx(at_others, abs=1e-9)


def test_uniface_starts_at_the_papers_threshold():
    assert hs.UniFaceLoss(50, 3).offset.item() == pytest.approx(-math.log(500))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hs.SphereFace2Loss(5, 3, label_smoothing=0.1), "label_smoothing must be 0 for SphereFace2Loss"),
        (lambda: hs.UniFaceLoss(5, 3, label_smoothing=0.1), "label_smoothing must be 0 for UniFaceLoss"),
        (lambda: hs.SphereFace2Loss(5, 3, positive_weight=1.0), "positive_weight must be > 0 and < 1, got 1.0"),
        (lambda: hs.SphereFaceRLoss(5, 3, version="v3"), "version must be one of v0, v1, v2"),
        (lambda: hs.SphereFaceRLoss(5, 3, scale=0.0), "scale must be finite and > 0"),
        (lambda: hs.ElasticFaceLoss(5, 3, kind="sin"), "kind must be one of arc, cos"),
        (lambda: hs.ElasticFaceLoss(5, 3, margin=28.6), "radians, not degrees"),
        (lambda: hs.ElasticFaceLoss(5, 3, std=-1), "std must be finite and >= 0"),
        (lambda: hs.MagFaceLoss(5, 3, norm_range=(10, 5)), "norm_range must be two growing lengths"),
        (lambda: hs.AdaFaceLoss(5, 3, margin=2.0), "margin must be finite and >= 0 and <= 1"),
        (lambda: hs.CurricularFaceLoss(5, 3, margin=-1), "margin must be an angle in radians"),
        (lambda: hs.ArcFaceLoss(5, 3, subcenters=0), "subcenters must be >= 1, got 0"),
        (lambda: hs.ArcFaceLoss(5, 3, detach_margin=1), "detach_margin must be True or False, got 1"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
