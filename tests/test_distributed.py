"""Spherical and rotated networks and the energy regularizer in DistributedDataParallel: as in one process."""

import os

import pytest
import torch
import torch._dynamo  # which the first optimizer imports: here once, not in each process
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hypersphere as hs
from tests.rotated_nets import loss_of, rotated_batch, rotated_net
from tests.sphere_nets import SphereNet, sphere_batch

ROTATED = {  # case: method and options
    "cayley": ("cayley", {}),
    "gram_schmidt": ("gram_schmidt", {}),
    "ogd": ("ogd", {}),
    "sampled": ("cayley", {"sample": 0.25}),
}
EVERY, HALVES = slice(None), (slice(0, None, 2), slice(1, None, 2))


def same(model):
    return model


def sphere_gradients(part, wrap=same):
    """The gradients of the second of two batches, and how many steps the head has counted."""
    torch.manual_seed(0)
    inner = SphereNet(hs.ASoftmaxLoss(5, 16))
    model, (x, y) = wrap(inner), sphere_batch(8)
    for _ in range(2):
        inner.zero_grad()
        model(x[part], y[part]).backward()
    return {name: p.grad for name, p in inner.named_parameters()} | {"steps": torch.tensor(int(inner.head.step))}


def energy_parameters(part, wrap=same):
    """The parameters after three steps with the energy of a minibatch of neurons in the loss."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    regularizer = hs.EnergyRegularizer(inner, minibatch=3)
    model, optimizer = wrap(inner), torch.optim.SGD(inner.parameters(), lr=0.01)
    assert hs.EnergyRegularizer(model)().isfinite()
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(8, 5, generator=generator), torch.randint(3, (8,), generator=generator)
    for _ in range(3):
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(x[part]), y[part]) + regularizer()).backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in inner.named_parameters()}


def rotated_state(case, part, wrap=same):
    """The state after five steps of a rotated network."""
    method, options = ROTATED[case]
    inner, (x, y) = rotated_net(method, **options), rotated_batch(8)
    model = wrap(inner)
    groups = hs.param_groups(inner, weight_decay=0.01, ogd=method == "ogd")
    optimizer = hs.OGD(groups, lr=0.1) if method == "ogd" else torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    resampler = hs.Resampler(model, optimizer, inner=2) if case == "sampled" else None
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model, x[part], y[part]).backward()
        optimizer.step()
        if resampler is not None:
            resampler.step()
    return {key: value.clone() for key, value in inner.state_dict().items()}


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.set_num_threads(1)
    part, wrap = HALVES[rank], DistributedDataParallel
    states = {"sphere": sphere_gradients(part, wrap), "energy": energy_parameters(part, wrap)}
    states |= {case: rotated_state(case, part, wrap) for case in ROTATED}
    torch.save(states, f"{folder}/rank{rank}.pt")
    dist.barrier()
    # No destructors: DDP's waits for gloo's thread while it holds the GIL, which that thread may be waiting for.
    os._exit(0)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes computed."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.start_processes(_rank, args=(str(folder),), nprocs=2, start_method="fork")  # torch is imported already
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def check(ranks, case, alone, atol=1e-6):
    """The ranks agree to the last bit, and with one process that has the whole batch."""
    first, second = (states[case] for states in ranks)
    for key, value in alone.items():
        assert torch.equal(first[key], second[key]), (case, key)
        torch.testing.assert_close(first[key], value, rtol=1e-5, atol=atol, msg=f"{case}: {key}")
    return first


def test_sphere_layers_and_a_loss_head(ranks):
    assert check(ranks, "sphere", sphere_gradients(EVERY))["steps"] == 2


def test_every_rank_adds_the_same_energy(ranks):
    """Draws of a minibatch included."""
    check(ranks, "energy", energy_parameters(EVERY))


@pytest.mark.parametrize("case", ROTATED)
def test_rotations(ranks, case):
    state = check(ranks, case, rotated_state(case, EVERY))
    key = f"conv.parametrizations.weight.0.default.{ROTATED[case][0]}"
    start = rotated_net(ROTATED[case][0], **ROTATED[case][1]).state_dict()[key]
    assert (state[key] - start).abs().max() > 1e-3
    assert case != "sampled" or state["fc1.parametrizations.weight.0.default.draw"] == 2
