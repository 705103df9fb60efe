"""Sharded heads: what is refused, in all processes with the same line and without a hang; files; precision."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import hypersphere as hs
from hypersphere.losses import AngularSoftmaxLoss, shard_head
from tests.losses.gloo import run, whole

pytestmark = pytest.mark.slow

C, D = 5, 6


def made(mesh=None, head=hs.ArcFaceLoss, **options):
    torch.manual_seed(0)
    plain = head(C, D, **options)
    return plain if mesh is None else shard_head(plain, mesh)


def message(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except (ValueError, TypeError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def refusals(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    head, x, y = made(mesh), torch.randn(4, D), torch.tensor([0, 1, 2, -100])

    def on_rank_1(there, here):
        return there if rank == 1 else here

    weights = torch.ones(4)
    calls = {
        "labels": (x, on_rank_1(y + 3, y)),
        "labels' dtype": (x, on_rank_1(y.float(), y)),
        "embeddings' size": (on_rank_1(x[:, :5], x), y),
        "embeddings": (on_rank_1(None, x), y),
        "dtype": (on_rank_1(x.double(), x), y),
        "gradient": (on_rank_1(x.clone().requires_grad_(), x), y),
        "sample_weight": (x, y, None, on_rank_1(weights[:3], weights)),
        "miner": (x, y, on_rank_1((y, y, y), None)),
        "weight's gradient": (x, y, None, on_rank_1(weights.clone().requires_grad_(), weights)),
    }
    said = {
        name: message(head, *arguments[:3], sample_weight=arguments[3] if len(arguments) > 3 else None)
        for name, arguments in calls.items()
    }
    with torch.set_grad_enabled(rank == 1):
        said["no_grad"] = message(head, x, y)
    said["eval"] = message(on_rank_1(made(mesh).eval(), head), x, y)
    said["logits"] = message(head.logits, on_rank_1(x[:, :5], x))
    two, named = (
        init_device_mesh("cpu", (1, size)),
        init_device_mesh("cpu", (1, size), mesh_dim_names=("data", "classes")),
    )
    said["two dimensions"] = message(shard_head, made(), two)
    said["named"] = message(shard_head, made(), named)
    assert torch.equal(shard_head(made(), named["classes"])(x, y), head(x, y))
    said["mesh"] = message(shard_head, made(), None)
    said["head"] = message(shard_head, nn.Linear(2, 2), mesh)
    said["twice"] = message(shard_head, head, mesh)
    said["similarity"] = message(shard_head, made(head=AngularSoftmaxLoss, similarity=lambda c: c**3), mesh)
    said["sparse"] = message(shard_head, made(sparse=True), mesh)
    said["output side"] = message(shard_head, hs.rotate(made(), side="output"), mesh)
    said["rotate"] = message(hs.rotate, head)
    said["functional"] = message(torch.func.vmap(lambda e: head(e, y)), x.expand(2, 4, D))
    said["larger file"] = message(head.load_state_dict, {"weight": torch.zeros(C + 1, D)})
    with torch.device("meta"):
        weighted = made(class_weight=[1.0] * C)
    said["meta"] = message(shard_head, weighted, mesh)
    head(x, y)  # it still works
    return said


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    return run(2, tmp_path_factory.mktemp("refused"), refusals)


@pytest.mark.parametrize(
    ("case", "expected"),
    {
        "labels": r"ValueError: rank 1: labels must be in \[0, 4\] or -100 \(ignored\), got 5 among others",
        "labels' dtype": "TypeError: rank 1: labels must be an int64 tensor",
        "embeddings' size": r"ValueError: rank 1: embeddings must be \(B, 6\), got \(4, 5\)",
        "embeddings": "TypeError: rank 1: embeddings",
        "dtype": "ValueError: dtype of embeddings must be equal on all ranks, got torch.float32, torch.float64",
        "gradient": "ValueError: embeddings.requires_grad must be equal on all ranks, got False, True",
        "sample_weight": r"ValueError: rank 1: sample_weight must be a tensor of shape \(4,\), got shape \(3,\)",
        "miner": "ValueError: rank 1: indices_tuple must be None for a sharded head: use sample_weight",
        "weight's gradient": "ValueError: rank 1: sample_weight of a sharded head must not require a gradient",
        "no_grad": r"ValueError: torch.is_grad_enabled\(\) must be equal on all ranks, got False, True",
        "eval": "ValueError: head.training must be equal on all ranks, got True, False",
        "logits": r"ValueError: rank 1: embeddings must be \(B, 6\), got \(4, 5\)",
        "two dimensions": r'ValueError: mesh must have one dimension, got 2: choose one, as in mesh\["name"\]',
        "named": r'ValueError: mesh must have one dimension, got 2: choose one, as in mesh\["classes"\]',
        "mesh": "TypeError: mesh must be a DeviceMesh",
        "head": "TypeError: head must be a loss head such as ArcFaceLoss, got Linear",
        "twice": "ValueError: head is sharded already",
        "similarity": "ValueError: head must have a similarity of hypersphere to be sharded",
        "sparse": "ValueError: head must be made without sparse= to be sharded",
        "output side": "ValueError: head to be sharded must be rotated with side='input' if at all, got side='output'",
        "rotate": r"ValueError: layer '\(root\)' is split over processes: rotate supports nn.Linear",
        "functional": "RuntimeError: a sharded head runs in eager mode only",
        "larger file": r"ValueError: weight must be \(5, 6\) to be loaded into this head, got \(6, 6\)",
        "meta": "ValueError: head on the meta device has lost class_weight: make it on a device",
    }.items(),
)
def test_refused_with_the_same_line_on_all_ranks(refused, case, expected):
    first, second = (said[case] for said in refused)
    assert first == second
    assert re.match(expected, first), first
    assert "\n" not in first


def states(rank, size):
    """What heads give that have no counterpart in training: logits, copies, loaded and started weights, precision."""
    mesh, results = init_device_mesh("cpu", (size,)), {}
    plain, head = (made(m, bias=True, label_smoothing=0.1, dtype=torch.float64) for m in (None, mesh))
    with torch.no_grad():
        plain.bias.copy_(torch.arange(C) / 4)
    head.load_state_dict(plain.state_dict())
    assert isinstance(head.weight, DTensor)
    assert isinstance(head.bias, DTensor)
    torch.manual_seed(2)
    x, y = torch.randn(3 * size, D), torch.randint(C, (3 * size,))
    last = 3 * size - (size > 1)  # of the first process; the second has one sample, the third none
    own = slice(0, last) if rank == 0 else slice(last, last + (rank == 1))
    for similarity in (None, "linear", "learnable"):
        for scale in (None, 8.0):
            if similarity is not None:
                plain, head = (
                    made(m, AngularSoftmaxLoss, similarity=similarity, scale=scale, bias=True, dtype=torch.float64)
                    for m in (None, mesh)
                )
            inputs = [x.double().clone().requires_grad_() for _ in range(2)]
            logits, expected = head.logits(inputs[0][own]), plain.logits(inputs[1])
            torch.testing.assert_close(logits, expected[own])
            (logits.sin().sum()).backward()
            expected.sin().sum().backward()
            torch.testing.assert_close(inputs[0].grad[own] / size, inputs[1].grad[own])
            torch.testing.assert_close(whole(head.weight.grad), plain.weight.grad)
            plain.zero_grad()
            head.zero_grad()
    early = made()
    optimizer = torch.optim.SGD(early.parameters(), lr=0.1)
    shard_head(early, mesh)(x[own], y[own]).backward()
    with pytest.warns(UserWarning, match=r"SGD was made before hypersphere.losses.shard_head"):
        optimizer.step()
    turned = shard_head(hs.rotate(made(), init="normal", method="exponential"), mesh)
    before = turned(x[own], y[own])
    assert isinstance(hs.merge(turned).weight, DTensor)
    torch.testing.assert_close(turned(x[own], y[own]), before)
    plain, head = (made(m) for m in (None, mesh))
    with torch.no_grad():
        torch.testing.assert_close(head(x[own], y[own]), plain(x, y))
    copied = copy.deepcopy(head.eval())
    torch.testing.assert_close(copied(x[own], y[own]), plain(x, y).detach())
    assert not copied.training
    empty = head(x[:0], y[:0])
    assert empty == 0
    ignored = head.train()(x[own], torch.full_like(y, -100)[own])
    assert ignored == 0
    ignored.backward()
    assert not whole(head.weight.grad).any()
    for dtype in (torch.float16, torch.bfloat16):
        half, other = (made(m, dtype=dtype, scale=8.0) for m in (None, mesh))
        inputs = [x.to(dtype).requires_grad_() for _ in range(2)]
        loss, expected = other(inputs[0][own], y[own]), half(inputs[1], y)
        assert loss.dtype is dtype
        loss.backward()
        expected.backward()
        tolerance = {"rtol": 0.05, "atol": 0.01}
        torch.testing.assert_close(loss, expected, **tolerance)
        torch.testing.assert_close(inputs[0].grad[own] / size, inputs[1].grad[own], **tolerance)
        torch.testing.assert_close(whole(other.weight.grad), half.weight.grad, **tolerance)
    for long in (3e38, 1e-38, 0.0):
        for scale in (None, 30.0):
            other = made(mesh, AngularSoftmaxLoss, scale=scale, margin=("additive_angle", 0.3))
            hostile = (torch.randn(4, D).sign() * long).requires_grad_()
            loss = other(hostile, torch.tensor([0, 1, 4, 4]))
            loss.backward()
            for value in (loss, hostile.grad, whole(other.weight.grad)):
                assert value.isfinite().all(), (long, scale)
    with torch.device("meta"):
        started = hs.ASoftmaxLoss(9000, 4, bias=True)
    torch.manual_seed(rank)  # the first process's counts
    results["started"] = whole(shard_head(started, mesh).weight.detach())
    assert started.step == 0
    assert not whole(started.bias).any()
    assert abs(results["started"].std() - (2 / 9004) ** 0.5) < 1e-3
    return results


@pytest.mark.parametrize("size", [2, 3])
def test_states(tmp_path, size):
    """A head on the meta device starts the same for any number of processes."""
    other, first, *_ = run(1, tmp_path, states)[0], *run(size, tmp_path, states)
    assert torch.equal(first["started"], other["started"])
