"""Spherical and rotated networks and the energy regularizer in DistributedDataParallel and FSDP2: as in one process."""

import os
import re

import pytest
import torch
import torch._dynamo  # which the first optimizer imports: here once, not in each process
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import hypersphere as hs
from tests.rotated_nets import loss_of, rotated_batch, rotated_net
from tests.sphere_nets import SphereNet, sphere_batch

pytestmark = pytest.mark.slow

ROTATED = {  # case: method and options
    "cayley": ("cayley", {}),
    "gram_schmidt": ("gram_schmidt", {}),
    "ogd": ("ogd", {}),
    "sampled": ("cayley", {"sample": 0.25}),
}
SHARDED = ("cayley", "sampled", "ogd")
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
    regularizer = hs.EnergyRegularizer(model, half_space=True, norm_weight=0.1)
    model(torch.ones(2, 2, 4, 4))  # the outermost group is whole now
    value = regularizer()
    (value + hs.EnergyRegularizer(model, measure="orthonormal")()).backward()
    gradients = {name: whole(p.grad) for name, p in parameters.items() if p.grad is not None}
    assert len(gradients) == 3  # not of biases, nor of the rotation of fixed neurons
    per_layer = {f"energy of {name}": torch.tensor(energy) for name, energy in regularizer.per_layer().items()}
    return gradients | per_layer | {"value": value.detach()}


def rotated_state(case, part, wrap=same):
    """The state after five steps of a rotated network."""
    method, options = ROTATED[case]
    inner, (x, y) = rotated_net(method, **options), rotated_batch(8)
    model = wrap(inner)
    groups = hs.param_groups(inner, weight_decay=0.01, ogd=method == "ogd")
    optimizer = hs.OGD(groups, lr=0.1) if method == "ogd" else torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    resampler = hs.Resampler(model, optimizer, every=2) if case == "sampled" else None
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model, x[part], y[part]).backward()
        optimizer.step()
        if resampler is not None:
            resampler.step()
    return {key: whole(value).clone() for key, value in inner.state_dict().items()}


def resampled_by_adam(part, wrap=same, make=torch.optim.Adam):
    """The state after resampling, when Adam has to forget what it knows of the old rotations."""
    inner, (x, y) = rotated_net("cayley", sample=0.25), rotated_batch(8)
    model, optimizer = wrap(inner), make([p for p in inner.parameters() if p.requires_grad], lr=0.01)
    hs.Resampler(model, optimizer, every=2)
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model, x[part], y[part]).backward()
        optimizer.step()
    return {key: value.clone() for key, value in inner.state_dict().items()}


def adam_by_zero(parameters, lr):
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=lr)


def small_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))


def two_tasks():
    """A network with two tasks, both turned."""
    net = hs.rotate(small_net())
    hs.rotation.add_task(net, "other")
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "cayley" in name:
                p.normal_(std=0.1)
    return net


def used(model):
    """After a forward pass: the outermost group is whole."""
    model(torch.ones(2, 5))
    return model


def whole_model_verbs(wrap=same):
    """What the verbs give that read or write all weights of a model, before and after a forward pass."""
    results = {}
    nets = (small_net, two_tasks)
    read = {net.__name__: used(wrap(net())) for net in nets} | {"state": used(wrap(small_net())).state_dict()}
    for name, model in read.items():
        results |= {f"{name} {row.name}": torch.tensor([row.energy, row.effective_rank]) for row in hs.diagnose(model)}
    for verb, options in (
        (hs.normalize_neurons, {}),
        (hs.normalize_neurons, {"layers": lambda model: hs.select(model, "4", example_inputs=torch.ones(2, 5))}),
        (hs.spread, {}),
    ):
        model = used(wrap(small_net(1)))
        verb(model, **{key: choose(model) for key, choose in options.items()})  # choosing runs the model
        results |= {f"{verb.__name__} {len(options)} {key}": whole(p).clone() for key, p in model.state_dict().items()}
    tuned = used(wrap(two_tasks()))
    merged = hs.rotation.merge_state_dict(tuned.state_dict(), task="other")
    results |= {f"merged {key}": whole(p).clone() for key, p in merged.items()}
    extracted = hs.rotation.extract_rotations(small_net(), tuned)
    results |= {f"extracted {key}": p.clone() for key, p in extracted.model.state_dict().items()}
    assert extracted.explained["0"] > 0.999
    return results


def message(verb, *arguments, **options):
    try:
        verb(*arguments, **options)
    except ValueError as error:
        return str(error)
    return "no error"


def refusals(folder, rank):
    """What is said where a verb cannot work."""
    hs.rotation.save_rotations(two_tasks(), f"{folder}/rotations{rank}", task="default")
    overlapping = ZeroRedundancyOptimizer(small_net().parameters(), torch.optim.Adam, overlap_with_ddp=True)
    rotated, plain, sharded = two_tasks(), small_net(), shard(two_tasks())
    wrapped, also_wrapped = DistributedDataParallel(rotated), DistributedDataParallel(plain)
    flat = {orig: small_net() for orig in (True, False)}
    energies = {orig: hs.EnergyRegularizer(net) for orig, net in flat.items()}
    fsdp1 = {
        orig: FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=orig)
        for orig, net in flat.items()
    }
    messages = {
        "add_task DDP": message(hs.rotation.add_task, wrapped, "new"),
        "add_task inside DDP": message(hs.rotation.add_task, rotated, "new"),
        "add_task FSDP2": message(hs.rotation.add_task, used(sharded), "new"),
        "combine_tasks FSDP2": message(hs.rotation.combine_tasks, sharded, {"default": 1, "other": 1}, into="new"),
        "rotate inside DDP": message(hs.rotate, plain),
        "spherize scale": message(hs.spherize, plain, scale=True),
        "spherize learnable": message(hs.spherize, also_wrapped, "learnable"),
        "spherize FSDP2": message(hs.spherize, shard(small_net())),
        "load_rotations FSDP2": message(hs.rotation.load_rotations, sharded, f"{folder}/rotations{rank}"),
        "overlap": message(hs.Resampler, rotated, overlapping),
        "extract_rotations FSDP2": message(hs.rotation.extract_rotations, shard(small_net()), small_net()),
    }
    assert "new" not in rotated[0].parametrizations.weight[0].tasks
    for orig, model in fsdp1.items():
        messages[f"diagnose FSDP1 {orig}"] = message(hs.diagnose, model)
        messages[f"energy FSDP1 {orig}"] = message(hs.EnergyRegularizer, model)
        messages[f"energy from before FSDP1 {orig}"] = message(energies[orig])
        with FullyShardedDataParallel.summon_full_params(model):
            assert hs.diagnose(model).rows[0].neurons == 8
    hs.spherize(plain)  # adds nothing
    del wrapped, also_wrapped, sharded
    hs.rotation.add_task(rotated, "new")  # no longer wrapped
    return messages


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.set_num_threads(1)
    part, wrap = HALVES[rank], DistributedDataParallel
    states = {"sphere": sphere_gradients(part, wrap), "energy": energy_parameters(part, wrap)}
    states |= {case: rotated_state(case, part, wrap) for case in ROTATED}
    states |= {"sharded sphere": sphere_gradients(part, shard), "sharded energy": energy_parameters(part, shard)}
    states |= {f"sharded {case}": rotated_state(case, part, shard) for case in SHARDED}
    states["sharded energies"] = energies(shard)
    states["zero"] = resampled_by_adam(part, wrap, adam_by_zero)
    states |= {"sharded verbs": whole_model_verbs(shard), "refusals": refusals(folder, rank)}
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


def test_a_resampler_clears_the_state_of_a_zero_redundancy_optimizer(ranks):
    check(ranks, "zero", resampled_by_adam(EVERY))


def test_verbs_of_sharded_models(ranks):
    """diagnose, normalize_neurons, spread, merge_state_dict and extract_rotations gather one layer at a time."""
    check(ranks, "sharded verbs", whole_model_verbs(), atol=1e-5)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("add_task", r"add_task adds parameters .* wrapped already .* before wrapping"),
        ("combine_tasks", r"combine_tasks adds parameters .* \(fully_shard\)"),
        ("rotate inside", r"rotate adds parameters .* \(DistributedDataParallel\)"),
        ("spherize scale", r"spherize with learned numbers adds parameters .* \(DistributedDataParallel\)"),
        ("spherize learnable", r"spherize with learned numbers adds parameters .* \(DistributedDataParallel\)"),
        ("spherize FSDP2", r"layer '0' is sharded: call spherize before fully_shard"),
        ("extract_rotations", r"of base: '0.weight' is sharded: pass the model from before fully_shard"),
        ("load_rotations", r"load_rotations: '.*' is sharded: load before fully_shard"),
        ("overlap", r"overlap_with_ddp=True of ZeroRedundancyOptimizer"),
        ("FSDP1", r"FullyShardedDataParallel \(FSDP1\).*fully_shard \(FSDP2\)"),
    ],
)
def test_refusals(ranks, part, expected):
    """New parameters that nobody would average, and weights that cannot be read, are one clear line."""
    for states in ranks:
        said = {name: text for name, text in states["refusals"].items() if part in name}
        assert said
        for name, text in said.items():
            assert re.search(expected, text), (name, text)
            assert "\n" not in text
