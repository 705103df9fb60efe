"""OGD, Pion, Muon and Hyperball on matrices that FSDP2 has sharded: as in one process, whatever the shards' sizes."""

import copy
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import hypersphere as hs
from hypersphere.optim import MuonAdamW
from tests.losses.gloo import run, whole

pytestmark = pytest.mark.slow

F64 = torch.float64
STEPS, MORE = 20, 3


class Net(nn.Module):
    """Fused queries, keys and values, a convolution with groups; 2 and 7 rows: empty and uneven shards."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(4, 6, 3, groups=2, dtype=F64)
        self.qkv = nn.Linear(6, 18, dtype=F64)
        self.narrow, self.wide, self.out = (nn.Linear(a, b, dtype=F64) for a, b in ((18, 2), (2, 7), (7, 3)))

    def forward(self, x):
        return self.out(self.wide(self.narrow(self.qkv(self.conv(x).flatten(1)).tanh()).tanh()).tanh())


def hyperball(**options):
    base = options.pop("base", lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.0))
    return lambda net: hs.Hyperball(base(net.parameters()), **options)


OPTIMIZERS = {
    "pion": lambda net: hs.Pion(hs.param_groups(net, pion=True), lr=0.03),
    "pion, alternate": lambda net: hs.Pion(hs.param_groups(net, pion=True), lr=0.03, side="alternate", rms=0.2),
    "ogd": lambda net: hs.OGD(hs.param_groups(net, ogd=True), lr=0.03),
    "muon": lambda net: MuonAdamW(hs.param_groups(net, 0.1, muon=True), lr=0.01),
    "muonh": lambda net: hs.Hyperball(MuonAdamW(hs.param_groups(net, muon=True), lr=0.01)),
    "adamh": hyperball(),
    "neurons": hyperball(per="neuron"),
    "columns": hyperball(per="neuron", neuron_dim=1, base=lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9)),
    "spectral": hyperball(norm="spectral"),
}


def shard(net):
    for child in net.children():
        fully_shard(child)
    return fully_shard(net)


def build(case, wrap):
    net = Net()
    if case == "ogd":
        hs.rotate(net, "ogd", layers=["qkv", "wide"])
    model = wrap(net)
    return net, model, OPTIMIZERS[case](net)


def train(net, model, optimizer, steps, rank, ranks, seed=1):
    data = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x, y = torch.randn(6, 4, 3, dtype=F64, generator=data), torch.randint(3, (6,), generator=data)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rank::ranks]), y[rank::ranks]).backward()
        optimizer.step()
    if hasattr(net, "reshard"):
        net.reshard()
    return {name: whole(p.detach()).clone() for name, p in net.named_parameters()}


def saved(net, optimizer):
    return {"net": net.state_dict(), "optimizer": get_optimizer_state_dict(net, optimizer)}


def save(case, rank, ranks, folder, results):
    """Train, save, train on; another optimizer that loads goes on bit by bit as this one."""
    net, model, optimizer = build(case, shard)
    results[case] = train(net, model, optimizer, STEPS, rank, ranks)
    copy.deepcopy(optimizer.state_dict())  # users keep the best one so
    dcp.save(saved(net, optimizer), checkpoint_id=f"{folder}/{case}", no_dist=False)
    results[f"{case}, more"] = train(net, model, optimizer, MORE, rank, ranks, seed=2)
    results[f"{case}, resumed"] = load(case, rank, ranks, folder)


def load(case, rank, ranks, folder, wrap=shard):
    net, model, optimizer = build(case, wrap)
    state = saved(net, optimizer)
    dcp.load(state, checkpoint_id=f"{folder}/{case}", no_dist=ranks == 1)
    net.load_state_dict(state["net"])
    set_optimizer_state_dict(net, optimizer, state["optimizer"])
    return train(net, model, optimizer, MORE, rank, ranks, seed=2)


def reduced(case, rank, ranks):
    """The sizes of what a step sums over the processes."""
    net, model, optimizer = build(case, shard)
    train(net, model, optimizer, 1, rank, ranks)
    with patch.object(dist, "all_reduce", side_effect=dist.all_reduce) as counted:
        optimizer.step()
    return [call.args[0].numel() for call in counted.call_args_list]


def opposed():
    """The norm of a float32 matrix, and the sums of its step, whose length is nearly the radius, towards zero."""
    torch.manual_seed(0)
    net = fully_shard(nn.Linear(40, 30, bias=False))
    start = net.weight.full_tensor()
    optimizer = hs.Hyperball(torch.optim.SGD(net.parameters(), lr=0.98))
    net.weight.grad = net.weight.detach() + 0.01 * torch.randn_like(net.weight)
    with patch.object(dist, "all_reduce", side_effect=dist.all_reduce) as counted:
        optimizer.step()
    sums = [call.args[0].numel() for call in counted.call_args_list]
    return {"sums": sums, "change": float((net.weight.full_tensor().double().norm() / start.double().norm() - 1).abs())}


def all_cases(rank, ranks, folder):
    results = {}
    if ranks == 2:
        results = {"sums": {case: reduced(case, rank, ranks) for case in ("adamh", "columns")}, "opposed": opposed()}
    for case in OPTIMIZERS:
        if ranks == 2:
            save(case, rank, ranks, folder, results)
        else:
            results[f"{case}, resumed"] = load(case, rank, ranks, folder)
    if ranks == 3:
        for case in ("pion", "muonh"):
            net, model, optimizer = build(case, shard)
            results[case] = train(net, model, optimizer, STEPS, rank, ranks)
        net, model, optimizer = build("pion", DistributedDataParallel)
        results["pion, ddp"] = train(net, model, optimizer, STEPS, rank, ranks)
    return results


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return {ranks: run(ranks, folder, all_cases, str(folder / "saved")) for ranks in (2, 3)} | {"folder": folder}


def same(ranks, key, expected, tolerance):
    for states in ranks:
        for name, value in expected.items():
            torch.testing.assert_close(
                states[key][name], value, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("case", OPTIMIZERS)
def test_as_in_one_process(trained, case):
    net, model, optimizer = build(case, lambda net: net)
    expected = train(net, model, optimizer, STEPS, 0, 1)
    tolerance = 1e-6 if "muon" in case else 1e-9  # Muon rounds to bfloat16
    same(trained[2], case, expected, tolerance)
    for key in (case, f"{case}, ddp"):
        if key in trained[3][0]:
            same(trained[3], key, expected, tolerance)
    more = train(net, model, optimizer, MORE, 0, 1, seed=2)
    same(trained[2], f"{case}, more", more, tolerance)
    same(trained[2], f"{case}, resumed", trained[2][0][f"{case}, more"], 0)
    same(trained[3], f"{case}, resumed", more, tolerance)
    alone = load(case, 0, 1, trained["folder"] / "saved", wrap=lambda net: net)
    same([{"resumed": alone}], "resumed", more, tolerance)


def test_all_norms_are_summed_at_once(trained):
    """‖u‖², ⟨W, u⟩ and ‖W‖² of all five matrices, and of their 35 columns."""
    assert [rank["sums"] for rank in trained[2]] == [{"adamh": [15], "columns": [105]}] * 2


def test_norms_are_measured_where_sums_lose_digits(trained):
    for rank in trained[2]:
        assert rank["opposed"]["change"] < 5e-7
        assert rank["opposed"]["sums"] == [1, 1, 3, 1]  # the radius, its check, the step, the new matrix
