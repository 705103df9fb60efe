"""What FSDP2 and tensor parallelism shard, in 2 and 3 real processes: as in one process, whatever the shards' sizes."""

import os
import re
import warnings
from datetime import timedelta

import pytest
import torch
import torch._dynamo  # which the first optimizer imports: here once, not in each process
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors import safe_open
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.utils import parametrize

import hypersphere as hs
from hypersphere.energy import tiles

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


def penalized(wrap):
    """Gradients of the penalty after a forward pass."""
    torch.manual_seed(6)
    net = hs.rotate(nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 7), nn.Linear(7, 3)), "regularized")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1)
    model, parameters = wrap(net), dict(net.named_parameters())
    model(torch.ones(2, 5))
    hs.rotation.rotation_penalty(model, squared=False).backward()
    return {name: whole(p.grad) for name, p in parameters.items() if p.grad is not None}


def untrained_files(folder, wrap):
    """Files in both formats, of the same numbers in any number of processes."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 2))
    hs.rotate(net, blocks=3)
    net = wrap(net)
    hs.rotation.save_rotations(net, f"{folder}/{wrap.__name__}.peft", format="peft")
    hs.rotation.save_rotations(net, f"{folder}/{wrap.__name__}.untrained")


def split(model):
    """Tensor parallelism of three layers; the last has neurons in two of three processes.

    The starts that rotations draw then are those of the first process.
    """
    torch.manual_seed(dist.get_rank())
    plan = {
        "0": ColwiseParallel(use_local_output=False),  # 70 neurons: uneven for 3 processes
        "2": RowwiseParallel(),
        "4": ColwiseParallel(output_layouts=Replicate()),
    }
    return parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)


def narrow_net():
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(7, 70), nn.Tanh(), nn.Linear(70, 6), nn.Tanh(), nn.Linear(6, 4))
    with torch.no_grad():
        net[2].weight[1] = 0
    return net


SPLIT = {  # case: how a network is made, with tensor parallelism or `same`
    "sphere, then split": lambda parallel: parallel(hs.spherize(narrow_net(), "sigmoid", scale=True, layers="*")),
    "split, then sphere": lambda parallel: hs.spherize(parallel(narrow_net()), "learnable", scale=True, layers="*"),
    "split, then one k": lambda parallel: hs.spherize(
        parallel(narrow_net()), hs.similarity.LearnableSigmoid(), layers=["0", "2"]
    ),
    "input": lambda parallel: hs.rotate(parallel(narrow_net()), "exponential", init="normal", layers=["0", "2", "4"]),
    "blocks": lambda parallel: hs.rotate(parallel(narrow_net()), "ogd", blocks=2, neurons="learned", layers=["2", "4"]),
    "output": lambda parallel: hs.rotate(parallel(narrow_net()), side="output", magnitude=True),
    "both": lambda parallel: hs.rotate(parallel(narrow_net()), side="both", layers=["2"], apply="activation"),
    "regularized": lambda parallel: hs.rotate(parallel(narrow_net()), "regularized", layers=["0", "2", "4"]),
    "sampled": lambda parallel: hs.rotate(parallel(narrow_net()), sample=3, layers=["0", "2", "4"]),
}


def unsplit(model):
    torch.manual_seed(0)
    return model


def trained_in_parts(case, parallel=unsplit, folder=None):
    """Results of three steps with the energy in the loss, of what reads the weights, and after a merge."""
    net = SPLIT[case](parallel)
    x, y = torch.randn(9, 7, generator=torch.Generator().manual_seed(5)), torch.arange(9) % 4
    x[0] = 0
    groups = hs.param_groups(net, ogd=case == "blocks")
    energy, optimizer = hs.EnergyRegularizer(net), hs.OGD(groups, lr=0.05)
    resampler = hs.Resampler(net, optimizer, every=2) if case == "sampled" else None
    values = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y) + energy() + hs.hyperspherical_energy(net[2].weight[2:])
        if case == "regularized":
            loss = loss + hs.rotation.rotation_penalty(net)
        loss.backward()
        optimizer.step()
        if resampler is not None:
            resampler.step()
        values.append(loss.detach())
    results = {name: whole(p) for name, p in net.named_parameters()} | {"values": torch.stack(values)}
    results["diagnosis"] = torch.tensor([[row.energy, row.mean_angle] for row in hs.diagnose(net)])
    results["output"] = net(x).detach()
    if "sphere" in case or case == "split, then one k":
        return results
    if folder is not None:
        hs.rotation.save_rotations(net, f"{folder}/{case}")
        same_rank = hs.rotation.load_rotations(SPLIT[case](unsplit), f"{folder}/{case}")
        torch.testing.assert_close(same_rank(x).detach(), results["output"], rtol=1e-5, atol=1e-6)
    hs.merge(net)
    results["merged"] = net(x).detach()
    return results | {f"merged {name}": whole(p) for name, p in net.named_parameters()}


def message(verb, *arguments):
    try:
        verb(*arguments)
    except ValueError as error:
        return str(error)
    return "no error"


def refusals():
    """What is said where a layer cannot be split, or be used as it is split."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    square = init_device_mesh("cpu", (1, dist.get_world_size()))
    copies = [Replicate()]
    linear, conv = hs.SphereLinear(6, 4), hs.SphereConv2d(2, 3, 3)
    linear.weight, conv.weight = (
        nn.Parameter(distribute_tensor(layer.weight, mesh, copies)) for layer in (linear, conv)
    )
    other = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    other[0].weight = nn.Parameter(distribute_tensor(other[0].weight, square, [Replicate(), Shard(0)]))
    x = distribute_tensor(torch.ones(2, 6), mesh, copies)
    return {
        "a rotated Linear cannot be split": message(split, hs.rotate(narrow_net())),
        "SphereLinear with a learned similarity": message(split, hs.spherize(narrow_net(), "learnable")),
        "SphereConv2d cannot be split": message(distribute_module, hs.SphereConv2d(2, 3, 3), mesh),
        "SphereConv2d cannot compute": message(conv, torch.ones(1, 2, 3, 3)),
        r"a mesh of one dimension, got 1 dimensions and the placements \(Replicate": message(linear, x),
        "input of a layer with a split weight must be a DTensor": message(linear, torch.ones(2, 6)),
        "rotate supports nn.Linear on a mesh of one dimension, got Linear on 2": message(hs.rotate, other),
    }


def _rank(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of zero neurons
    tiles.FEW = 65  # share the pairs of these small layers too
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
        results[f"{wrap.__name__} penalty"] = penalized(wrap)
    wrong = torch.tensor([5 if rank == ranks - 1 else 1])  # in one process alone
    results["wrong labels"] = message(hs.EnergyRegularizer(shard(wide_net())), wrong)
    for case in SPLIT:
        results[case] = trained_in_parts(case, split, folder)
    results["refusals"] = refusals()
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
    check(results, f"{how} penalty", penalized(alone))
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


@pytest.mark.parametrize("case", SPLIT)
def test_tensor_parallelism(results, case):
    check(results, case, trained_in_parts(case))


def test_refusals(results):
    for of_rank in results[0]:
        assert of_rank["wrong labels"] == "labels must be in [0, 4], got 5 among others"
        for pattern, said in of_rank["refusals"].items():
            assert re.search(pattern, said), (pattern, said)
            assert "\n" not in said
