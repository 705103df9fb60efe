"""sample=, sparse=: fewer classes in a step, fewer rows in the gradient."""

import copy
import math

import pytest
import torch

import hypersphere as hs
from hypersphere._internal.draws import generator
from hypersphere.losses.heads import HEADS
from hypersphere.losses.sampling import ClassSampler, distinct, find_near

F64 = torch.float64
C, D, B = 40, 5, 6


def batch(dtype=F64):
    torch.manual_seed(1)
    return (2 * torch.randn(B, D, dtype=dtype)).requires_grad_(), torch.tensor([0, 3, 39, 3, 7, 8])


def gradients(head, x, labels):
    loss = head(x, labels)
    values = torch.autograd.grad(loss.sum(), [x, *head.parameters()])
    return [loss, *(value.to_dense() for value in values)]


def pair(name, changed, **options):
    torch.manual_seed(0)
    head = HEADS[name](C, D, dtype=F64, **options)
    torch.manual_seed(0)
    return head, HEADS[name](C, D, dtype=F64, **options, **changed)


@pytest.mark.parametrize("options", [{}, {"bias": True, "label_smoothing": 0.2}, {"class_weight": [0.5, 2.0] * 20}])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_a_sample_of_all_classes_is_the_loss(name, sparse, options):
    if name == "sphereface_plus":
        options = options | {"energy_weight": 0.0}
    if name in ("sphereface2", "uniface"):
        options = {key: value for key, value in options.items() if key != "label_smoothing"}
    plain, sampled = pair(name, {"sample": 1.0, "sparse": sparse}, **options)
    x, labels = batch()
    for got, expected in zip(gradients(sampled, x, labels), gradients(plain, x, labels), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sample", [1.0, 12])
def test_subcenters_are_sampled_with_their_class(sample):
    torch.manual_seed(0)
    plain, sampled = (hs.ArcFaceLoss(C, D, dtype=F64, subcenters=3, **options) for options in ({}, {"sample": sample}))
    sampled.load_state_dict(plain.state_dict())
    x, labels = batch()
    got, expected = gradients(sampled, x, labels), gradients(plain, x, labels)
    assert got[2].shape == (C, 3, D)
    if sample == 1.0:
        for ours, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert got[2].flatten(1).any(1).sum() == (C if sample == 1.0 else 12)


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"similarity": "learnable", "scale": 20.0}])
def test_sparse_gradients_are_the_dense_ones(options):
    if "similarity" in options:
        plain, sparse = (hs.losses.AngularSoftmaxLoss(C, D, dtype=F64, sparse=s, **options) for s in (False, True))
        sparse.load_state_dict(plain.state_dict())
    else:
        plain, sparse = pair("arcface", {"sparse": True, "stream": 8}, **options)
    x, labels = batch()
    for got, expected in zip(gradients(sparse, x, labels), gradients(plain, x, labels), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    sparse(x, labels).backward()
    assert sparse.weight.grad.is_sparse
    assert (sparse.weight.grad._indices()[0].diff() > 0).all()


def test_sparse_gradients_leave_out_negligible_rows():
    head = hs.AMSoftmaxLoss(C, D, scale=64.0, sparse=True, stream=8)
    x = torch.zeros(2, D).index_fill_(1, torch.tensor([0]), 1.0)
    head.weight.data[5:, 0] = -9.0  # far from both samples
    head(x, torch.tensor([1, 30])).backward()
    rows = head.weight.grad.coalesce().indices()[0]
    assert set(rows.tolist()) <= {0, 1, 2, 3, 4, 30}
    assert {1, 30} <= set(rows.tolist())


def test_the_sum_is_unbiased():
    """The mean of Σ exp L_j over 4,000 draws, beside hard negatives, is the sum over all classes."""
    torch.manual_seed(0)
    sampler, logits = ClassSampler(C, 15, True, 0), torch.randn(C, dtype=F64)
    labels, weight = torch.tensor([3, 7]), torch.randn(C, D)
    draws = []
    for _ in range(4000):
        index, counts = sampler(labels, weight)
        draws.append((counts * logits[index].exp()).sum())
    draws = torch.stack(draws)
    error = draws.std() / math.sqrt(len(draws))
    assert abs(draws.mean() - logits.exp().sum()) < 4 * error
    assert error < 0.01 * draws.mean()


def test_what_is_sampled():
    torch.manual_seed(0)
    labels, weight = torch.tensor([3, 7, 3]), torch.randn(C, D)
    sampler = ClassSampler(C, 15, True, 5)
    index, counts = sampler(labels, weight)
    near = find_near(weight, torch.tensor([3, 7]), C, 8)
    unit = torch.nn.functional.normalize(weight)
    for i, label in enumerate((3, 7)):
        cosines = unit @ unit[label]
        cosines[label] = -2
        assert near[i].tolist() == cosines.topk(8)[1].tolist()
    sure = index[counts == 1].tolist()
    assert set(sure) == {3, 7} | set(near.mT.flatten()[:6].tolist())
    assert len(index) == 15
    assert (index.diff() > 0).all()
    torch.testing.assert_close(
        counts[counts != 1], torch.full((15 - len(sure),), (C - len(sure)) / (15 - len(sure)), dtype=F64)
    )
    other = ClassSampler(C, 15, False, 5)
    index, counts = other(labels, weight)
    assert {3, 7} <= set(index.tolist())
    assert (counts == 1).all()
    assert other(torch.arange(20), weight)[0].tolist() == list(range(20))
    many = ClassSampler(C, 15, True, 5)(torch.arange(30), weight)
    assert len(many[0]) == 30 + 3


@pytest.mark.parametrize(("count", "total"), [(3, 6), (2, 9), (0, 4), (5, 5)])
def test_distinct_numbers_are_drawn_equally_often(count, total):
    draws = [tuple(sorted(distinct(count, total, generator(0, "x", i)).tolist())) for i in range(3000)]
    assert all(len(set(draw)) == count for draw in draws)
    sets = math.comb(total, count)
    assert len(set(draws)) == sets
    for chosen in set(draws):
        assert abs(draws.count(chosen) - 3000 / sets) < 5 * math.sqrt(3000 / sets) + 1


def test_resume_and_copies_are_exact():
    torch.manual_seed(0)
    head = hs.ArcFaceLoss(200, D, sample=20, sparse=True)
    optimizer = hs.optim.RowSGD(head.parameters(), lr=0.1)
    x, labels = torch.randn(B, D), torch.randint(200, (30, B))

    def run(head, optimizer, first, last):
        for step in range(first, last):
            optimizer.zero_grad()
            head(x, labels[step]).backward()
            optimizer.step()

    run(head, optimizer, 0, 13)
    resumed = hs.ArcFaceLoss(200, D, sample=20, sparse=True)
    resumed.load_state_dict(head.state_dict())
    other = hs.optim.RowSGD(resumed.parameters(), lr=0.5)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    twin = copy.deepcopy(head)
    run(head, optimizer, 13, 30)
    run(resumed, other, 13, 30)
    assert torch.equal(head.weight, resumed.weight)
    assert twin.sampler.draw == 13
    assert head.sampler.draw == 30
    plain = hs.ArcFaceLoss(200, D)
    plain.load_state_dict(head.state_dict())
    head.load_state_dict(plain.state_dict())
    torch.testing.assert_close(head.eval()(x, labels[0]), plain.eval()(x, labels[0]))  # all classes in eval mode


def test_rows_out_of_the_sample_do_not_move():
    torch.manual_seed(0)
    head = hs.ArcFaceLoss(500, D, sample=0.1, sparse=True)
    optimizer = hs.optim.RowSGD(head.parameters(), lr=0.1, momentum=0.9)
    for labels in torch.randint(500, (3, B)):
        before = head.weight.detach().clone()
        optimizer.zero_grad()
        head(torch.randn(B, D), labels).backward()
        optimizer.step()
        moved = (head.weight != before).any(1).nonzero().flatten()
        rows = head.weight.grad.coalesce().indices()[0]
        assert set(moved.tolist()) <= set(rows.tolist())
        assert 30 < len(moved) <= len(rows) == 50


@pytest.mark.parametrize("make", [torch.optim.SparseAdam, torch.optim.Adagrad, torch.optim.SGD, hs.optim.RowSGD])
def test_optimizers_that_take_rows(make):
    head = hs.ArcFaceLoss(50, D, sparse=True)
    before = head.weight.detach().clone()
    optimizer = make(head.parameters(), lr=0.1)
    head(torch.randn(B, D), torch.arange(B)).backward()
    optimizer.step()
    assert (head.weight[:B] != before[:B]).any(1).all()


@pytest.mark.parametrize("make", [torch.optim.Adam, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)])
def test_optimizers_that_do_not(make):
    head = hs.ArcFaceLoss(50, D, sparse=True)
    optimizer = make(head.parameters(), lr=0.1)
    head(torch.randn(B, D), torch.arange(B)).backward()
    with pytest.raises(
        ValueError, match=f"{type(optimizer).__name__}.* cannot step the sparse gradient of ArcFaceLoss"
    ):
        optimizer.step()


def test_bad_values():
    for value, message in (
        (0.0, "sample must be finite and > 0"),
        (41, "sample must be at most 40"),
        (0, "sample must be >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            hs.ArcFaceLoss(C, D, sample=value)
    with pytest.raises(TypeError, match=r"sample must be a share of the classes such as 0.1, .* got 'many'"):
        hs.ArcFaceLoss(C, D, sample="many")
    for name in ("sample", "sparse"):
        options = {name: 10 if name == "sample" else True}
        with pytest.raises(ValueError, match=f"energy_weight must be 0 with {name}="):
            hs.SphereFacePlusLoss(C, D, **options)
        with pytest.raises(ValueError, match=f"similarity must be one of hypersphere with {name}="):
            hs.WSoftmaxLoss(C, D, similarity=torch.tanh, **options)
    with pytest.raises(ValueError, match=r"label_smoothing must be 0 with sparse=True, got 0.1"):
        hs.ArcFaceLoss(C, D, sparse=True, label_smoothing=0.1)
    with pytest.raises(RuntimeError, match="sample= needs eager mode"):
        torch.func.grad(lambda x: hs.ArcFaceLoss(C, D, sample=9)(x, torch.tensor([1])))(torch.randn(1, D))


@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e4, 1e12, 1e38])
def test_hostile_embeddings_are_finite(factor):
    for options in ({"sample": 9}, {"sample": 9, "sparse": True}, {"sparse": True}, {"sample": 9, "correct": False}):
        for head in (hs.ArcFaceLoss(C, D, scale=1e4, **options), hs.WSoftmaxLoss(C, D, **options)):
            head.weight.data[3] = 0
            x, labels = batch(torch.float32)
            values = gradients(head, (x * factor).detach().clamp(-3e38, 3e38).requires_grad_(), labels)
            assert all(value.isfinite().all() for value in values)


def test_a_rotated_weight_has_dense_gradients():
    torch.manual_seed(0)
    head = hs.ArcFaceLoss(50, D, sample=0.5, sparse=True)
    hs.rotate(head)
    head(torch.randn(B, D), torch.arange(B)).backward()
    assert all(p.grad is not None and not p.grad.is_sparse for p in head.parameters() if p.requires_grad)
