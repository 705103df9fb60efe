"""Sub-centers: the losses of pytorch-metric-learning, and what else reads the weight (C, K, d) of a head."""

import math

import pytest
import torch
from pytorch_metric_learning import losses as pml

import hypersphere as hs
from tests import reference

F64 = torch.float64
C, K, D = 5, 3, 8


def both(dtype=torch.float32):
    ours = hs.ArcFaceLoss(C, D, margin=math.radians(28.6), scale=64.0, subcenters=K, dtype=dtype)
    theirs = pml.SubCenterArcFaceLoss(num_classes=C, embedding_size=D, margin=28.6, scale=64, sub_centers=K)
    theirs.W.data = ours.weight.detach().flatten(0, 1).T.clone()
    return ours, theirs


@pytest.mark.parametrize("stream", [False, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (F64, 1e-12)])
def test_equals_pytorch_metric_learning(dtype, tolerance, stream):
    ours, theirs = both(dtype)
    ours.stream = stream
    x, labels = torch.randn(40, D, dtype=dtype, requires_grad=True), torch.arange(40) % C
    one, other = ours(x, labels), theirs(x, labels)
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    mine = torch.autograd.grad(one, [x, ours.weight])
    peers = torch.autograd.grad(other, [x, theirs.W])
    torch.testing.assert_close(mine[0], peers[0], rtol=1e-4, atol=20 * tolerance)
    torch.testing.assert_close(mine[1].flatten(0, 1), peers[1].T, rtol=1e-4, atol=20 * tolerance)
    torch.testing.assert_close(ours.logits(x), theirs.get_logits(x), rtol=tolerance, atol=64 * tolerance)


@pytest.mark.parametrize("threshold", [60, 75, 90])
def test_outliers_are_those_of_pytorch_metric_learning(threshold):
    ours, theirs = both()
    x, labels = torch.randn(200, D), torch.randint(C - 1, (200,))  # a class without samples
    x += 0.5 * ours.weight.detach()[labels, 0] / ours.weight.std()
    expected, _ = theirs.get_outliers(x, labels, threshold=threshold)
    found = ours.outliers(x, labels, math.radians(threshold))
    assert 0 < len(found) < 200
    assert torch.equal(found, expected)
    labels[expected[0]] = -100
    assert set(ours.outliers(x, labels, math.radians(threshold)).tolist()) <= set(expected[1:].tolist())


def test_outliers_of_a_head_with_one_center():
    head = hs.AMSoftmaxLoss(2, 2)
    head.weight.data = torch.eye(2)
    x = torch.tensor([[1.0, 0.2], [0.1, 1.0], [0.0, 0.0], [-1.0, 1e-3]])
    assert head.outliers(x, torch.tensor([0, 0, 1, 1])).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="threshold must be finite and >= 0 and <= 3"):
        head.outliers(x, torch.tensor([0, 0, 1, 1]), threshold=75)


@pytest.mark.parametrize("similarity", ["cosine", "linear", "learnable"])
@pytest.mark.parametrize("scale", [None, 20.0])
def test_logits_are_those_of_the_nearest(similarity, scale):
    head = hs.GASoftmaxLoss(C, D, similarity, margin=1.5, scale=scale, subcenters=K, dtype=F64, bias=True)
    x = torch.randn(6, D, dtype=F64)
    cosines = reference.cosines(x, head.weight.detach().flatten(0, 1)).view(6, C, K).amax(2)
    lengths = scale if scale else x.norm(dim=1, keepdim=True)
    torch.testing.assert_close(head.logits(x), lengths * head.similarity(cosines) + head.bias)


def test_energy_is_that_of_all_subcenters_at_the_nearest():
    options = {"subcenters": K, "dtype": F64}
    head, plain = hs.ArcFaceLoss(C, D, energy_weight=0.7, **options), hs.ArcFaceLoss(C, D, **options)
    plain.load_state_dict(head.state_dict())
    x, labels = torch.randn(6, D, dtype=F64), torch.tensor([0, 1, 2, 3, 4, 0])
    rows = head.weight.detach().flatten(0, 1)
    of_label = [reference.cosines(x[i : i + 1], rows[K * y : K * y + K]) for i, y in enumerate(labels.tolist())]
    nearest = [K * y + int(row.argmax()) for row, y in zip(of_label, labels.tolist(), strict=True)]
    expected = reference.class_energies(rows, torch.tensor(nearest), 2.0).mean()
    torch.testing.assert_close(head(x, labels) - plain(x, labels), 0.7 * expected)


def test_neurons_of_a_head_are_its_subcenters():
    head = hs.ArcFaceLoss(C, D, subcenters=K, bias=True)
    (neurons,) = hs.select(head, output=None).values()
    assert torch.equal(neurons.matrix()[0], head.weight.flatten(0, 1))
    (row,) = hs.diagnose(head)
    assert (row.neurons, row.dimension) == (C * K, D)
    energy = hs.hyperspherical_energy(head.weight.detach().flatten(0, 1)).item()
    body = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, D))
    regularizer = hs.EnergyRegularizer(body, head=head)
    assert regularizer.per_layer()["head"] == pytest.approx(energy, rel=1e-5)
    assert regularizer().isfinite()
    with pytest.raises(ValueError, match="labels must be None for a head with 3 sub-centers"):
        regularizer(torch.tensor([0, 1]))
    names = {group["name"] for group in hs.param_groups(head, weight_decay=1e-3)}
    assert names == {"no_decay"}  # of class weights only the direction counts
    hs.spread(head, layers=head.__class__, steps=3)
    assert head.weight.shape == (C, K, D)


@pytest.mark.parametrize("method", ["cayley", "householder"])
def test_a_rotated_head_keeps_its_function_and_merges(method):
    head = hs.ArcFaceLoss(C, D, subcenters=K)
    x, labels = torch.randn(6, D), torch.tensor([0, 1, 2, 3, 4, 0])
    before = head(x, labels)
    hs.rotate(head, method)
    torch.testing.assert_close(head(x, labels), before)
    head(x, labels).backward()
    hs.merge(head)
    assert head.weight.shape == (C, K, D)
    torch.testing.assert_close(head(x, labels), before)


def test_a_head_of_another_number_of_subcenters_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        hs.ArcFaceLoss(C, D).load_state_dict(hs.ArcFaceLoss(C, D, subcenters=K).state_dict())
