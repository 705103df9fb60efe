"""Sharded heads that sample their classes: every process from its own."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh

import hypersphere as hs
from hypersphere.losses import shard_head
from tests.losses.gloo import run, whole

pytestmark = pytest.mark.slow

F64 = torch.float64
C, D, B, DRAWS = 23, 6, 8, 600
OPTIONS = {"margin": 0.3, "scale": 4.0, "bias": True, "dtype": F64}


def made(size, **options):
    torch.manual_seed(0)
    head = hs.ArcFaceLoss(C, D, **(OPTIONS | options))
    return shard_head(head, init_device_mesh("cpu", (size,))) if size else head


def batches(count):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, B, D, generator=generator, dtype=F64)
    return x, torch.randint(C, (count, B), generator=generator)


def own(rank, size):
    return torch.arange(B).chunk(size)[rank] if size else slice(None)


def train(head, rank, size, steps):
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    x, y = batches(steps.stop)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = head(x[step, own(rank, size)], y[step, own(rank, size)])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses)} | {k: whole(v.detach()).clone() for k, v in head.state_dict().items()}


def all_classes(rank, size):
    """A sample of all classes is no sample."""
    return train(made(size, sample=1.0), rank, size, range(6))


def estimates(rank, size):
    """The mean over draws of Σ exp L_j / exp L_y of the own samples, and how many classes take part."""
    head, (x, y) = made(size, sample=8, reduction="none"), batches(1)
    x, y = x[0, own(rank, size)], y[0, own(rank, size)]
    sums = torch.stack([head(x, y).detach().expm1() for _ in range(DRAWS)])
    with torch.no_grad():
        exact = made(size, reduction="none")(x, y).expm1()
    return {"mean": sums.mean(0), "error": sums.std(0) / DRAWS**0.5, "exact": exact}


def resumed(rank, size, folder):
    """Six steps, and three, saved, loaded and three more; plus whether a plain state_dict was split."""
    options = {"sample": 6}
    straight = train(made(size, **options), rank, size, range(6))
    head = made(size, **options)
    train(head, rank, size, range(3))
    dcp.save(head.state_dict(), checkpoint_id=f"{folder}/checkpoint")
    again = made(size, **options)
    state = again.state_dict()
    dcp.load(state, checkpoint_id=f"{folder}/checkpoint")
    again.load_state_dict(state)
    draws = [
        head.sampler(torch.tensor([0]), whole(head.weight), False),
        again.sampler(torch.tensor([0]), whole(head.weight), False),
    ]
    plain = made(size, **options)
    plain.load_state_dict({key: whole(value) for key, value in head.state_dict().items()})
    near = [whole(h.sampler.near) for h in (head, again, plain)]
    return {"steps": straight["sampler.draw"], "draws": draws, "near": near}


def loaded_elsewhere(rank, size, folder):
    head = made(size, sample=6)
    state = head.state_dict()
    dcp.load(state, checkpoint_id=f"{folder}/checkpoint")
    head.load_state_dict(state)
    return train(head, rank, size, range(3, 6)) | {"near": whole(head.sampler.near)}


@pytest.mark.parametrize("size", [2, 3])
def test_a_sample_of_all_classes_is_the_whole_head(size, tmp_path):
    expected = train(made(0), 0, 0, range(6))
    for state in run(size, tmp_path / "ranks", all_classes):
        for key, value in expected.items():
            torch.testing.assert_close(state[key], value, rtol=1e-9, atol=1e-11, msg=key)


def test_sums_are_right_on_average(tmp_path):
    for state in run(2, tmp_path / "ranks", estimates):
        assert (state["error"] > 0).all()
        assert ((state["mean"] - state["exact"]).abs() < 4.5 * state["error"]).all()


def test_checkpoints(tmp_path):
    """At the same number of processes the same classes are drawn; at another one what was searched is there."""
    for state in run(2, tmp_path / "two", resumed, str(tmp_path)):
        assert state["steps"] == 6
        for first, second in zip(*state["draws"], strict=True):
            assert torch.equal(first, second)
        assert all(torch.equal(near, state["near"][0]) for near in state["near"])
        near, halves = state["near"][0], (torch.arange(12), torch.arange(12, C))  # as torch.chunk splits the classes
        for half in halves:  # near classes are those of the same process, by their number among all
            searched = near[half][near[half] >= 0]
            assert len(searched)
            assert torch.isin(searched, half).all()
        assert (near != torch.arange(C).unsqueeze(1)).all()
    for state in run(3, tmp_path / "three", loaded_elsewhere, str(tmp_path)):
        assert state["losses"].isfinite().all()
        assert state["near"].shape == (C, 8)
