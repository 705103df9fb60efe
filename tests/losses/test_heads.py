"""Angular losses against the formulas sample by sample."""

import math

import pytest
import torch
from pytorch_metric_learning import losses as pml
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import hypersphere as hs
from hypersphere.losses import MARGINS, sphereface_annealing
from tests import reference
from tests.sphere_nets import check_derivatives

F64 = torch.float64
HEADS = {
    "w": lambda *a, **k: hs.WSoftmaxLoss(*a, **k),
    "w linear": lambda *a, **k: hs.WSoftmaxLoss(*a, similarity="linear", **k),
    "w learnable": lambda *a, **k: hs.WSoftmaxLoss(*a, similarity="learnable", **k),
    "ga linear": lambda *a, **k: hs.GASoftmaxLoss(*a, **k),
    "ga sigmoid": lambda *a, **k: hs.GASoftmaxLoss(*a, similarity="sigmoid", margin=2.5, **k),
    "ga learnable": lambda *a, **k: hs.GASoftmaxLoss(*a, similarity="learnable", margin=3, scale=8.0, **k),
    "a": lambda *a, **k: hs.ASoftmaxLoss(*a, **k),
    "a plain": lambda *a, **k: hs.ASoftmaxLoss(*a, margin=3, annealing=False, **k),
    "s": lambda *a, **k: hs.SSoftmaxLoss(*a, **k),
    "s sigmoid": lambda *a, **k: hs.SSoftmaxLoss(*a, similarity="sigmoid(0.7)", scale=10.0, **k),
    "am": lambda *a, **k: hs.AMSoftmaxLoss(*a, **k),
    "arc": lambda *a, **k: hs.ArcFaceLoss(*a, **k),
}
every_head = pytest.mark.parametrize("name", HEADS)


def literal_losses(head, x, y, **options):
    """The literal losses of whatever head is given (the first forward pass of it, if it anneals)."""
    name, numbers = (
        ("learnable", ()) if isinstance(head.similarity, nn.Module) else hs.similarity.parse(repr(head.similarity))
    )

    def g(theta):
        return reference.SIMILARITIES[name](theta, *map(float, numbers))

    margin = None if head.margin_kind == "none" else (lambda t: reference.MARGINS[head.margin_kind](t, head.margin, g))
    lam = None if head.annealing is None else reference.annealed_lambda(1)
    weight = head.weight.detach()
    return reference.softmax_losses(
        x, y, weight, g=g, margin=margin, scale=head.scale, lam=lam, bias=head.bias, **options
    )


def test_every_margin_has_a_literal_formula():
    assert set(MARGINS) == set(reference.MARGINS)


@every_head
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_formula(name, bias):
    head = HEADS[name](7, 5, bias=bias, reduction="none", dtype=F64)
    if bias:
        nn.init.normal_(head.bias)
    x, y = 3 * torch.randn(12, 5, dtype=F64), torch.randint(7, (12,))
    assert torch.allclose(head(x, y), literal_losses(head, x, y), rtol=0, atol=1e-10)


@pytest.mark.slow
@every_head
def test_derivatives(name):
    head = HEADS[name](4, 3, bias=True, dtype=F64).eval()  # eval: the annealing stands still
    check_derivatives(head, torch.randn(5, 3, dtype=F64), torch.tensor([0, 1, 2, 3, 0]), atol=1e-4)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_many_logits_have_the_loss_and_derivatives_of_few(monkeypatch):
    """Above a number of logits another cross-entropy is used, which needs less memory."""
    head, x = hs.ArcFaceLoss(4, 3, dtype=F64, scale=4.0), torch.randn(5, 3, dtype=F64, requires_grad=True)
    y = torch.tensor([0, 1, 2, -100, 0])

    def f(x, weight):
        return torch.func.functional_call(head, {"weight": weight}, (x, y))

    def results():
        loss = f(x, head.weight)
        samples = torch.func.vmap(lambda one, label: head(one[None], label[None]))(x, y)
        tangents = torch.func.jvp(f, (x, head.weight), (torch.ones_like(x), torch.ones_like(head.weight)))
        return loss, *torch.autograd.grad(loss, (x, head.weight)), samples, *tangents

    few = results()
    monkeypatch.setattr("hypersphere.losses.from_logits._MANY", 0)
    torch.testing.assert_close(results(), few)
    assert gradcheck(f, (x, head.weight))
    assert gradgradcheck(f, (x, head.weight), atol=1e-4)


@pytest.mark.parametrize("m", [1, 1.5, 4])
def test_psi_is_a_softmax_at_known_angles_continuous_and_falling(m):
    theta = torch.linspace(0, math.pi, 4001, dtype=F64)
    psi = MARGINS["multiplicative"](theta, m, torch.cos)
    assert (psi.diff() <= 1e-12).all()
    assert psi.diff().abs().max() < 1.5 * m * math.pi / 4000  # no jumps
    if m == int(m):
        literal = torch.stack([reference.a_softmax_psi(t, int(m)) for t in theta[1:-1:10]])
        assert torch.allclose(psi[1:-1:10], literal, atol=1e-12)


@pytest.mark.parametrize("g", [name for name in hs.similarity.SIMILARITIES if name != "learnable"])
@pytest.mark.parametrize("kind", MARGINS)
def test_every_margin_equals_its_formula_for_every_g(kind, g):
    similarity, m = hs.similarity.resolve(g, 1), 1.0 if kind != "multiplicative" else 2.7
    theta = (torch.rand(50, dtype=F64) * (math.pi - 0.02) + 0.01).requires_grad_()

    def f(theta):
        return MARGINS[kind](theta, m, lambda angle: similarity.at_angle(angle, torch.zeros(50, dtype=torch.int64)))

    expected = torch.stack([reference.MARGINS[kind](t, m, reference.SIMILARITIES[g]) for t in theta])
    assert torch.allclose(f(theta), expected, atol=1e-10)
    assert gradcheck(f, (theta,))
    assert (f(theta.sort().values).diff() <= 1e-9).all()  # a larger angle never earns a larger logit
    assert (f(theta) <= reference.SIMILARITIES[g](theta) + 1e-9).all()  # and a margin only makes it harder


def test_a_similarity_without_a_form_in_the_angle_uses_its_cosine():
    head = hs.GASoftmaxLoss(6, 4, similarity=lambda c: c**3, margin=2, annealing=False, reduction="none", dtype=F64)
    x, y = torch.randn(9, 4, dtype=F64), torch.randint(6, (9,))

    def g(theta):
        return theta.cos() ** 3

    expected = reference.softmax_losses(x, y, head.weight.detach(), g=g, margin=lambda t: reference.psi(t, 2, g))
    assert torch.allclose(head(x, y), expected, atol=1e-10)


def test_learnable_has_a_k_for_every_class():
    head = hs.GASoftmaxLoss(3, 4, similarity="learnable", margin=2, annealing=False, reduction="none", dtype=F64)
    with torch.no_grad():
        head.similarity.log_k.copy_(torch.tensor([0.2, 0.5, 0.9], dtype=F64).log())
    x, y = torch.randn(6, 4, dtype=F64), torch.tensor([0, 1, 2, 0, 1, 2])
    for i in range(6):
        k = [0.2, 0.5, 0.9]
        theta = [reference.angle(x[i], w) for w in head.weight.detach()]
        values = [reference.sigmoid(t, kj) for t, kj in zip(theta, k, strict=True)]
        values[y[i]] = reference.psi(theta[y[i]], 2, lambda t, kj=k[y[i]]: reference.sigmoid(t, kj))
        logits = x[i].norm() * torch.stack(values)
        assert torch.allclose(head(x, y)[i], -torch.log_softmax(logits, 0)[y[i]], atol=1e-10)


# ---- singular points and dtypes


@every_head
def test_finite_where_an_embedding_lies_on_its_class_weight(name, device):
    head = HEADS[name](5, 6, device=device)
    x = torch.cat([head.weight, -head.weight, torch.zeros(5, 6, device=device)]).detach().requires_grad_()
    y = torch.arange(5, device=device).repeat(3)
    loss = head(x, y)
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() < 1e3
    assert all(p.grad.isfinite().all() for p in head.parameters())


@every_head
def test_zero_class_weight(name):
    head = HEADS[name](5, 6)
    with torch.no_grad():
        head.weight[2] = 0
    x = torch.randn(10, 6, requires_grad=True)
    head(x, torch.arange(10) % 5).backward()
    assert not head.weight.grad[2].any()
    assert all(t.grad.isfinite().all() for t in (x, *head.parameters()))


@every_head
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("dtype", "weights"), [(torch.float16, torch.float32), (torch.float32, torch.bfloat16), (F64, F64)]
)
def test_loss_and_logits_have_the_dtype_of_the_embeddings(name, dtype, weights, autocast):
    """Whatever the dtype of the weights; computed in at least float32, which is the dtype under autocast."""
    head = HEADS[name](5, 6, bias=True, energy_weight=0.1, dtype=weights).eval()
    exact = HEADS[name](5, 6, bias=True, energy_weight=0.1, dtype=F64).eval()
    exact.load_state_dict(head.state_dict())
    x, y = torch.randn(8, 6).to(dtype).requires_grad_(), torch.randint(5, (8,))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss, logits = head(x, y), head.logits(x)
    assert loss.dtype is (torch.promote_types(dtype, torch.float32) if autocast else dtype)
    assert autocast or logits.dtype is dtype
    rounding = max(torch.finfo(dtype).eps, 1e-14 if weights is F64 else 1e-5)  # a learned k has the weights' dtype
    torch.testing.assert_close(loss.double(), exact(x.double(), y), rtol=rounding, atol=4 * rounding)
    loss.backward()
    assert x.grad.dtype is dtype
    assert head.weight.grad.dtype is weights
    assert all(p.grad.isfinite().all() for p in head.parameters())


def test_a_half_precision_loss_does_not_overflow():
    head = hs.ArcFaceLoss(5, 6, reduction="sum")
    x = torch.randn(2000, 6, dtype=torch.float16, requires_grad=True)
    loss = head(x, torch.zeros(2000, dtype=torch.int64))
    assert loss == torch.finfo(torch.float16).max
    loss.backward()
    assert x.grad.norm() > 1


# ---- annealing


def test_annealing_counts_training_steps_only():
    head = hs.ASoftmaxLoss(4, 3)
    x, y = torch.randn(5, 3), torch.randint(4, (5,))
    assert head.state_dict()["step"] == 0
    assert head.step.dtype is torch.int64
    head(x, y)
    head(x, y)
    with torch.no_grad():
        head(x, y)
    head.eval()(x, y)
    assert head.step == 2
    other = hs.ASoftmaxLoss(4, 3)
    other.load_state_dict(head.state_dict())
    assert other.step == 2
    assert torch.equal(other.eval()(x, y), head(x, y))


@pytest.mark.parametrize("head", [hs.GASoftmaxLoss, hs.SphereFacePlusLoss])
def test_annealing_on_and_off_load_each_other(head):
    on, off = head(4, 3, margin=2), head(4, 3, margin=2, annealing=False)
    on(torch.randn(5, 3), torch.randint(4, (5,)))
    assert set(on.state_dict()) == set(off.state_dict()) == {"weight", "step"}
    off.load_state_dict(on.state_dict())
    assert off.step == 1
    head(4, 3, margin=2).load_state_dict(off.state_dict())
    older = {"weight": torch.eye(4, 3)}  # of a head without annealing, which had no step
    for loss in (on, off):
        loss.load_state_dict(older)
        assert loss.step == 1
        assert torch.equal(loss.weight, older["weight"])
    assert set(older) == {"weight"}
    nn.Sequential(head(4, 3, margin=2)).load_state_dict({"0.weight": torch.eye(4, 3)})


def test_annealing_is_the_schedule_of_sphereface():
    for n in (1, 2, 100, 5000):
        assert sphereface_annealing(torch.tensor(n)).item() == pytest.approx(reference.annealed_lambda(n))


def test_annealing_by_a_callable():
    seen = []

    def schedule(n):
        seen.append((n.item(), n.dim()))
        return 3.0

    head = hs.ASoftmaxLoss(4, 3, annealing=schedule, reduction="none", dtype=F64)
    x, y = torch.randn(5, 3, dtype=F64), torch.randint(4, (5,))
    loss = head(x, y)
    expected = reference.softmax_losses(
        x, y, head.weight.detach(), margin=lambda t: reference.a_softmax_psi(t, 4), lam=3.0
    )
    assert torch.allclose(loss, expected, atol=1e-10)
    head(x, y)
    assert seen == [(1, 0), (2, 0)]


# ---- weights, smoothing, reductions


@every_head
def test_class_weight_and_label_smoothing(name):
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=F64)
    head = HEADS[name](4, 3, class_weight=weights, label_smoothing=0.1, dtype=F64)
    x, y = torch.randn(9, 3, dtype=F64), torch.randint(4, (9,))
    expected = literal_losses(head, x, y, smoothing=0.1, cw=weights).sum() / weights[y].sum()
    assert torch.allclose(head(x, y), expected, atol=1e-10)
    assert "class_weight" not in head.state_dict()


def test_ignored_samples_and_sample_weights():
    x, y = torch.randn(6, 3, dtype=F64), torch.tensor([0, 1, -100, 2, -100, 3])
    w = torch.tensor([1.0, 2.0, 7.0, 0.5, 1.0, 0.0], dtype=F64)
    options = {"dtype": F64, "class_weight": [1.0, 2.0, 3.0, 4.0]}
    none, mean, total = (hs.ArcFaceLoss(4, 3, reduction=r, **options) for r in ("none", "mean", "sum"))
    for head in (mean, total):
        head.load_state_dict(none.state_dict())
    losses = none(x, y, sample_weight=w)
    assert losses[2] == losses[4] == losses[5] == 0
    counted = y >= 0
    plain = none(x[counted], y[counted])
    assert torch.allclose(losses[counted], plain * w[counted])
    assert torch.allclose(total(x, y, sample_weight=w), losses.sum())
    share = (torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=F64)[y[counted]] * w[counted]).sum()
    assert torch.allclose(mean(x, y, sample_weight=w), losses.sum() / share)


def test_no_sample_counts():
    head = hs.ASoftmaxLoss(4, 3)
    x = torch.randn(2, 3, requires_grad=True)
    loss = head(x, torch.tensor([-100, -100]))
    loss.backward()
    assert loss == 0
    assert not x.grad.any()
    assert head(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)) == 0


def test_indices_tuple_weighs_as_pytorch_metric_learning_does():
    ours = hs.AMSoftmaxLoss(5, 4, reduction="none")
    x, y = torch.randn(6, 4), torch.randint(5, (6,))
    mined = (torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2]), torch.tensor([3, 0, 0]))
    from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_weights

    expected = ours(x, y) * convert_to_weights(mined, y, dtype=torch.float32)
    assert torch.allclose(ours(x, y, mined), expected)
    theirs = pml.CosFaceLoss(5, 4, margin=0.35, scale=30)
    mean = hs.AMSoftmaxLoss(5, 4)
    mean.load_state_dict(ours.state_dict())
    theirs.W.data.copy_(ours.weight.detach().T)
    assert torch.allclose(mean(x, y, mined), theirs(x, y, mined), rtol=1e-5)
    empty = tuple(torch.zeros(0, dtype=torch.int64) for _ in range(3))
    assert torch.equal(ours(x, y, empty), ours(x, y))


def test_logits_have_no_margin():
    x = torch.randn(5, 6, dtype=F64)
    for head in (hs.ArcFaceLoss(4, 6, dtype=F64, bias=True), hs.AMSoftmaxLoss(4, 6, dtype=F64)):
        cosines = reference.sphere_linear(x, head.weight.detach())
        assert torch.allclose(head.logits(x), head.scale * cosines, atol=1e-10)
    head = hs.GASoftmaxLoss(4, 6, dtype=F64)
    expected = x.norm(dim=1, keepdim=True) * reference.sphere_linear(x, head.weight.detach(), g=reference.linear)
    assert torch.allclose(head.logits(x), expected, atol=1e-10)


# ---- bad input


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: hs.WSoftmaxLoss(1, 3), ValueError, "num_classes must be >= 2, got 1"),
        (lambda: hs.WSoftmaxLoss(2.0, 3), TypeError, "num_classes must be an int, got 2.0"),
        (
            lambda: hs.WSoftmaxLoss(3, 3, similarity="cos"),
            ValueError,
            "unknown similarity 'cos', did you mean 'cosine'",
        ),
        (lambda: hs.ASoftmaxLoss(3, 3, margin=0.5), ValueError, "margin must be finite and >= 1, got 0.5.*factor"),
        (
            lambda: hs.AMSoftmaxLoss(3, 3, margin=2),
            ValueError,
            "margin must be finite and >= 0 and <= 1, got 2.*cosine",
        ),
        (lambda: hs.ArcFaceLoss(3, 3, margin=28.6), ValueError, "radians.*28.6 degrees are 0.499"),
        (lambda: hs.ArcFaceLoss(3, 3, margin=-0.1), ValueError, "radians in \\[0, π\\), got -0.1"),
        (lambda: hs.ArcFaceLoss(3, 3, scale=0), ValueError, "scale must be finite and > 0"),
        (lambda: hs.SSoftmaxLoss(3, 3, scale=None), TypeError, "scale must be a number, got None"),
        (lambda: hs.ArcFaceLoss(3, 3, label_smoothing=1.5), ValueError, "label_smoothing"),
        (
            lambda: hs.ArcFaceLoss(3, 3, reduction="avg"),
            ValueError,
            "reduction must be one of mean, sum, none; got 'avg'",
        ),
        (lambda: hs.ArcFaceLoss(3, 3, class_weight=[1.0]), ValueError, "class_weight must be 3 finite numbers >= 0"),
        (lambda: hs.ASoftmaxLoss(3, 3, annealing=5), TypeError, "annealing must be True, False or a callable"),
        (lambda: hs.ArcFaceLoss(3, 3, class_weight="abc"), ValueError, "class_weight must be 3 finite numbers"),
        (lambda: hs.ArcFaceLoss(3, 3, energy_weight=-0.1), ValueError, "energy_weight"),
        (lambda: hs.ArcFaceLoss(3, 3, energy_s=math.inf), ValueError, "energy_s"),
        (lambda: hs.ArcFaceLoss(3, 3, ignore_index=None), TypeError, "ignore_index must be an int, got None"),
        (lambda: hs.ArcFaceLoss(3, 3, dtype="float32"), TypeError, "dtype must be a floating point dtype"),
        (
            lambda: hs.losses.AngularSoftmaxLoss(3, 3, margin=0.5),
            TypeError,
            "margin must be None or \\(name, number\\)",
        ),
        (
            lambda: hs.losses.AngularSoftmaxLoss(3, 3, margin=("arc", 0.5)),
            ValueError,
            "margin must be one of multiplicative",
        ),
        (
            lambda: hs.losses.AngularSoftmaxLoss(3, 3, margin=("additive_angle", "x")),
            TypeError,
            "margin must be a number",
        ),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (torch.randn(2, 3), torch.tensor([0, 4]), ValueError, "labels must be in \\[0, 3\\] or -100.*got 4"),
        (torch.randn(2, 3), torch.tensor([0, -1]), ValueError, "labels must be in .*got -1"),
        (torch.randn(2, 3), torch.tensor([0.0, 1.0]), TypeError, "labels must be an int64 tensor, got torch.float32"),
        (torch.randn(2, 3), [0, 1], TypeError, "labels must be an int64 tensor, got list"),
        (torch.randn(2, 3), torch.tensor([0]), ValueError, "labels must be \\(2,\\), got \\(1,\\)"),
        (torch.randn(2, 5), torch.tensor([0, 1]), ValueError, "embeddings must be \\(B, 3\\), got \\(2, 5\\)"),
        (torch.randn(3), torch.tensor([0, 1]), ValueError, "embeddings must be \\(B, 3\\)"),
        (torch.ones(2, 3, dtype=torch.int64), torch.tensor([0, 1]), TypeError, "embeddings must have a floating"),
    ],
)
def test_bad_batches(x, y, error, message):
    with pytest.raises(error, match=message):
        hs.ArcFaceLoss(4, 3)(x, y)


def test_bad_sample_weight():
    with pytest.raises(ValueError, match="sample_weight must be a tensor of shape \\(2,\\), got shape \\(3,\\)"):
        hs.ArcFaceLoss(4, 3)(torch.randn(2, 3), torch.tensor([0, 1]), sample_weight=torch.ones(3))


def test_bad_indices_tuple():
    head, x, y = hs.ArcFaceLoss(4, 3), torch.randn(2, 3), torch.tensor([0, 1])
    with pytest.raises(TypeError, match="indices_tuple must be None or a tuple of index tensors, got 5"):
        head(x, y, 5)
    with pytest.raises(ValueError, match="indices_tuple must hold indices below 2, got 7"):
        head(x, y, (torch.tensor([0]), torch.tensor([7])))


def test_arcface_refuses_a_margin_of_pi():
    with pytest.raises(ValueError, match="margin"):
        hs.ArcFaceLoss(3, 4, margin=math.pi)
