"""Spherical and rotated networks in DistributedDataParallel: two processes compute what one does."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hypersphere as hs
from tests.rotated_nets import loss_of, rotated_batch, rotated_net
from tests.sphere_nets import SphereNet, sphere_batch


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.parallel.DistributedDataParallel(SphereNet(hs.ASoftmaxLoss(5, 16)))
    x, y = sphere_batch(8)
    for _ in range(2):
        net.zero_grad()
        net(x[rank::2], y[rank::2]).backward()
    if rank == 0:
        grads = {name: p.grad for name, p in net.module.named_parameters()}
        torch.save({"grads": grads, "step": net.module.head.step}, f"{folder}/rank0.pt")
    dist.destroy_process_group()


def test_distributed_data_parallel(tmp_path):
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    torch.manual_seed(0)
    net = SphereNet(hs.ASoftmaxLoss(5, 16))
    x, y = sphere_batch(8)
    for _ in range(2):
        net.zero_grad()
        net(x, y).backward()
    saved = torch.load(tmp_path / "rank0.pt", weights_only=True)
    assert saved["step"] == 2
    for name, p in net.named_parameters():
        assert torch.allclose(p.grad, saved["grads"][name], atol=1e-6), name


CASES = {"cayley": {}, "gram_schmidt": {}, "ogd": {}, "sampled": {"sample": 0.25}}


METHODS = {"sampled": "cayley"}  # of cases that are not named after theirs


def _steps(model, inner, case, x, y):
    """A few training steps of `model`, which is `inner` or wraps it."""
    groups = hs.param_groups(inner, weight_decay=0.01, ogd=case == "ogd")
    optimizer = hs.OGD(groups, lr=0.1) if case == "ogd" else torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    resampler = hs.Resampler(model, optimizer, inner=2) if case == "sampled" else None
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        if resampler is not None:
            resampler.step()
    return {key: value.clone() for key, value in inner.state_dict().items()}


def _start(case):
    return rotated_net(METHODS.get(case, case), **CASES[case])


def _rank_rotated(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.set_num_threads(1)
    x, y = rotated_batch(8)
    states = {}
    for case in CASES:
        inner = _start(case)
        states[case] = _steps(DistributedDataParallel(inner), inner, case, x[rank::2], y[rank::2])
    torch.save(states, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def test_distributed_data_parallel_rotated(tmp_path):
    """Both ranks hold the same rotations to the last bit, and those of one process with the whole batch."""
    mp.spawn(_rank_rotated, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    for case in CASES:
        first, second = (states[case] for states in ranks)
        for key in first:
            assert torch.equal(first[key], second[key]), (case, key)
        model = _start(case)
        start = model.state_dict()["conv.parametrizations.weight.0.default." + METHODS.get(case, case)].clone()
        alone = _steps(model, model, case, *rotated_batch(8))
        for key, value in alone.items():
            torch.testing.assert_close(first[key], value, rtol=0, atol=1e-6, msg=f"{case}: {key}")
        moved = first["conv.parametrizations.weight.0.default." + METHODS.get(case, case)]
        assert (moved - start).abs().max() > 1e-3, case
    assert ranks[0]["sampled"]["fc1.parametrizations.weight.0.default.draw"] == 2
