"""Heads with reducers, distances and regularizers of pytorch-metric-learning, against formulas and its own losses."""

import math
import re
import sys

import pytest
import torch
from pytorch_metric_learning import distances, losses, reducers, regularizers
from tools.metric_learning_tests import OURS
from torch import nn

import hypersphere as hs
from hypersphere._internal.modules import install_command
from hypersphere.integrations.pytorch_metric_learning import MetricLoss
from tests import reference

F64 = torch.float64
CLASSES = 5
MARGINS = {hs.ArcFaceLoss: reference.arcface, hs.AMSoftmaxLoss: reference.am_softmax, hs.ASoftmaxLoss: reference.psi}


@pytest.fixture
def batch():
    """Embeddings of several lengths at every third degree of half a circle."""
    theta = torch.arange(0, 180, 3, dtype=F64) * math.pi / 180
    lengths = torch.linspace(0.5, 3, len(theta), dtype=F64).unsqueeze(1)
    return lengths * torch.stack([theta.cos(), theta.sin()], 1), torch.arange(len(theta)) % CLASSES


def at_known_angles(kind, *args, **options):
    """A head whose class weights stand at 10°, 50°, 90°, 130° and 170°, with lengths that must not matter."""
    head = kind(CLASSES, 2, *args, dtype=F64, **options)
    theta = torch.arange(CLASSES, dtype=F64) * math.pi * 2 / 9 + math.pi / 18
    head.weight.data = torch.stack([theta.cos(), theta.sin()], 1) * torch.arange(1, CLASSES + 1).unsqueeze(1)
    return head


def literal(head, x, labels):
    """The loss of each sample by its angles."""
    losses = []
    for row, label in zip(x, labels, strict=True):
        theta = torch.stack([reference.angle(row, w) for w in head.weight])
        logits = theta.cos()
        if type(head) in MARGINS:
            logits[label] = MARGINS[type(head)](theta[label], head.margin)
        logits = logits * (row.norm() if head.scale is None else head.scale)
        losses.append(logits.exp().sum().log() - logits[label])
    return torch.stack(losses)


@pytest.mark.parametrize(
    ("reducer", "reduce"),
    [
        (reducers.MeanReducer(), lambda losses, labels: losses.mean()),
        (reducers.SumReducer(), lambda losses, labels: losses.sum()),
        (reducers.ThresholdReducer(low=2.0), lambda losses, labels: losses[losses > 2].mean()),
        (
            reducers.ClassWeightedReducer(torch.arange(1.0, CLASSES + 1, dtype=F64)),
            lambda losses, labels: (losses * (labels + 1)).mean(),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_reducers(reducer, reduce, batch):
    """Samples that are ignored are not reduced; a miner's weights are applied first."""
    x, labels = batch[0].requires_grad_(), batch[1].clone()
    labels[::7] = -100
    head = at_known_angles(hs.AMSoftmaxLoss, reducer=reducer)
    losses = literal(head, x, labels.clamp_min(0))
    counted = labels >= 0
    loss = head(x, labels)
    torch.testing.assert_close(loss, reduce(losses[counted], labels[counted]))
    (gradient,) = torch.autograd.grad(loss, x)
    assert not gradient[~counted].any()
    assert gradient[counted].any()
    miner = (torch.arange(0, 30), torch.arange(0, 20))
    counts = torch.bincount(torch.cat(miner), minlength=len(x)) / 2
    torch.testing.assert_close(head(x, labels, miner), reduce((losses * counts)[counted], labels[counted]))


@pytest.mark.parametrize("reducer", [None, reducers.SumReducer()], ids=["own mean", "reducer"])
def test_regularizers_are_added_once(reducer, batch):
    x, labels = batch
    added = {
        "weight_regularizer": regularizers.RegularFaceRegularizer(),
        "weight_reg_weight": 0.3,
        "embedding_regularizer": regularizers.LpRegularizer(),
        "embedding_reg_weight": 0.2,
    }
    options = {"class_weight": [1.0, 2.0, 1.0, 3.0, 1.0]}
    head = at_known_angles(hs.ArcFaceLoss, reducer=reducer, **added, **options)
    weight = torch.tensor(options["class_weight"], dtype=F64)[labels]
    losses = literal(head, x, labels) * weight
    loss = losses.sum() if reducer else losses.sum() / weight.sum()
    unit = head.weight / head.weight.norm(dim=1, keepdim=True)
    nearest = (unit @ unit.T - 2 * torch.eye(CLASSES)).amax(1)  # RegularFace: the cosine of the nearest other class
    torch.testing.assert_close(head(x, labels), loss + 0.3 * nearest.mean() + 0.2 * x.norm(dim=1).mean())


@pytest.mark.parametrize("name", OURS)
def test_adapted_heads_are_the_losses_of_the_library(name, batch):
    """What tools/metric_learning_tests.py gives to the library's own tests: value, gradients, logits, regularizer."""
    x, labels = batch[0].requires_grad_(), batch[1]
    options = {"num_classes": CLASSES, "embedding_size": 2, "weight_reg_weight": 0.1}
    options["weight_regularizer"] = regularizers.CenterInvariantRegularizer()
    options |= {"temperature": 0.1} if name == "NormalizedSoftmaxLoss" else {"scale": 2.0}
    options |= {"ArcFaceLoss": {"margin": 30}, "SphereFaceLoss": {"margin": 3}}.get(name, {})
    unnormalized = distances.DotProductSimilarity(normalize_embeddings=False)
    for distance in [None, unnormalized] if name == "NormalizedSoftmaxLoss" else [None, distances.CosineSimilarity()]:
        theirs, ours = getattr(losses, name)(**options, distance=distance), OURS[name](**options, distance=distance)
        ours.double().weight.data = theirs.W.data.T.double().clone()
        values = theirs(x, labels), ours(x, labels)
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*(torch.autograd.grad(value, x)[0] for value in values))
        torch.testing.assert_close(ours.get_logits(x), theirs.get_logits(x))
        assert torch.equal(ours.W, theirs.W)


def test_a_loss_by_name_takes_them_too(batch):
    x, labels = batch[0].float(), batch[1]
    options = {"reducer": reducers.SumReducer(), "distance": distances.LpDistance(power=2)}
    head = MetricLoss("ContrastiveLoss", CLASSES, 2, **options)
    torch.testing.assert_close(head(x, labels), losses.ContrastiveLoss(**options)(x, labels))
    with pytest.raises(TypeError, match=r"ContrastiveLoss: .*weight_regularizer"):
        MetricLoss("ContrastiveLoss", CLASSES, 2, weight_regularizer=regularizers.RegularFaceRegularizer())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"distance": distances.LpDistance()}, ValueError, "distance must be CosineSimilarity.*got LpDistance"),
        (
            {"distance": distances.DotProductSimilarity(normalize_embeddings=False)},
            ValueError,
            r"DotProductSimilarity\(normalize_embeddings=True\), got DotProductSimilarity with .*'normalize_.*': False",
        ),
        ({"reducer": "mean"}, TypeError, "reducer must be None or one of"),
        ({"reducer": reducers.MeanReducer(), "reduction": "sum"}, ValueError, "leave out reduction='sum'"),
        ({"weight_regularizer": nn.Identity(), "reduction": "none"}, ValueError, "reduction='none' has no sum"),
        ({"weight_reg_weight": math.nan}, ValueError, "weight_reg_weight must be finite"),
    ],
)
def test_bad_input(options, error, message):
    with pytest.raises(error, match=message):
        hs.ArcFaceLoss(CLASSES, 2, **options)


def test_without_the_package(monkeypatch):
    monkeypatch.delitem(sys.modules, "hypersphere.losses._reduction", raising=False)
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    hs.ArcFaceLoss(CLASSES, 2)
    with pytest.raises(ImportError, match=re.escape(install_command("metric"))):
        hs.ArcFaceLoss(CLASSES, 2, reducer=nn.Identity())
