"""Spherical and rotated networks and the energy regularizer in DistributedDataParallel and FSDP2: as in one process."""

import os

import pytest
import torch
import torch._dynamo  # which the first optimizer imports: here once, not in each process
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
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
SHARDED = ("cayley", "sampled")
EVERY, HALVES = slice(None), (slice(0, None, 2), slice(1, None, 2))


def same(model):
    return model


def shard(model):
    """FSDP2 of every layer; the outermost group is whole after a forward pass, the others are sharded again."""
    for child in list(model.children())[:-1]:
        if list(child.parameters()):
            fully_shard(child)
    return fully_shard(model)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def sphere_gradients(part, wrap=same):
    """The gradients of the second of two batches, and how many steps the head has counted."""
    torch.manual_seed(0)
    inner = SphereNet(hs.ASoftmaxLoss(5, 16))
    model, (x, y) = wrap(inner), sphere_batch(8)
    for _ in range(2):
        inner.zero_grad()
        model(x[part], y[part]).backward()
    return {name: whole(p.grad) for name, p in inner.named_parameters()} | {"steps": torch.tensor(int(inner.head.step))}


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
    return {name: whole(p.detach()).clone() for name, p in inner.named_parameters()} | {"value": regularizer().detach()}


def energies(wrap=same):
    """Values and gradients of the energy of layers in half space and with a weight decay, some rotated."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(2, 7, 3), nn.Flatten(), nn.Linear(28, 9), nn.Linear(9, 8), nn.Linear(8, 3))
    hs.rotate(inner, "unconstrained", layers="2")
    hs.rotate(inner, layers="3")
    model = wrap(inner)
    parameters = dict(inner.named_parameters())  # the optimizer's
    regularizer = hs.EnergyRegularizer(model, half_space=True, weight_decay=0.1)
    model(torch.ones(2, 2, 4, 4))  # the outermost group is whole now
    value = regularizer()
    (value + hs.orthonormal_penalty(model)).backward()
    found = {name: whole(p.grad) for name, p in parameters.items() if p.grad is not None}
    assert len(found) == 4  # of the weights, not of biases
    per_layer = {f"energy of {name}": torch.tensor(each) for name, each in regularizer.per_layer().items()}
    return found | per_layer | {"value": value.detach()}


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
    return {key: whole(value).clone() for key, value in inner.state_dict().items()}


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.set_num_threads(1)
    part, wrap = HALVES[rank], DistributedDataParallel
    states = {"sphere": sphere_gradients(part, wrap), "energy": energy_parameters(part, wrap)}
    states |= {case: rotated_state(case, part, wrap) for case in ROTATED}
    states |= {"sharded sphere": sphere_gradients(part, shard), "sharded energy": energy_parameters(part, shard)}
    states |= {f"sharded {case}": rotated_state(case, part, shard) for case in SHARDED}
    states["sharded energies"] = energies(shard)
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


@pytest.mark.parametrize("how", ["", "sharded "])
def test_sphere_layers_and_a_loss_head(ranks, how):
    assert check(ranks, how + "sphere", sphere_gradients(EVERY))["steps"] == 2


@pytest.mark.parametrize("how", ["", "sharded "])
def test_every_rank_adds_the_same_energy(ranks, how):
    """Draws of a minibatch included."""
    check(ranks, how + "energy", energy_parameters(EVERY))


def test_energies_of_sharded_weights(ranks):
    check(ranks, "sharded energies", energies())


@pytest.mark.parametrize("name", [*ROTATED, *(f"sharded {case}" for case in SHARDED)])
def test_rotations(ranks, name):
    case = name.removeprefix("sharded ")
    state = check(ranks, name, rotated_state(case, EVERY))
    key = f"conv.parametrizations.weight.0.default.{ROTATED[case][0]}"
    start = rotated_net(ROTATED[case][0], **ROTATED[case][1]).state_dict()[key]
    assert (state[key] - start).abs().max() > 1e-3
    assert case != "sampled" or state["fc1.parametrizations.weight.0.default.draw"] == 2
