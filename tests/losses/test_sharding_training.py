"""Sharded heads in a training: FSDP2, clipped gradients, accumulation, autocast, checkpoints at another world size."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

import hypersphere as hs
from hypersphere.losses import shard_head
from tests.losses.gloo import run, whole

pytestmark = pytest.mark.slow

C, D, B, STEPS = 7, 6, 12, 20
OPTIMIZERS = {"sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), "adamw": (torch.optim.AdamW, {"lr": 0.01})}


def clip(parameters, limit):
    """Clip the gradients of plain parameters and DTensors together."""
    parameters = [p for p in parameters if p.grad is not None]
    plain = [p for p in parameters if not isinstance(p, DTensor)]
    sharded = [p for p in parameters if isinstance(p, DTensor)]
    norms = [whole(get_total_norm([p.grad for p in kind])) for kind in (plain, sharded) if kind]
    total = torch.stack(norms).norm()
    for kind in (plain, sharded):
        clip_grads_with_norm_(kind, limit, total)
    return total


class Training:
    """A network and a head whose classes are split, and the samples of this process."""

    def __init__(self, rank, size, wrap=DistributedDataParallel, optimizer="sgd", dtype=torch.float32, **options):
        torch.manual_seed(0)
        self.body = self.model = nn.Sequential(nn.Linear(D, 8, dtype=dtype), nn.Tanh(), nn.Linear(8, D, dtype=dtype))
        self.head = hs.ASoftmaxLoss(C, D, margin=2, scale=8.0, bias=True, dtype=dtype, **options)
        if size:
            self.model = wrap(self.body)
            shard_head(self.head, init_device_mesh("cpu", (size,)))
        kind, settings = OPTIMIZERS[optimizer]
        self.modules = nn.ModuleDict({"body": self.body, "head": self.head})
        self.optimizer = kind(self.modules.parameters(), **settings)
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(3 * STEPS, B, D, generator=generator, dtype=dtype)
        self.y = torch.randint(C, (3 * STEPS, B), generator=generator)
        self.own = torch.arange(B).chunk(size)[rank] if size else slice(None)

    def step(self, number, *, clipped=None, amp=False):
        x, y = self.x[number, self.own], self.y[number, self.own]
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            loss = self.head(self.model(x), y)
        loss.backward()
        if clipped is not None:
            clip(self.modules.parameters(), clipped)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def accumulate(self, first, second):
        for number in (first, second):
            (self.head(self.model(self.x[number, self.own]), self.y[number, self.own]) / 2).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        return {name: whole(p.detach()).clone() for name, p in self.modules.state_dict().items()}


def trainings(rank, size):
    """The states after trainings of several kinds."""
    states = {}
    kinds = {"clipped": {"clipped": 0.05}, "autocast": {"amp": True}}
    for name, options in kinds.items():
        training = Training(rank, size)
        for number in range(STEPS):
            training.step(number, **options)
        states[name] = training.state()
    training = Training(rank, size)
    for number in range(0, STEPS, 2):
        training.accumulate(number, number + 1)
    states["accumulated"] = training.state()
    training = Training(rank, size, fully_shard, energy_weight=0.1)
    for number in range(STEPS):
        training.step(number, clipped=1.0)
    states["FSDP2"] = training.state()
    return states


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run(2, tmp_path_factory.mktemp("ranks"), trainings)


@pytest.fixture(scope="module")
def alone():
    return trainings(0, 0)


@pytest.mark.parametrize("kind", ["clipped", "autocast", "accumulated", "FSDP2"])
def test_as_in_one_process(ranks, alone, kind):
    tolerance = 2e-2 if kind == "autocast" else 1e-5
    for key, value in alone[kind].items():
        first, second = (states[kind][key] for states in ranks)
        assert torch.equal(first, second)
        torch.testing.assert_close(first, value, rtol=tolerance, atol=tolerance, msg=lambda m, key=key: f"{key}: {m}")


def checkpoint(training):
    optimizer = get_optimizer_state_dict(training.modules, training.optimizer)
    return {"model": training.modules.state_dict(), "optimizer": optimizer}


def saved(rank, size, folder):
    for name in OPTIMIZERS:
        training = Training(rank, size, optimizer=name)
        for number in range(STEPS):
            training.step(number)
        dcp.save(checkpoint(training), checkpoint_id=f"{folder}/{name}")
    return {}


def resumed(rank, size, folder):
    states = {}
    for name in OPTIMIZERS:
        training = Training(rank, size, optimizer=name)
        state = checkpoint(training)
        dcp.load(state, checkpoint_id=f"{folder}/{name}")
        training.modules.load_state_dict(state["model"])
        set_optimizer_state_dict(training.modules, training.optimizer, state["optimizer"])
        assert training.head.step == STEPS
        for number in range(STEPS, 2 * STEPS):
            training.step(number)
        states[name] = training.state()
    return states


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    run(2, folder / "two", saved, str(folder))
    return folder


@pytest.mark.parametrize("size", [1, 3, 4])
def test_saved_by_two_processes_and_resumed_by_others(folder, size):
    """With the optimizer's state, at any number of processes: as one process that is not interrupted."""
    states = run(size, folder / f"by {size}", resumed, str(folder))[0]
    for name in OPTIMIZERS:
        training = Training(0, 0, optimizer=name)
        for number in range(2 * STEPS):
            training.step(number)
        for key, value in training.state().items():
            torch.testing.assert_close(states[name][key], value, rtol=1e-5, atol=1e-5)


def test_a_plain_head_resumes_a_sharded_one(folder):
    training = Training(0, 0)
    state = {"model": training.modules.state_dict()}
    dcp.load(state, checkpoint_id=f"{folder}/sgd", no_dist=True)
    assert training.head.step == STEPS
    assert not dist.is_initialized()
