"""The papers' formulas, literally and slowly, in the words of the papers: what the fast code is tested against.

Nothing here is shared with the package. Angles θ are formed with arccos, patches are cut out one by one.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor


# SphereNet, 2.1: the operators g(θ)
def cosine(theta: Tensor) -> Tensor:
    return torch.cos(theta)  # Eq. 3


def linear(theta: Tensor, a: float = -2 / math.pi, b: float = 1.0) -> Tensor:
    return a * theta + b  # Eq. 2


def sigmoid(theta: Tensor, k: float | Tensor = 0.3) -> Tensor:
    k = torch.as_tensor(k, dtype=theta.dtype)
    e = torch.exp(-math.pi / (2 * k))
    z = torch.exp(theta / k - math.pi / (2 * k))
    return (1 + e) / (1 - e) * (1 - z) / (1 + z)  # Eq. 4


SIMILARITIES = {
    "cosine": cosine,
    "linear": linear,
    "sigmoid": sigmoid,
    "learnable": lambda theta: sigmoid(theta, 0.5),
}


def angle(x: Tensor, w: Tensor) -> Tensor:
    """The angle between two vectors; a right one if either is zero."""
    if not x.any() or not w.any():
        return x.new_tensor(math.pi / 2)
    return torch.arccos((x @ w / (x.norm() * w.norm())).clamp(-1, 1))


# Eq. 1: F(w, x) = scale·g(θ) + b
def sphere_linear(x: Tensor, weight: Tensor, bias=None, g=cosine, scale=1.0) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    theta = torch.stack([torch.stack([angle(row, w) for w in weight]) for row in rows])
    y = scale * g(theta) + (0 if bias is None else bias)
    return y.reshape(*x.shape[:-1], len(weight))


def sphere_conv(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, mode="zeros", g=cosine, scale=1.0):
    """x (B, C, ...), weight (O, C/groups, ...); stride and so on are numbers or one for each dimension."""
    n = weight.dim() - 2
    stride, dilation = ((v,) * n if isinstance(v, int) else v for v in (stride, dilation))
    x = pad(x, padding, weight.shape[2:], dilation, mode)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    sizes = [(size - r) // s + 1 for size, r, s in zip(x.shape[2:], reach, stride, strict=True)]
    y = x.new_zeros(len(x), len(weight), *sizes)
    per_group = len(weight) // groups
    for b, o in itertools.product(range(len(x)), range(len(weight))):
        channels = x[b, (o // per_group) * weight.shape[1] :][: weight.shape[1]]
        for place in itertools.product(*map(range, sizes)):
            cut = tuple(slice(p * s, p * s + r, d) for p, s, r, d in zip(place, stride, reach, dilation, strict=True))
            theta = angle(channels[(slice(None), *cut)].reshape(-1), weight[o].reshape(-1))
            y[(b, o, *place)] = g(theta)
    shape = (1, -1, *[1] * n)
    scale = scale.reshape(shape) if isinstance(scale, Tensor) else scale
    return scale * y + (0 if bias is None else bias.reshape(shape))


def pad(x, padding, kernel, dilation, mode):
    """Zero, reflect, replicate or circular padding, index by index."""
    n = len(kernel)
    if padding == "valid":
        sides = [(0, 0)] * n
    elif padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        sides = [(t // 2, t - t // 2) for t in total]
    else:
        sides = [(p, p) for p in ((padding,) * n if isinstance(padding, int) else padding)]
    for dim, (before, after) in enumerate(sides, start=2):
        size = x.shape[dim]
        slices = []
        for i in range(-before, size + after):
            if mode == "zeros" and not 0 <= i < size:
                slices.append(torch.zeros_like(x.select(dim, 0)))
                continue
            if mode == "reflect":
                i = -i if i < 0 else 2 * (size - 1) - i if i >= size else i
            elif mode == "replicate":
                i = min(max(i, 0), size - 1)
            elif mode == "circular":
                i %= size
            slices.append(x.select(dim, i))
        x = torch.stack(slices, dim)
    return x


# SphereNet, 3: losses, sample by sample
def psi(theta: Tensor, m: float, g=cosine) -> Tensor:
    """g(mθ) continued so that it keeps falling: on the k-th piece it is g(mθ − kπ), lowered by k falls of g."""
    k = math.floor(float(m * theta.detach()) / math.pi)
    zero = torch.zeros_like(theta)
    return g(m * theta - k * math.pi) - k * (g(zero) - g(zero + math.pi))


def a_softmax_psi(theta: Tensor, m: int) -> Tensor:
    k = math.floor(float(m * theta.detach()) / math.pi)
    return (-1) ** k * torch.cos(m * theta) - 2 * k


def am_softmax(theta: Tensor, m: float, g=cosine) -> Tensor:
    return g(theta) - m


def arcface(theta: Tensor, m: float, g=cosine) -> Tensor:
    return g(theta + m) if theta <= math.pi - m else g(theta) - m * math.sin(m)


MARGINS = {
    "multiplicative": psi,
    "additive_cosine": am_softmax,
    "additive_angle": arcface,
}


def annealed_lambda(n: int) -> float:
    return max(5.0, 1000 / (1 + 0.12 * n))


def softmax_losses(x, y, weight, *, g=cosine, margin=None, scale=None, lam=None, bias=None, smoothing=0.0, cw=None):
    """−log softmax of each sample; margin(θ) is the target's value, mixed with g by λ."""
    losses = []
    for xi, yi in zip(x, y.tolist(), strict=True):
        s = xi.norm() if scale is None else scale
        logits = []
        for j, w in enumerate(weight):
            theta = angle(xi, w)
            value = g(theta)
            if j == yi and margin is not None:
                value = margin(theta) if lam is None else (lam * value + margin(theta)) / (1 + lam)
            logits.append(s * value + (0 if bias is None else bias[j]))
        log_p = torch.log_softmax(torch.stack(logits), 0)
        cw_ = torch.ones_like(log_p) if cw is None else cw
        losses.append(-(1 - smoothing) * cw_[yi] * log_p[yi] - smoothing / len(weight) * (cw_ * log_p).sum())
    return torch.stack(losses)


# ---- heads since 2020: the loss of each sample; c (B, C) are the cosines, n (B,) the lengths of the embeddings


def cosines(x: Tensor, weight: Tensor) -> Tensor:
    return torch.stack([torch.stack([torch.cos(angle(xi, w)) for w in weight]) for xi in x])


def cross_entropy_of(target: Tensor, others: Tensor, s: float) -> Tensor:
    """−log softmax at the target, for one sample: its logit s·target, and those of the other classes (C − 1,)."""
    return torch.log(torch.exp(s * (torch.cat([target.reshape(1), others]) - target)).sum())


def without(row: Tensor, j: int) -> Tensor:
    return torch.cat([row[:j], row[j + 1 :]])


def adaface(x, y, weight, mean, std, *, m=0.4, s=64.0, h=0.333):
    """mean and std are the moving averages, updated by this batch already."""
    losses = []
    for xi, row, yi in zip(x, cosines(x, weight), y.tolist(), strict=True):
        n = xi.norm().clamp(1e-3, 100).detach()
        z = (h * (n - mean) / (std + 1e-3)).clamp(-1, 1)
        theta = (torch.arccos(row[yi]) - m * z).clamp(1e-3, math.pi - 1e-3)
        losses.append(cross_entropy_of(torch.cos(theta) - (m + m * z), without(row, yi), s))
    return torch.stack(losses)


def magface(x, y, weight, *, s=64.0):
    losses = []
    for xi, row, yi in zip(x, cosines(x, weight), y.tolist(), strict=True):
        a = xi.norm().clamp(10, 110)
        m = 0.45 + (0.8 - 0.45) / (110 - 10) * (a - 10)
        target = torch.cos(torch.arccos(row[yi]) + m) if row[yi] > 0 else row[yi]
        losses.append(cross_entropy_of(target, without(row, yi), s) + 35 * (a / 110**2 + 1 / a))
    return torch.stack(losses)


def curricularface(x, y, weight, t, *, m=0.5, s=64.0):
    """t is the moving average, updated by this batch already."""
    losses = []
    for row, yi in zip(cosines(x, weight), y.tolist(), strict=True):
        hardest = torch.cos(torch.arccos(row[yi]) + m).detach()
        others = torch.stack([c * (t + c) if c > hardest else c for c in without(row, yi)])
        losses.append(cross_entropy_of(arcface(torch.arccos(row[yi]), m), others, s))
    return torch.stack(losses)


def elasticface(x, y, weight, margins, *, kind="arc", plus=False, s=64.0):
    rows = cosines(x, weight)
    targets = [row[yi] for row, yi in zip(rows, y.tolist(), strict=True)]
    if plus:
        order = sorted(range(len(x)), key=lambda i: -targets[i].item())
        given = dict(zip(order, sorted(margins.tolist()), strict=True))
        margins = [given[i] for i in range(len(x))]
    losses = []
    for row, yi, c, m in zip(rows, y.tolist(), targets, map(float, margins), strict=True):
        target = arcface(torch.arccos(c), m) if kind == "arc" else c - m
        losses.append(cross_entropy_of(target, without(row, yi), s))
    return torch.stack(losses)


def sphereface_r(x, y, weight, *, version="v1", m=1.5, s=30.0, detach=True):
    losses = []
    for row, yi in zip(cosines(x, weight), y.tolist(), strict=True):
        theta, changed = torch.arccos(row), row.clone()
        if version == "v0":
            changed[yi] = psi(theta[yi], m)
        elif version == "v1":
            changed[yi] = torch.cos((m * theta[yi]).clamp(max=math.pi))
        else:
            changed = torch.stack([row[j] if j == yi else torch.cos(theta[j] / m) for j in range(len(row))])
        values = row + (changed - row).detach() if detach else changed
        losses.append(50 / s * cross_entropy_of(values[yi], without(values, yi), s))
    return torch.stack(losses)


def sphereface2(x, y, weight, b, *, lam=0.7, r=40.0, m=0.4, t=3.0):
    losses = []
    for row, yi in zip(cosines(x, weight), y.tolist(), strict=True):
        g = 2 * ((row + 1) / 2) ** t - 1
        at_label = torch.log1p(torch.exp(-(r * (g[yi] - m) + b)))
        at_others = torch.log1p(torch.exp(r * (without(g, yi) + m) + b)).sum()
        losses.append(50 / r * (lam * at_label + (1 - lam) * at_others))
    return torch.stack(losses)


def uniface(x, y, weight, threshold, *, m=0.4, s=64.0):
    losses = []
    for row, yi in zip(cosines(x, weight), y.tolist(), strict=True):
        at_label = torch.log1p(torch.exp(-(s * (row[yi] - m) - threshold)))
        losses.append(at_label + torch.log1p(torch.exp(s * without(row, yi) - threshold)).sum())
    return torch.stack(losses)


# SphereNet, 2.4
def orthonormal(rows: Tensor) -> Tensor:
    w = rows.T  # kernels are the columns of W
    return (w.T @ w - torch.eye(w.shape[1], dtype=w.dtype)).pow(2).sum()


# SphereNet, 2.4: recurrent layers; torch's cells with every product replaced
def recurrent_step(mode, x, state, p, g=cosine, scale=1.0):
    """One step of one layer; p has w_ih, w_hh, b_ih, b_hh (and w_hr)."""
    h = state[0]
    gx = sphere_linear(x, p["w_ih"], p["b_ih"], g, scale)
    gh = sphere_linear(h, p["w_hh"], p["b_hh"], g, scale)
    if mode == "RNN":
        return (torch.tanh(gx + gh),)
    if mode == "GRU":
        rx, zx, nx = gx.chunk(3, -1)
        rh, zh, nh = gh.chunk(3, -1)
        r, z = torch.sigmoid(rx + rh), torch.sigmoid(zx + zh)
        return ((1 - z) * torch.tanh(nx + r * nh) + z * h,)
    i, f, c, o = (gx + gh).chunk(4, -1)
    cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(c)
    out = torch.sigmoid(o) * torch.tanh(cell)
    return (out @ p["w_hr"].T if "w_hr" in p else out, cell)


# MHE
def riesz(z: Tensor, s: float) -> Tensor:
    return torch.log(1 / z) if s == 0 else z**-s  # f_s of 3.1


def neuron_distances(weight: Tensor, *, half_space=False, angular=False, beta=None) -> Tensor:
    """(M, M): the distance between any two of the M = N neurons, or of the 2N real and virtual ones; ∞ to itself."""
    points = torch.stack([row / row.norm() for row in weight.flatten(1)])
    sizes = torch.ones(len(points)) if beta is None else beta.detach()
    n, sizes = len(points), sizes.to(points)
    if half_space:  # 3.4: a virtual neuron with opposite direction for every neuron
        points, sizes = torch.cat([points, -points]), torch.cat([sizes, sizes])
    rows = []
    for i, p in enumerate(points):
        others = [j for j in range(len(points)) if j != i]
        row = p.new_full((len(points),), math.inf)
        if not angular:
            z = (sizes[i] * p - sizes[others, None] * points[others]).norm(dim=1)  # Eq. 1, and Eq. 18 with β
        else:
            if half_space:  # its own antipode, where arccos has no derivative
                others.remove((i + n) % (2 * n))
                row[(i + n) % (2 * n)] = math.pi
            z = torch.arccos((points[others] @ p).clamp(-1, 1))  # Eq. 5
        rows.append(row.index_put((torch.tensor(others, dtype=torch.long),), z))
    return torch.stack(rows)


def neuron_energies(distances: Tensor, s: float, half_space=False) -> Tensor:
    """(N,): Σ_{j ≠ i} f_s over row i; in half space a neuron's and its antipode's together."""
    m = len(distances)
    apart = ~torch.eye(m, dtype=torch.bool)
    rows = torch.stack([riesz(distances[i][apart[i]], s).sum() for i in range(m)])
    return rows[: m // 2] + rows[m // 2 :] if half_space else rows


def energy(weight: Tensor, s: float, *, half_space=False, angular=False, beta=None, reduction="mean") -> Tensor:
    energies = neuron_energies(
        neuron_distances(weight, half_space=half_space, angular=angular, beta=beta), s, half_space
    )
    m = len(energies) * (2 if half_space else 1)
    return {"none": energies, "sum": energies.sum(), "mean": energies.sum() / max(m * (m - 1), 1)}[reduction]


def class_energies(weight: Tensor, labels: Tensor, s: float, *, angular=False) -> Tensor:
    """(m,): what each sample adds to the second term of Eq. 8, 1/(N − 1) Σ_{j ≠ y_i} f_s; their mean is that term."""
    distances, n = neuron_distances(weight, angular=angular), len(weight)
    terms = [(distances[y], torch.arange(n) != y) for y in labels.tolist()]
    return torch.stack([riesz(row[others], s).sum() / (n - 1) for row, others in terms])


def center_loss(x, y, weight, bias, centers, lam):
    """Softmax plus λ/2·‖x − c_y‖², sample by sample."""
    total = 0
    for sample, label in zip(x, y.tolist(), strict=True):
        exponents = torch.exp(torch.stack([w @ sample for w in weight]) + bias)
        total = total - torch.log(exponents[label] / exponents.sum()) + lam / 2 * (sample - centers[label]).norm() ** 2
    return total / len(x)


# ------------------------------------------------------------------------------------------------ open-set evaluation


def verification(first, second, same, fold):
    """SphereFace's protocol, pair by pair: (accuracy of each fold, cosines), with every threshold tried."""
    accuracies, cosines = [], [None] * len(same)
    for k in sorted(set(fold.tolist())):
        others = [i for i in range(len(same)) if fold[i] != k]
        mean = sum(first[i] + second[i] for i in others) / (2 * len(others))
        cosine = [float(F.cosine_similarity(first[i] - mean, second[i] - mean, dim=0)) for i in range(len(same))]
        cuts = sorted(cosine[i] for i in others)
        cuts = [cuts[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(cuts)), cuts[-1] + 1]
        right = [sum((cosine[i] >= cut) == bool(same[i]) for i in others) for cut in cuts]
        allowed = [cut for cut, count in zip(cuts, right, strict=True) if count == max(right)]
        here = [i for i in range(len(same)) if fold[i] == k]
        accuracies.append({sum((cosine[i] >= cut) == bool(same[i]) for i in here) / len(here) for cut in allowed})
        for i in here:
            cosines[i] = cosine[i]
    return accuracies, cosines


def few_shot_episode(support, query, weight, bias, orders, cosine):
    """Train a classifier on one episode (ways, shots, d), sample by sample, and return the logits of the queries."""
    shots = support.shape[1]
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    optimizer = torch.optim.SGD(
        [weight] if cosine else [weight, bias], lr=0.01, momentum=0.9, dampening=0.9, weight_decay=1e-3
    )

    def logits(x):
        if not cosine:
            return torch.stack([w @ x for w in weight]) + bias
        return torch.stack([2 * (w @ x) / (w.norm() * x.norm()) for w in weight])

    for order in orders:
        for start in range(0, len(order), 4):
            rows = order[start : start + 4]
            losses = [F.cross_entropy(logits(support[i // shots, i % shots]), torch.tensor(i // shots)) for i in rows]
            optimizer.zero_grad()
            (sum(losses) / len(losses)).backward()
            optimizer.step()
    return torch.stack([logits(x) for x in query.flatten(0, 1)]).detach()


def gradient_penalty(net, real, fake, shares, step=1e-6):
    """Mean of (‖∇d(z)‖ − 1)² at z = share·x + (1 − share)·y, by central differences, for one image at a time."""
    total = 0.0
    for x, y, share in zip(real, fake, shares, strict=True):
        z = share * x + (1 - share) * y
        moves = step * torch.eye(z.numel(), dtype=z.dtype).reshape(-1, *z.shape)
        with torch.no_grad():
            slopes = (net(z + moves) - net(z - moves)) / (2 * step)
        total += (float(slopes.square().sum()) ** 0.5 - 1) ** 2
    return total / len(real)


def class_score(probabilities):
    """exp(mean over x of Σ_y p(y|x) log(p(y|x) / p(y))), the formula of the Inception score."""
    count, classes = len(probabilities), len(probabilities[0])
    marginal = [sum(row[y] for row in probabilities) / count for y in range(classes)]
    total = sum(p * math.log(p / marginal[y]) for row in probabilities for y, p in enumerate(row) if p > 0)
    return math.exp(total / count)


def frechet_distance(a, b):
    """‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2(Σ₁Σ₂)^½), with the root of the product itself."""
    import numpy as np
    from scipy.linalg import sqrtm

    first, second = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = np.real(sqrtm(first @ second))
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(first + second - 2 * root))


# SphereNet, Lemma 1: the second derivatives of ½‖F − UVᵀ‖² one by one, over the columns of U, then those of V
def plain_hessian(u: Tensor, v: Tensor, f: Tensor) -> Tensor:
    places = _columns(u, v)
    rest = u @ v.T - f
    hessian = torch.zeros(len(places), len(places), dtype=u.dtype)
    for i, (one, a, p) in enumerate(places):
        for j, (other, b, q) in enumerate(places):
            if one == other:
                other_factor = v if one == "u" else u
                hessian[i, j] = (a == b) * sum(row[p] * row[q] for row in other_factor)
            elif one == "u":
                hessian[i, j] = hessian[j, i] = v[b, p] * u[a, q] + (p == q) * rest[a, b]
    return hessian


# SphereNet, 2.3: at an optimum of ½‖F − W_N···W_1·Vᵀ‖² the Hessian is ΣJᵀJ; J has the derivative by one entry
def deep_hessian(*factors: Tensor) -> Tensor:
    *weights, v = factors
    matrices = [*weights, v.T]
    slopes = []
    for i, factor in enumerate(factors):
        for p in range(factor.shape[1]):
            for a in range(len(factor)):
                one = torch.zeros_like(factor)
                one[a, p] = 1
                product = torch.eye(len(weights[0]), dtype=v.dtype)
                for j, matrix in enumerate(matrices):
                    product = product @ (matrix if j != i else one.T if i == len(weights) else one)
                slopes.append(product.flatten())
    return torch.stack([torch.stack([x @ y for y in slopes]) for x in slopes])


# SphereNet, Lemma 2: at an optimum with rows of length 1 the Hessian is ΣJᵀJ; J has the derivatives of one cosine
def sphere_hessian(u: Tensor, v: Tensor) -> Tensor:
    places = _columns(u, v)
    hessian = torch.zeros(len(places), len(places), dtype=u.dtype)
    for x, row in enumerate(u):
        for y, column in enumerate(v):
            cosine = row @ column
            slopes = {"u": column - cosine * row, "v": row - cosine * column}
            owner = {"u": x, "v": y}
            slope = torch.stack([slopes[which][p] * (a == owner[which]) for which, a, p in places])
            hessian += torch.outer(slope, slope)
    return hessian


# SphereNet, D.2: the printed Hessian of G_S where UVᵀ = F; it is not the one above
def printed_hessian(u: Tensor, v: Tensor) -> Tensor:
    places, f = _columns(u, v), u @ v.T
    hessian = torch.zeros(len(places), len(places), dtype=u.dtype)
    for i, (one, a, p) in enumerate(places):
        for j, (other, b, q) in enumerate(places):
            if one == other == "u":
                hessian[i, j] = (a == b) * (v[:, p] @ v[:, q] - u[a, p] * (f[a] @ v[:, q]))
            elif one == other == "v":
                hessian[i, j] = (a == b) * (u[:, p] @ u[:, q] - v[a, p] * (f[:, a] @ u[:, q]))
            elif one == "u":
                hessian[i, j] = hessian[j, i] = u[a, q] * v[b, p] - f[a, b] * u[a, p] * u[a, q]
    return hessian


def _columns(u: Tensor, v: Tensor) -> list[tuple[str, int, int]]:
    return [
        (name, a, p)
        for name, factor in (("u", u), ("v", v))
        for p in range(factor.shape[1])
        for a in range(len(factor))
    ]


# Poster of SphereNet: |F(b)|·exp(i·arg F(a)) transformed back, sum by sum
def swapped_phase(a: Tensor, b: Tensor) -> Tensor:
    height, width = a.shape
    rows, columns = (torch.outer(torch.arange(n), torch.arange(n)).double() / n for n in (height, width))
    left, right = (torch.exp(-2j * math.pi * places) for places in (rows, columns))
    first, second = (left @ image.to(torch.complex128) @ right for image in (a, b))
    mixed = second.abs() * torch.exp(1j * first.angle())
    return (left.conj() @ mixed @ right.conj()).real / (height * width)


# OPT, App. E and F: filter normalization of the random directions
def filter_normalized(noise: Tensor, weight: Tensor) -> Tensor:
    """Each filter of `noise`, an element of dimension 0, with the norm of that filter of `weight`."""
    return torch.stack([d / d.norm() * w.norm() for d, w in zip(noise, weight, strict=True)])


def column_normalized(noise: Tensor, p: Tensor) -> Tensor:
    """The same for the columns of the matrices P (blocks, m, m); a column of P that is 0 stays there."""
    return torch.stack([filter_normalized(d.T, matrix.T).T for d, matrix in zip(noise, p, strict=True)])


def triangle_normalized(noise: Tensor, packed: Tensor) -> Tensor:
    """The same for P strictly upper triangular, packed row by row (blocks, m(m-1)/2); its first column is empty."""
    m = next(m for m in itertools.count(1) if m * (m - 1) // 2 == packed.shape[1])
    places = [(i, j) for i in range(m) for j in range(m) if i < j]
    blocks = []
    for d, p in zip(noise, packed, strict=True):
        full = torch.zeros(2, m, m, dtype=packed.dtype)
        for (i, j), a, b in zip(places, d, p, strict=True):
            full[0, i, j], full[1, i, j] = a, b
        scaled = filter_normalized(full[0].T[1:], full[1].T[1:]).T
        blocks.append(torch.stack([scaled[i, j - 1] for i, j in places]))
    return torch.stack(blocks)


def koleo(x: Tensor, topk: int = 1) -> Tensor:
    x = torch.nn.functional.normalize(x)
    distances = (x.unsqueeze(1) - x).square().sum(2)
    distances = (distances + torch.eye(len(x), dtype=x.dtype) * 9).sqrt()
    return -(distances.topk(topk, largest=False).values + 1e-8).log().mean()


def uniformity(x: Tensor, t: float = 2.0) -> Tensor:
    return torch.pdist(torch.nn.functional.normalize(x)).square().mul(-t).exp().mean().log()


def gor(x: Tensor, y: Tensor, first: float, second: float, threshold: float) -> Tensor:
    x, y = torch.nn.functional.normalize(x), torch.nn.functional.normalize(y)
    products = (x @ y.T)[~torch.eye(len(x), dtype=torch.bool)]
    return first * products.mean() ** 2 + second * (products.square().mean() - threshold).clamp(min=0)


def sigreg(x: Tensor, directions: Tensor, phi=lambda t: torch.exp(-(t**2) / 2)) -> Tensor:
    t = torch.linspace(0, 3, 17, dtype=x.dtype)
    products = (x @ directions).unsqueeze(2) * t
    empirical = torch.complex(products.cos(), products.sin()).mean(0)
    error = (empirical - phi(t)).abs() ** 2 * torch.exp(-(t**2) / 2)
    return len(x) * 2 * torch.trapezoid(error, t, dim=1).mean()


def sphere_uniformity(x: Tensor, directions: Tensor) -> Tensor:
    from scipy.special import hyp0f1

    d = x.shape[1]
    scaled = torch.nn.functional.normalize(x) * d**0.5
    return sigreg(scaled, directions, lambda t: torch.from_numpy(hyp0f1(d / 2, -d * t.numpy() ** 2 / 4)))


# Pion: one step on a dense float64 matrix (m, n) with gradient G; `moments` holds (m, v) of both sides
def cayley_of(a: Tensor) -> Tensor:
    identity = torch.eye(len(a), dtype=a.dtype)
    return torch.linalg.inv(identity - a / 2) @ (identity + a / 2)


def pion_step(w: Tensor, g: Tensor, moments: dict, lr, side="both", betas=(0.9, 0.95), rms=None, turn=cayley_of):
    sides = {"in": w.T @ g - g.T @ w, "out": g @ w.T - w @ g.T}
    a = {"in": torch.zeros(w.shape[1], w.shape[1]).to(w), "out": torch.zeros(len(w), len(w)).to(w)}
    for name in {"both": ("in", "out"), "input": ("in",), "output": ("out",)}[side]:
        m, v = moments.get(name, (0.0, 0.0))
        m = betas[0] * m + (1 - betas[0]) * sides[name]
        v = betas[1] * v + (1 - betas[1]) * sides[name] ** 2
        moments[name] = m, v
        a[name] = -m / (v.sqrt() + 1e-8)
    size = w.norm() if rms is None else rms * math.sqrt(w.numel())
    alpha = lr * size / (a["out"] @ w + w @ a["in"]).norm()
    return turn(alpha * a["out"]) @ w @ turn(alpha * a["in"])
