"""What FSDP2 and tensor parallelism shard, in 2 and 3 real processes: as in one process, whatever the shards' sizes."""

import os
import warnings
from datetime import timedelta

import pytest
import torch
import torch._dynamo  # which the first optimizer imports: here once, not in each process
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import hypersphere as hs

pytestmark = pytest.mark.slow

SECONDS = 60  # after which a collective that not all processes call ends
ENERGIES = {  # case: options of the regularizer
    "energy": {},
    "sum, s=0": {"s": 0.0, "norm_weight": 0.1},
    "half space, average": {"half_space": True, "average": True, "s": 1.0},
    "angular, large s": {"angular": True, "s": 20.0},
    "minibatch": {"minibatch": 70, "half_space": True},
    "labels": {"output_weight": 3.0},
    "comhe_random": {"measure": "comhe_random"},
}


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def shard(model):
    """FSDP2 of every layer; the outermost group is whole after a forward pass."""
    for child in list(model.children())[:-1]:
        if list(child.parameters()):
            fully_shard(child)
    return fully_shard(model)


def wide_net():
    """Layers of several tiles (70 and more neurons), with neurons that are close, opposite and zero."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.ConvTranspose2d(2, 70, 2), nn.Flatten(), nn.Linear(70 * 9, 131), nn.ReLU()),
        *(nn.Linear(131, 67), nn.ReLU(), nn.Linear(67, 5)),  # 5 rows: uneven shards
    )
    with torch.no_grad():
        net[2].weight[3], net[2].weight[9] = net[2].weight[120] + 1e-4, -2 * net[2].weight[64]
        net[4].weight[66] = 0
    return net


def trained_with_energy(case, wrap=lambda model: model, rank=0, ranks=1):
    """The parameters and values of three steps with the energy in the loss; FSDP2 averages the other gradients."""
    net, (x, y) = wide_net(), (torch.randn(12, 2, 2, 2), torch.arange(12) % 5)
    energy, model = hs.EnergyRegularizer(net, **ENERGIES[case]), wrap(net)
    optimizer, values = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9), []
    for _ in range(3):
        optimizer.zero_grad()
        value = energy(y[rank::ranks] if case == "labels" else None)
        (F.cross_entropy(model(x[rank::ranks]), y[rank::ranks]) + value).backward()
        optimizer.step()
        values.append(value.detach())
    results = {name: whole(p) for name, p in net.named_parameters()} | {"values": torch.stack(values)}
    return results | {"per layer": torch.tensor(list(energy.per_layer().values()))}


def _rank(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of zero neurons
    dist.init_process_group(
        *("gloo", f"file://{folder}/rendezvous"),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=SECONDS),
    )
    results = {case: trained_with_energy(case, shard, rank, ranks) for case in ENERGIES}
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.barrier()
    os._exit(0)  # no destructors, which may wait for gloo's thread


@pytest.fixture(scope="module", params=[2, 3])
def results(request, tmp_path_factory):
    """What each process computed."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.start_processes(_rank, args=(request.param, str(folder)), nprocs=request.param, start_method="fork")
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(request.param)]


def check(results, case, alone, atol=1e-6):
    """All processes agree to the last bit, and with one that has the whole batch."""
    first, *others = (of_rank[case] for of_rank in results)
    assert first.keys() == alone.keys()
    for key, value in alone.items():
        assert all(torch.equal(first[key], other[key]) for other in others), (case, key)
        torch.testing.assert_close(first[key], value, rtol=1e-5, atol=atol, msg=lambda m, k=key: f"{case}: {k}: {m}")


@pytest.mark.filterwarnings("ignore:layer '4' has zero neurons")
@pytest.mark.parametrize("case", ENERGIES)
def test_processes_share_the_energy(results, case):
    check(results, case, trained_with_energy(case))
