"""What FSDP2 and tensor parallelism shard, in 2 and 3 real processes: as in one process, whatever the shards' sizes."""

import os
import warnings
from datetime import timedelta

import pytest
import torch
import torch._dynamo  # which the first optimizer imports: here once, not in each process
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors import safe_open
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.utils import parametrize

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


class RotatedNet(nn.Module):
    """Rotated layers with and without bias, one with another parametrization, one tied, one with learned neurons."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(2, 8, 3, groups=2, bias=False)
        self.fc1, self.fc2 = nn.Linear(32, 9), nn.Linear(9, 9)
        self.norm = self.again = nn.LayerNorm(9)
        self.out = nn.Linear(9, 5)
        parametrize.register_parametrization(self.fc1, "bias", nn.Tanh())
        hs.rotate(self, "cayley", blocks=3, layers="fc2")
        hs.rotate(self, "exponential", layers="fc1", neurons="learned", magnitude=True)
        hs.rotate(self, "householder", layers="conv", init="normal")

    def forward(self, x):
        return self.out(self.again(self.fc2(self.norm(self.fc1(self.conv(x).flatten(1))).tanh())))


def only_outside(model):
    return fully_shard(model)


def steps(net, model, rank, ranks):
    """Two steps of SGD on this process's share of a batch."""
    x, y = torch.randn(12, 2, 4, 4, generator=torch.Generator().manual_seed(2)), torch.arange(12) % 5
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rank::ranks]), y[rank::ranks]).backward()
        optimizer.step()


def merged_saved_diagnosed(folder, wrap=lambda model: model, rank=0, ranks=1):
    """What the verbs give on a trained network, and two more steps after the merge."""
    net = RotatedNet()
    model = wrap(net)
    steps(net, model, rank, ranks)
    results = {"diagnosis": torch.tensor([[row.energy, row.closest[0], row.mean_angle] for row in hs.diagnose(model)])}
    hs.rotation.save_rotations(model, f"{folder}/{wrap.__name__}.safetensors")
    with pytest.raises(ValueError, match=r"got layer 'conv' \[Conv2d\]"):  # in every process
        hs.rotation.save_rotations(model, f"{folder}/{wrap.__name__}.peft", format="peft")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        hs.rotation.save_rotations(model, f"{folder}/nowhere/{rank}")
    model(torch.ones(2, 2, 4, 4))  # the outermost group is whole now
    assert hs.merge(model) is model
    assert {type(m).__name__ for m in (net.conv, net.fc2)} <= {"Conv2d", "Linear", "FSDPConv2d", "FSDPLinear"}
    assert [name for name, p in net.named_parameters() if p.requires_grad] == [
        *("conv.weight", "fc1.weight", "fc1.parametrizations.bias.original", "fc2.weight", "fc2.bias"),
        *("norm.weight", "norm.bias", "out.weight", "out.bias"),
    ]
    results |= {f"merged {key}": whole(value) for key, value in model.state_dict().items()}
    steps(net, model, rank, ranks)
    model.load_state_dict(model.state_dict())
    return results | {f"trained {key}": whole(value) for key, value in model.state_dict().items()}


def untrained_files(folder, wrap):
    """Files in both formats, of the same numbers in any number of processes."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 2))
    hs.rotate(net, blocks=3)
    net = wrap(net)
    hs.rotation.save_rotations(net, f"{folder}/{wrap.__name__}.peft", format="peft")
    hs.rotation.save_rotations(net, f"{folder}/{wrap.__name__}.untrained")


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
    for wrap in (shard, only_outside):
        results[wrap.__name__] = merged_saved_diagnosed(folder, wrap, rank, ranks)
        untrained_files(folder, wrap)
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.barrier()
    os._exit(0)  # no destructors, which may wait for gloo's thread


@pytest.fixture(scope="module", params=[2, 3])
def results(request, tmp_path_factory):
    """What each process computed."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.start_processes(_rank, args=(request.param, str(folder)), nprocs=request.param, start_method="fork")
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(request.param)], folder


def check(results, case, alone, atol=1e-6):
    """All processes agree to the last bit, and with one that has the whole batch."""
    first, *others = (of_rank[case] for of_rank in results[0])
    assert first.keys() == alone.keys()
    for key, value in alone.items():
        assert all(torch.equal(first[key], other[key]) for other in others), (case, key)
        torch.testing.assert_close(first[key], value, rtol=1e-5, atol=atol, msg=lambda m, k=key: f"{case}: {k}: {m}")


@pytest.mark.filterwarnings("ignore:layer '4' has zero neurons")
@pytest.mark.parametrize("case", ENERGIES)
def test_processes_share_the_energy(results, case):
    check(results, case, trained_with_energy(case))


def alone(model):
    return model


@pytest.mark.parametrize("how", ["shard", "only_outside"])
def test_merge_diagnose_and_save_rotations_gather(results, tmp_path, how):
    """Merged layers are plain, sharded as before, and train on; the file is that of the unsharded model."""
    check(results, how, merged_saved_diagnosed(tmp_path, alone))
    untrained_files(tmp_path, alone)
    for name in ("{}.untrained", "{}.peft/adapter_config.json"):
        assert (results[1] / name.format(how)).read_bytes() == (tmp_path / name.format("alone")).read_bytes()
    adapters = [
        f"{results[1]}/{how}.peft/adapter_model.safetensors",
        f"{tmp_path}/alone.peft/adapter_model.safetensors",
    ]
    first, second = (safe_open(path, "pt") for path in adapters)
    assert first.metadata() == second.metadata()  # with checksums of all tensors; its order is arbitrary
    restored = hs.rotation.load_rotations(RotatedNet(), results[1] / f"{how}.safetensors").state_dict()
    for key, value in hs.rotation.load_rotations(RotatedNet(), tmp_path / "alone.safetensors").state_dict().items():
        torch.testing.assert_close(restored[key], value, rtol=1e-5, atol=1e-6)
