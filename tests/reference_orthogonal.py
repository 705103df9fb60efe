"""OPT's orthogonal matrices (appendix A) and the generalized ones (appendix J), literally: one matrix, loop by loop.

Nothing here is shared with the package. Columns u_j of U (m, m) are orthogonalized, as in the paper; every function is
differentiable, so that gradients come from autograd through the loops.
"""

import torch
from torch import Tensor


def _columns(columns) -> Tensor:
    return torch.stack(columns, dim=1)


def _identity(u: Tensor) -> Tensor:
    return torch.eye(len(u), dtype=u.dtype)


# A.1
def gram_schmidt(u: Tensor) -> Tensor:
    """Algorithm 2."""
    r = torch.zeros_like(u)
    for j in range(len(u)):
        q = r.T @ u[:, j]
        t = u[:, j] - r @ q
        r = _columns([*r.T[:j], t / t.norm(), *r.T[j + 1 :]])
    return r


def modified_gram_schmidt(u: Tensor) -> Tensor:
    """Eq. 8: projections are taken off what is left, not off u_j."""
    done: list[Tensor] = []
    for j in range(len(u)):
        t = u[:, j]
        for e in done:
            t = t - (e @ t) / (e @ e) * e
        done.append(t)
    return _columns([e / e.norm() for e in done])


def iterative_gram_schmidt(u: Tensor, steps: int = 2) -> Tensor:
    """Algorithm 3, its while loop unrolled `steps` times."""
    r = torch.zeros_like(u)
    for j in range(len(u)):
        t = u[:, j]
        for _ in range(steps):
            s = r.T @ t
            t = t - r @ s
        r = _columns([*r.T[:j], t / t.norm(), *r.T[j + 1 :]])
    return r


# A.2
def _reflection(x: Tensor) -> tuple[Tensor, Tensor]:
    """Householder(x) of Algorithm 4: v and β."""
    rest = (x[1:] ** 2).sum()
    if rest == 0:
        return torch.cat([x.new_ones(1), x[1:]]), x.new_zeros(())
    length = (x[0] ** 2 + rest).sqrt()
    first = x[0] - length if x[0] <= 0 else -rest / (x[0] + length)
    return torch.cat([first[None], x[1:]]) / first, 2 * first**2 / (rest + first**2)


def paper_householder(u: Tensor) -> Tensor:
    """Algorithm 4 with its own sign: n−1 reflections, determinant (−1)^(n−1) where no column is already done."""
    n, q = len(u), _identity(u)
    for j in range(n - 1):
        v, beta = _reflection(u[j:, j])
        v = torch.cat([v.new_zeros(j), v])
        h = _identity(u) - beta * torch.outer(v, v)
        u, q = h @ u, q @ h  # U = H₁ … H_{n−1} R, Eq. 11
    return q


def householder(u: Tensor) -> Tensor:
    """The paper's, its last column times (−1)^(n−1): determinant +1."""
    q = paper_householder(u)
    return torch.cat([q[:, :-1], (-1) ** (len(u) - 1) * q[:, -1:]], dim=1)


def givens(u: Tensor) -> Tensor:
    """QR by rotations: row i turns with row j until its entry in column j is zero; two zeros are left alone."""
    n, q = len(u), _identity(u)
    for j in range(n - 1):
        for i in range(j + 1, n):
            a, b = u[j, j], u[i, j]
            if a == 0 and b == 0:
                continue
            length = (a**2 + b**2).sqrt()
            c, s = a / length, b / length
            rows = list(_identity(u))
            rows[j], rows[i] = c * rows[j] + s * rows[i], c * rows[i] - s * rows[j]
            g = torch.stack(rows)
            u, q = g @ u, q @ g.T
    return q


# A.3
def lowdin(u: Tensor) -> Tensor:
    """Eq. 15: U M^(−1/2) with M = UᵀU."""
    d, v = torch.linalg.eigh(u.T @ u)
    return u @ (v @ torch.diag(d**-0.5) @ v.T)


def canonical(u: Tensor) -> Tensor:
    """Eq. 16: U V d^(−1/2), M = V d Vᵀ; the order is that of descending d, the signs are the eigenvectors' own."""
    d, v = torch.linalg.eigh(u.T @ u)
    return u @ v.flip(1) @ torch.diag(d.flip(0) ** -0.5)


# 3.4
def skew(p: Tensor) -> Tensor:
    """A = triu(P, 1) − triu(P, 1)ᵀ."""
    upper = torch.triu(p, 1)
    return upper - upper.T


def cayley(p: Tensor) -> Tensor:
    a, one = skew(p), _identity(p)
    return (one + a) @ torch.linalg.inv(one - a)


def exponential(p: Tensor) -> Tensor:
    """Σ Aᵏ/k! of A/2ᵗ, squared t times."""
    a, halvings = skew(p), 0
    while torch.linalg.matrix_norm(a.detach(), 2) > 0.5:
        a, halvings = a / 2, halvings + 1
    total = term = _identity(p)
    for k in range(1, 20):
        term = term @ a / k
        total = total + term
    for _ in range(halvings):
        total = total @ total
    return total


def unpack(packed: Tensor, m: int) -> Tensor:
    """A packed strict upper triangle, row by row, as a matrix."""
    rows, columns = torch.triu_indices(m, m, 1)
    p = torch.zeros(m, m, dtype=packed.dtype)
    return p.index_put((rows, columns), packed)


# J
def positive_definite(p: Tensor) -> Tensor:
    lower = torch.tril(p, -1) + torch.diag(p.diagonal().exp())
    return lower @ lower.T


def _kept(p: Tensor, keep) -> Tensor:
    """P where `keep(i, j)`, else 0."""
    n = len(p)
    return torch.stack([torch.stack([p[i, j] if keep(i, j) else p.new_zeros(()) for j in range(n)]) for i in range(n)])


def upper(p: Tensor) -> Tensor:
    return _kept(p, lambda i, j: j >= i)


def lower(p: Tensor) -> Tensor:
    return _kept(p, lambda i, j: j <= i)


def banded(p: Tensor) -> Tensor:
    return _kept(p, lambda i, j: abs(i - j) <= 1)


def hessenberg_upper(p: Tensor) -> Tensor:
    return _kept(p, lambda i, j: j >= i - 1)


def hessenberg_lower(p: Tensor) -> Tensor:
    return _kept(p, lambda i, j: j <= i + 1)


def symmetric(p: Tensor) -> Tensor:
    """Reads the upper triangle, the diagonal with it."""
    n = len(p)
    return torch.stack([torch.stack([p[min(i, j), max(i, j)] for j in range(n)]) for i in range(n)])


def unchanged(p: Tensor) -> Tensor:
    return p


def network(p: Tensor, v: Tensor) -> Tensor:
    """Every row v of (n, m): v + W₂ᵀ·relu(W₁v), P = (W₁, W₂)."""
    first, second = p
    rows = [row + second.T @ torch.relu(first @ row) for row in v]
    return torch.stack(rows) if rows else v


ORTHOGONAL = {
    "gram_schmidt": gram_schmidt,
    "modified_gram_schmidt": modified_gram_schmidt,
    "iterative_gram_schmidt": iterative_gram_schmidt,
    "householder": householder,
    "givens": givens,
    "lowdin": lowdin,
    "canonical": canonical,
    "cayley": cayley,
    "exponential": exponential,
}
STORED = {"ogd": unchanged, "regularized": unchanged, "unconstrained": unchanged}  # R is the parameter itself
GENERALIZED = {
    "positive_definite": positive_definite,
    "upper": upper,
    "lower": lower,
    "banded": banded,
    "symmetric": symmetric,
    "skew": skew,
    "hessenberg_upper": hessenberg_upper,
    "hessenberg_lower": hessenberg_lower,
}
MATRICES = {**ORTHOGONAL, **STORED, **GENERALIZED}  # all but network, which is no matrix
