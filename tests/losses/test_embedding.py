"""Center loss, and losses of pytorch-metric-learning as heads of a training."""

import sys

import pytest
import torch
from pytorch_metric_learning import losses as library

import hypersphere as hs
from hypersphere._internal.modules import install_command
from hypersphere.integrations.pytorch_metric_learning import METRIC_LOSSES, MetricLoss
from hypersphere.train import Config, ConfigError, load_run
from hypersphere.train.config import derive
from hypersphere.train.inference.scores import scores
from tests import reference
from tests.runs import one_line, quiet, tiny

F64 = torch.float64


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(12, 5), torch.arange(12) % 4


def center(**options):
    torch.manual_seed(1)
    head = hs.losses.CenterLoss(4, 5, **options).double()
    torch.nn.init.normal_(head.centers)
    return head


def test_center_loss_is_the_literal_one_with_its_gradients(batch):
    x, labels = batch[0].double(), batch[1]
    head = center(center_weight=0.7)
    values = head(x, labels), reference.center_loss(x, labels, head.weight, head.bias, head.centers, 0.7)
    torch.testing.assert_close(*values)
    tensors = [head.weight, head.bias, head.centers]
    torch.testing.assert_close(*(torch.autograd.grad(value, tensors) for value in values))
    assert torch.equal(head.logits(x), x @ head.weight.T + head.bias)


def test_centres_have_no_weight_decay_and_the_classifier_has():
    groups = {group["name"]: group["params"] for group in hs.param_groups(hs.losses.CenterLoss(4, 5), weight_decay=0.1)}
    assert [tuple(p.shape) for p in groups["weights"]] == [(4, 5)]
    assert sorted(tuple(p.shape) for p in groups["no_decay"]) == [(4,), (4, 5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"center_weight": -1}, "center_weight must be finite and >= 0"),
        ({"num_classes": 1}, "num_classes must be >= 2"),
        ({"label_smoothing": 2}, "label_smoothing must be"),
    ],
)
def test_center_loss_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        hs.losses.CenterLoss(**{"num_classes": 3, "embedding_size": 2} | options)


@pytest.mark.parametrize("name", METRIC_LOSSES)
def test_every_metric_loss_is_that_of_the_library(name, batch):
    """With its value and the gradient of the embeddings, and a classifier that learns beside it."""
    x, labels = batch[0].requires_grad_(), batch[1]
    head = MetricLoss(name, 4, 5)
    loss = head(x, labels)
    torch.testing.assert_close(loss, head.loss(x, labels))
    (mine,) = torch.autograd.grad(loss, x, retain_graph=True)
    torch.testing.assert_close(mine, torch.autograd.grad(head.loss(x, labels), x)[0])
    loss.backward()
    assert head.logits(x).shape == (12, 4)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())
    assert (head.linear is None) == hasattr(getattr(library, name), "get_logits")


def test_softmax_and_contrastive(batch):
    x, labels = batch
    head = MetricLoss("ContrastiveLoss", 4, 5, softmax_weight=0.5)
    softmax = torch.nn.functional.cross_entropy(head.linear(x), labels)
    torch.testing.assert_close(head(x, labels), library.ContrastiveLoss()(x, labels) + 0.5 * softmax)


def test_margin_reaches_the_library(batch):
    wanted = library.TripletMarginLoss(margin=0.4)(*batch)
    torch.testing.assert_close(MetricLoss("TripletMarginLoss", 4, 5, margin=0.4)(*batch), wanted)


def test_metric_loss_bad_input(monkeypatch):
    with pytest.raises(ValueError, match="'TripletLoss', did you mean 'TripletMarginLoss'"):
        MetricLoss("TripletLoss", 4, 5)
    with pytest.raises(ValueError, match="NPairsLoss takes no margin"):
        MetricLoss("NPairsLoss", 4, 5, margin=1.0)
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    wanted = f"losses named pml.... need pytorch-metric-learning: {install_command('metric')}"
    assert wanted in one_line(derive(tiny(), {"loss.name": "pml.NPairsLoss"}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        {"loss.name": "center", "loss.center_weight": 0.1},
        {"loss.name": "pml.ContrastiveLoss", "loss.softmax_weight": 1.0},
    ],
    ids=lambda loss: loss["loss.name"],
)
def test_training_with_them(loss, tmp_path):
    """They learn, are saved and loaded; an energy can be added."""
    changes = {
        "out": str(tmp_path / "run"),
        "steps": 40,
        "energy.s": 2.0,
        "optimizer.lr": 0.05,
        "model.widths": (32, 16),
    }
    result = quiet(derive(tiny(), loss | changes))
    assert result.summary.accuracy > 0.3  # chance is 0.1
    again = scores(load_run(tmp_path / "run"))
    assert again.accuracy == result.summary.accuracy
    assert again.loss == pytest.approx(result.summary.loss)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss.name": "pml.TripletLoss"}, "unknown loss.name 'pml.TripletLoss', did you mean 'pml.TripletMarginLoss'"),
        ({"loss.name": "center", "loss.margin": 1.0}, "loss.margin needs loss.name to be one of"),
        ({"loss.center_weight": 1.0}, "loss.center_weight needs loss.name to be one of center; got softmax"),
        ({"loss.name": "center", "loss.energy_weight": 1.0}, "loss.energy_weight needs an angular loss; with center"),
        ({"loss.name": "pml.NPairsLoss", "loss.bias": True}, "loss.bias needs an angular loss"),
        ({"loss.name": "pml.NPairsLoss", "loss.softmax_weight": -1.0}, "loss.softmax_weight must be"),
    ],
)
def test_configs_that_contradict_themselves(changes, message):
    with pytest.raises(ConfigError) as caught:
        derive(Config(), changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


HEADS = {
    "center": lambda: hs.losses.CenterLoss(4, 5, center_weight=0.5, label_smoothing=0.1),
    "triplet": lambda: MetricLoss("TripletMarginLoss", 4, 5),
    "margin and softmax": lambda: MetricLoss("LargeMarginSoftmaxLoss", 4, 5, softmax_weight=1.0),
}


@pytest.mark.parametrize("name", HEADS)
def test_an_empty_batch_has_no_loss(name):
    head, x = HEADS[name](), torch.empty(0, 5, requires_grad=True)
    value = head(x, torch.empty(0, dtype=torch.long))
    value.backward()
    assert value == 0
    assert all((p.grad == 0).all() for p in head.parameters())  # DDP waits for them
    assert head.logits(x).shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize("name", HEADS)
def test_huge_numbers_stay_finite(name, dtype):
    largest = torch.finfo(dtype).max
    for size, huge_weights in ((largest**0.5, False), (largest, False), (largest**0.5, True), (largest, True)):
        torch.manual_seed(0)
        head, labels = HEADS[name](), torch.arange(6) % 4
        if name == "center":
            head = head.to(dtype)
        for p in head.parameters() if huge_weights else ():
            p.data.copy_(torch.randn_like(p).sign() * min(size, torch.finfo(p.dtype).max))
        x = (torch.randn(6, 5).sign().to(dtype) * size).requires_grad_()
        value = head(x, labels)
        value.backward()
        results = [value, x.grad, head.logits(x), *(p.grad for p in head.parameters() if p.grad is not None)]
        assert all(tensor.isfinite().all() for tensor in results), (size, huge_weights)


def test_center_loss_of_huge_numbers_has_the_gradient_of_float64(batch):
    """The squares overflow, their gradient does not; an infinite input is not hidden."""
    torch.manual_seed(0)
    x, labels = batch[0] * 1e20, batch[1]
    head = hs.losses.CenterLoss(4, 5)
    exact = hs.losses.CenterLoss(4, 5).double()
    exact.load_state_dict(head.state_dict())
    values = head(x.requires_grad_(), labels), exact(wide := x.detach().double().requires_grad_(), labels)
    for value in values:
        value.backward()
    torch.testing.assert_close(values[0], values[1].float())
    torch.testing.assert_close(x.grad, wide.grad.float())
    torch.testing.assert_close(head.weight.grad, exact.weight.grad.float())
    assert not head(x.detach().fill_(torch.inf), labels).isfinite()
