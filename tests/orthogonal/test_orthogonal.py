"""Orthogonal and generalized matrices against the loops of reference_orthogonal: values, gradients, hard points."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from hypersphere import orthogonal
from hypersphere.orthogonal import ORTHOGONALIZERS
from tests import reference_orthogonal as reference
from tests.rotated_nets import error

pytestmark = pytest.mark.slow

PUBLIC = ["gram_schmidt", "householder", "givens", "lowdin", "canonical", "cayley", "exponential"]
SKEW = ["cayley", "exponential"]  # packed triangles in the table
FACTORED = ["gram_schmidt", "householder", "lowdin"]  # smooth maps of an invertible matrix
SAME = {"modified_gram_schmidt": "gram_schmidt", "iterative_gram_schmidt": "gram_schmidt", "givens": "householder"}
MATRICES = list(reference.MATRICES)
METHODS = [*MATRICES, "network"]
ONCE = [name for name in METHODS if name not in SAME]
OWN_CODE = [*FACTORED, "canonical", *SKEW, "unconstrained", "positive_definite", "network"]  # not only P, masked


def normal(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype)


def parameters(name, m, blocks=2, dtype=torch.float64):
    return normal(blocks, *ORTHOGONALIZERS[name].shape(m), dtype=dtype)


def aligned(columns, like):
    """Eq. 16 leaves the signs of its columns open."""
    return columns * (columns * like).sum(-2, keepdim=True).sign().detach()


def literal(name, p, m, like):
    """R of one block's parameter."""
    matrix = reference.MATRICES[name](reference.unpack(p, m) if name in SKEW else p)
    return aligned(matrix, like) if name == "canonical" else matrix


def literal_apply(name, p, v):
    """R v for every row v of every block."""
    if name == "network":
        return torch.stack([reference.network(*block) for block in zip(p, v, strict=True)])
    made = ORTHOGONALIZERS[name].matrix(p.detach())
    m = v.shape[-1]
    matrices = [literal(name, block, m, like) for block, like in zip(p, made, strict=True)]
    rows = zip(matrices, v, strict=True)
    return torch.stack([torch.stack([r @ row for row in block]) if len(block) else block for r, block in rows])


def gradients(output, *inputs):
    """Of a fixed functional, exact in every dtype; zero for what the output does not depend on."""
    weight = torch.randint(-3, 4, output.shape, generator=torch.Generator().manual_seed(1))
    total = (output * weight.to(output.dtype)).sum()
    if not total.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    return torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)


def close(actual, expected, tolerance=1e-10):
    assert actual.dtype == expected.dtype
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale)


def packed(a):
    rows, columns = torch.triu_indices(a.shape[-1], a.shape[-1], 1)
    return a[..., rows, columns]


# values and gradients


def test_the_table_holds_every_method_under_its_name():
    assert sorted(ORTHOGONALIZERS) == sorted(METHODS)
    for name in METHODS:
        assert ORTHOGONALIZERS[name].name == name


@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("name", PUBLIC)
def test_public_function_equals_the_literal_algorithm(name, m):
    u = normal(3, m, m).requires_grad_()
    r = getattr(orthogonal, name)(u)
    expected = torch.stack([reference.ORTHOGONAL[name](one) for one in u])
    expected = aligned(expected, r) if name == "canonical" else expected
    close(r, expected)
    close(*gradients(r, u), *gradients(expected, u), 1e-9)


@pytest.mark.parametrize("m", [2, 5])
@pytest.mark.parametrize("name", MATRICES)
def test_matrix_equals_the_literal_algorithm(name, m):
    p = parameters(name, m).requires_grad_()
    r = ORTHOGONALIZERS[name].matrix(p)
    expected = torch.stack([literal(name, one, m, like) for one, like in zip(p, r.detach(), strict=True)])
    close(r, expected)
    close(*gradients(r, p), *gradients(expected, p), 1e-9)


@pytest.mark.parametrize(
    ("name", "m", "n"),
    [(name, 5, 20) for name in METHODS] + [(name, m, n) for name in OWN_CODE for m, n in ((1, 1), (5, 0), (12, 1))],
)
def test_apply_equals_the_literal_map(name, m, n):
    p, v = parameters(name, m).requires_grad_(), normal(2, n, m).requires_grad_()
    w = ORTHOGONALIZERS[name].apply(p, v)
    expected = literal_apply(name, p, v)
    close(w, expected)
    for grad, literal_grad in zip(gradients(w, p, v), gradients(expected, p, v), strict=True):
        close(grad, literal_grad, 1e-9)


@pytest.mark.parametrize("name", OWN_CODE)
def test_only_what_needs_a_gradient_gets_one(name):
    p, v = parameters(name, 4), normal(2, 5, 4)
    apply = ORTHOGONALIZERS[name].apply
    both_p, both_v = p.clone().requires_grad_(), v.clone().requires_grad_()
    of_p, of_v = gradients(apply(both_p, both_v), both_p, both_v)
    close(*gradients(apply(both_p, v), both_p), of_p, 1e-12)
    close(*gradients(apply(p, both_v), both_v), of_v, 1e-12)
    assert not apply(p, v).requires_grad


@pytest.mark.parametrize("name", SAME)
def test_aliases_are_the_same_map(name):
    one, other = ORTHOGONALIZERS[SAME[name]], ORTHOGONALIZERS[name]
    p, v = normal(2, 6, 6), normal(2, 3, 6)
    assert torch.equal(one.matrix(p), other.matrix(p))
    assert torch.equal(one.apply(p, v), other.apply(p, v))


# signs


@pytest.mark.parametrize("m", [1, 4, 7])
def test_determinants(m):
    u = normal(8, m, m)
    sign = torch.linalg.det(u).sign()
    assert m == 1 or len(sign.unique()) == 2  # both kinds of start are here
    for name in ("gram_schmidt", "lowdin"):
        close(torch.linalg.det(getattr(orthogonal, name)(u)), sign)
    for name in ("householder", "givens", "cayley", "exponential"):
        close(torch.linalg.det(getattr(orthogonal, name)(u)), torch.ones_like(sign))


@pytest.mark.parametrize("m", [1, 4, 7])
def test_householder_is_givens_and_the_papers_up_to_the_last_sign(m):
    u = normal(8, m, m)
    r = orthogonal.householder(u)
    close(r, orthogonal.givens(u))
    paper = torch.stack([reference.paper_householder(one) for one in u])
    close(r[..., :-1], paper[..., :-1])
    close(r[..., -1], (-1) ** (m - 1) * paper[..., -1])
    gram_schmidt = orthogonal.gram_schmidt(u)
    close(r[..., :-1], gram_schmidt[..., :-1])
    close(r[..., -1], gram_schmidt[..., -1] * torch.linalg.det(u).sign()[:, None])


def test_quarter_turn():
    quarter = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    angle = torch.tensor([[0.0, torch.pi / 2], [9.0, 9.0]], dtype=torch.float64)
    close(orthogonal.exponential(angle), quarter)
    close(orthogonal.cayley((angle / 2).tan()), quarter)  # no ½: tan(θ/2) turns by θ
    x, y = torch.eye(2).double()
    close(ORTHOGONALIZERS["exponential"].apply(angle[:1, 1:], torch.stack([x, y])[None]), torch.stack([-y, x])[None])


# hard points


def turned(values):
    """An orthogonal matrix times diag(values) times another."""
    m = len(values)
    return reference.gram_schmidt(normal(m, m)) @ torch.diag(torch.tensor(values).double())


def pairs(angles, zeros=0):
    """A skew matrix with these angles, in a random basis."""
    m = 2 * len(angles) + zeros
    a = torch.zeros(m, m, dtype=torch.float64)
    for i, angle in enumerate(angles):
        a[2 * i, 2 * i + 1], a[2 * i + 1, 2 * i] = angle, -angle
    q = reference.gram_schmidt(normal(m, m))
    return q @ a @ q.T


FULL_POINTS = {
    "identity": lambda: torch.eye(4).double(),
    "minus identity": lambda: -torch.eye(3).double(),
    "orthogonal": lambda: turned([1.0, 1, 1, 1]),
    "nearly repeated": lambda: turned([1, 1, 1 + 1e-9, 2]),
    "repeated twice": lambda: turned([3.0, 3, 0.5, 0.5]),
    "one by one": lambda: torch.tensor([[-2.0]]).double(),
    "permutation": lambda: torch.eye(4).double()[[2, 0, 3, 1]],
    "triangular": lambda: torch.ones(4, 4).double().triu(),
}
SKEW_POINTS = {
    "zero": lambda: torch.zeros(4, 4).double(),
    "zero, odd": lambda: torch.zeros(5, 5).double(),
    "repeated pairs": lambda: pairs([1.3, 1.3]),
    "nearly repeated pairs": lambda: pairs([1.3, 1.3 + 1e-9]),
    "three zeros": lambda: pairs([0.7], zeros=3),
    "tiny pairs": lambda: pairs([1e-9, 1e-5], zeros=1),
    "half turns": lambda: pairs([torch.pi, torch.pi], zeros=1),
    "whole turns": lambda: pairs([2 * torch.pi, 4 * torch.pi]),
    "large, odd": lambda: pairs([50.0, 31.0, 4.0], zeros=1),
    "large, repeated": lambda: pairs([50.0, 50.0], zeros=1),
    "one by one": lambda: torch.zeros(1, 1).double(),
}
HARD_POINTS = [(name, point) for name in FACTORED for point in FULL_POINTS]
HARD_POINTS += [(name, point) for name in SKEW for point in SKEW_POINTS]


def hard(name, point):
    """The public function's matrix, and the table's parameter for it."""
    matrix = SKEW_POINTS[point]() if name in SKEW else FULL_POINTS[point]()
    return matrix, (packed(matrix) if name in SKEW else matrix)[None]


@pytest.mark.parametrize(("name", "point"), HARD_POINTS)
def test_gradcheck_at_hard_points(name, point):
    matrix, p = hard(name, point)
    v = normal(1, 2, len(matrix))
    checked = {"atol": 1e-6, "rtol": 1e-5}
    assert gradcheck(getattr(orthogonal, name), matrix.requires_grad_(), **checked)
    assert gradcheck(ORTHOGONALIZERS[name].apply, (p.requires_grad_(), v.requires_grad_()), **checked)


# where the loops have no value or no gradient: a column that is done, two zeros to turn, equal singular values
LITERAL_FAILS = {
    "householder": ["identity", "minus identity", "permutation", "triangular"],
    "lowdin": list(FULL_POINTS),
}


@pytest.mark.parametrize(
    ("name", "point"), [(name, point) for name, point in HARD_POINTS if point not in LITERAL_FAILS.get(name, [])]
)
def test_hard_points_equal_the_literal_algorithm(name, point):
    matrix, p = hard(name, point)
    p.requires_grad_()
    v = normal(1, 6, len(matrix)).requires_grad_()
    w, expected = ORTHOGONALIZERS[name].apply(p, v), literal_apply(name, p, v)
    close(w, expected)
    for grad, literal_grad in zip(gradients(w, p, v), gradients(expected, p, v), strict=True):
        close(grad, literal_grad, 1e-9)


@pytest.mark.parametrize("point", FULL_POINTS)
def test_lowdin_at_hard_points_is_the_polar_factor(point):
    """R·S = U with S = VΣVᵀ; its gradient solves S·X + X·S = RᵀG − GᵀR, here entry by entry (a Kronecker system)."""
    u = FULL_POINTS[point]().requires_grad_()
    r = orthogonal.lowdin(u)
    s = r.detach().mT @ u.detach()
    close(s, s.mT)
    assert torch.linalg.eigvalsh(s).min() > 0
    assert error(r) < 1e-13
    g, one = normal(*u.shape), torch.eye(len(u)).double()
    q = r.detach()
    x = torch.linalg.solve(torch.kron(s, one) + torch.kron(one, s), (q.mT @ g - g.mT @ q).flatten()).view_as(u)
    close(torch.autograd.grad(r, u, g)[0], q @ x, 1e-12)


@pytest.mark.parametrize("name", ONCE)
def test_gradcheck(name):
    p, v = parameters(name, 3).requires_grad_(), normal(2, 2, 3).requires_grad_()
    assert gradcheck(ORTHOGONALIZERS[name].apply, (p, v), atol=1e-6, rtol=1e-5)
    if name != "network":
        assert gradcheck(ORTHOGONALIZERS[name].matrix, p, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ONCE)
def test_second_derivatives(name):
    p, v = parameters(name, 3, 1).requires_grad_(), normal(1, 2, 3).requires_grad_()
    assert gradgradcheck(ORTHOGONALIZERS[name].apply, (p, v), atol=1e-5, rtol=1e-4)
    if name in PUBLIC:
        assert gradgradcheck(getattr(orthogonal, name), normal(3, 3).requires_grad_(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [*FACTORED, *SKEW])
def test_second_derivatives_at_the_identity_start(name):
    p = ORTHOGONALIZERS[name].start(3, "identity").detach().double()[None].requires_grad_()
    v = normal(1, 2, 3).requires_grad_()
    assert gradgradcheck(ORTHOGONALIZERS[name].apply, (p, v), atol=1e-5, rtol=1e-4)


# float32 at size


STARTS = [(name, init) for name in [*FACTORED, *SKEW, "canonical", "ogd"] for init in ("normal", "identity")]


@pytest.mark.parametrize(("name", "init"), [start for start in STARTS if start != ("canonical", "identity")])
def test_float32_is_orthogonal_at_784(name, init):
    method = ORTHOGONALIZERS[name]
    p = method.start(784, init)[None].float().detach()
    assert error(method.matrix(p)) <= 1e-5
    v = torch.nn.functional.normalize(normal(1, 64, 784), dim=-1).float()
    w = method.apply(p, v).double()
    assert (w @ w.mT - v.double() @ v.double().mT).abs().max() <= 1e-5


@pytest.mark.parametrize("name", SKEW)
def test_float32_is_orthogonal_far_from_the_start(name):
    """Odd m: A has the eigenvalue 0, so I − A is as badly conditioned as A is large."""
    for _ in range(5):
        p = 10 * parameters(name, 27, 1, dtype=torch.float32)
        assert error(ORTHOGONALIZERS[name].matrix(p)) <= 1e-5


@pytest.mark.parametrize("name", [*FACTORED, *SKEW])
def test_float32_gradients_are_right_at_size(name):
    p, v = parameters(name, 96, 1), normal(1, 16, 96)
    grads = {}
    for dtype in (torch.float32, torch.float64):
        inputs = [x.to(dtype).requires_grad_() for x in (p, v)]
        grads[dtype] = gradients(ORTHOGONALIZERS[name].apply(*inputs), *inputs)
    for grad, exact in zip(*grads.values(), strict=True):
        assert (grad.double() - exact).norm() <= 1e-4 * exact.norm()


# starts


@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("canonical", "skew")])
def test_identity_start_changes_nothing(name, m):
    method = ORTHOGONALIZERS[name]
    p = method.start(m, "identity").detach()
    assert tuple(p.shape) == tuple(method.shape(m))
    v = normal(1, 7, m, dtype=p.dtype)
    torch.testing.assert_close(method.apply(p[None], v), v, rtol=0, atol=1e-6)
    if name != "network":
        torch.testing.assert_close(method.matrix(p[None])[0], torch.eye(m, dtype=p.dtype), rtol=0, atol=1e-6)
    if name in reference.STORED:
        assert torch.equal(p, torch.eye(m, dtype=p.dtype))


@pytest.mark.parametrize("name", ["canonical", "skew"])
def test_without_identity_start_is_an_error_that_names_the_method(name):
    with pytest.raises(ValueError, match=name):
        ORTHOGONALIZERS[name].start(4, "identity")


@pytest.mark.parametrize("name", ["gram_schmidt", "canonical", "cayley", "upper", "skew"])
def test_normal_start_is_standard_normal(name):
    p = ORTHOGONALIZERS[name].start(60, "normal").detach()
    assert tuple(p.shape) == tuple(ORTHOGONALIZERS[name].shape(60))
    values = p[p != 0].double()
    assert len(values) >= 60
    assert abs(values.mean()) < 4 / len(values) ** 0.5
    assert abs(values.std() - 1) < 4 / (2 * len(values)) ** 0.5
    assert not torch.equal(p, ORTHOGONALIZERS[name].start(60, "normal"))


@pytest.mark.parametrize("m", [1, 5])
def test_normal_start_of_ogd_is_orthogonal_and_no_identity(m):
    p = ORTHOGONALIZERS["ogd"].start(m, "normal").detach()
    assert error(p) < 1e-6
    assert m == 1 or (p - torch.eye(m)).abs().max() > 0.1


def test_network_starts_with_a_last_layer_of_zeros_that_learns():
    method = ORTHOGONALIZERS["network"]
    p = method.start(6, "identity").detach()[None].requires_grad_()
    assert p[0, 0].any()
    assert not p[0, 1].any()
    v = normal(1, 5, 6, dtype=p.dtype)
    (grad,) = gradients(method.apply(p, v), p)
    assert grad[0, 1].any()


# generalized


def test_positive_definite():
    p = 2 * normal(20, 5, 5)
    p[10:].diagonal(dim1=1, dim2=2).sub_(6)  # exp(−6)² is still positive
    r = ORTHOGONALIZERS["positive_definite"].matrix(p)
    close(r, r.mT, 1e-14)
    assert torch.linalg.eigvalsh(r[:10]).min() > 0
    v = normal(20, 200, 5)
    assert (torch.linalg.vecdot(v, v @ r.mT) > 0).all()
    assert (torch.linalg.vecdot(v, ORTHOGONALIZERS["positive_definite"].apply(p, v)) > 0).all()


def test_positive_definite_with_large_negative_diagonal():
    """Diagonal alone: exp(−40)² in float32 is not rounded to zero."""
    p = torch.full((1, 4), -40.0).diag_embed()
    v = normal(1, 9, 4, dtype=torch.float32)
    assert (torch.linalg.vecdot(v, ORTHOGONALIZERS["positive_definite"].apply(p, v)) > 0).all()


# finite for whatever is finite

EXTREMES = {
    "zero": lambda x: torch.zeros_like(x),
    "rank one": lambda x: torch.ones_like(x),
    "a zero column": lambda x: x * (torch.arange(x.shape[-1]) != 1),
    "huge": lambda x: 1e15 * x,
    "tiny": lambda x: 1e-15 * x,
    "huge and tiny": lambda x: x * torch.tensor([1e15, 1e-15]).repeat(x.numel())[: x.numel()].view_as(x),
}


def repeats(name, extreme):
    """canonical has no gradient at repeated singular values, here zeros."""
    return name == "canonical" and extreme in ("zero", "rank one")


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("name", OWN_CODE)
def test_finite_in_finite_out(name, extreme):
    p = EXTREMES[extreme](parameters(name, 5, dtype=torch.float32)).requires_grad_()
    v = normal(2, 3, 5, dtype=torch.float32).requires_grad_()
    w = ORTHOGONALIZERS[name].apply(p, v)
    assert w.isfinite().all()
    r = ORTHOGONALIZERS[name].matrix(p) if name != "network" else ORTHOGONALIZERS[name].apply(p, v)
    assert r.isfinite().all()
    if not repeats(name, extreme):
        assert all(grad.isfinite().all() for grad in [*gradients(w, p, v), *gradients(r, p)])
    if name in reference.ORTHOGONAL and not (name in SKEW and "huge" in extreme):
        assert error(r) < 1e-5
        torch.testing.assert_close(w.norm(dim=-1), v.norm(dim=-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OWN_CODE)
def test_half_precision_is_computed_in_float32(name, dtype):
    p, v = parameters(name, 8).to(dtype), normal(2, 5, 8).to(dtype)
    method, outputs = ORTHOGONALIZERS[name], {}
    for kind in (dtype, torch.float32):
        inputs = [x.to(kind).requires_grad_() for x in (p, v)]
        w = method.apply(*inputs)
        r = w if name == "network" else method.matrix(inputs[0])
        outputs[kind] = [w, r, *gradients(w, *inputs)]
    for half, single in zip(outputs[dtype], outputs[torch.float32], strict=True):
        assert half.dtype == dtype
        assert half.isfinite().all()
        largest = single.abs().max().item()
        torch.testing.assert_close(half.float(), single, rtol=0, atol=0.6 * torch.finfo(dtype).eps * largest)  # rounded


@pytest.mark.parametrize("name", OWN_CODE)
def test_autocast_does_not_round(name):
    p = parameters(name, 9, dtype=torch.float32).requires_grad_()
    v = normal(2, 5, 9, dtype=torch.float32).requires_grad_()
    method, outputs = ORTHOGONALIZERS[name], []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            w = method.apply(p, v)
            r = w if name == "network" else method.matrix(p)
        outputs.append([w, r, *gradients(w, p, v)])
    for plain, cast in zip(*outputs, strict=True):
        assert cast.dtype == torch.float32
        assert torch.equal(plain, cast)


@pytest.mark.parametrize("silent", [False, True])
def test_a_decomposition_that_does_not_converge_in_float32(monkeypatch, silent):
    """LAPACK gives up on some matrices that are the identity plus a few directions, or returns NaN."""
    p, v = torch.eye(9) + torch.randn(9, 1) @ torch.randn(1, 9), torch.randn(5, 9)
    expected, svd = ORTHOGONALIZERS["lowdin"].apply(p, v), torch.linalg.svd

    def fail(matrix):
        if matrix.dtype == torch.float32 and not silent:
            raise torch.linalg.LinAlgError("did not converge")
        u, sigma, vh = svd(matrix)
        return (u, sigma, vh) if matrix.dtype == torch.float64 else (u * torch.nan, sigma, vh * torch.nan)

    monkeypatch.setattr(torch.linalg, "svd", fail)
    found = ORTHOGONALIZERS["lowdin"].apply(p, v)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


# bad input


@pytest.mark.parametrize("name", ["lowdin", "cayley"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (torch.zeros(3, 4), ValueError),
        (torch.zeros(2, 4, 3), ValueError),
        (torch.zeros(3), ValueError),
        (torch.zeros(()), ValueError),
        (torch.zeros(3, 3, dtype=torch.int64), TypeError),
        (torch.zeros(3, 3, dtype=torch.complex64), TypeError),
        ([[1.0]], TypeError),
        (None, TypeError),
    ],
    ids=["wide", "batch of tall", "1-d", "0-d", "int64", "complex", "list", "None"],
)
def test_bad_matrices_are_named(name, value, error):
    with pytest.raises(error, match=r"^matrix must"):
        getattr(orthogonal, name)(value)
