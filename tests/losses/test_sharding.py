"""shard_head: classes split over processes give the loss, the gradients and the training of one process."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import hypersphere as hs
from hypersphere.losses import shard_head
from tests.losses.gloo import run, whole

pytestmark = pytest.mark.slow

F64 = torch.float64
C, D, B = 5, 6, 9  # with four processes: 2, 2, 1 and 0 classes
PARTS = {1: (9,), 2: (5, 4), 3: (6, 3, 0), 4: (3, 2, 1, 3)}  # samples of each process
STEPS = 20
FEWER = 4  # steps of all cases but the first
WEIGHTS = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.5])


def rotated(head, **options):
    hs.rotate(head, **options)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if "cayley" in name:
                parameter.normal_(std=0.3)
    return head


HEADS = {
    "arcface": lambda **o: hs.ArcFaceLoss(C, D, scale=8.0, **o),
    "am": lambda **o: hs.AMSoftmaxLoss(C, D, scale=8.0, bias=True, **o),
    "annealed": lambda **o: hs.ASoftmaxLoss(C, D, **o),
    "linear": lambda **o: hs.GASoftmaxLoss(C, D, margin=1.5, label_smoothing=0.2, bias=True, **o),
    "sigmoid": lambda **o: hs.SSoftmaxLoss(C, D, "sigmoid(0.7)", scale=8.0, class_weight=WEIGHTS, **o),
    "k for every class": lambda **o: hs.GASoftmaxLoss(C, D, "learnable", margin=1.5, **o),
    "one k": lambda **o: hs.WSoftmaxLoss(C, D, hs.LearnableSigmoid(dtype=F64), label_smoothing=0.1, **o),
    "weights and smoothing": lambda **o: hs.ArcFaceLoss(
        C, D, class_weight=WEIGHTS, label_smoothing=0.1, scale=8.0, **o
    ),
    "sum": lambda **o: hs.AMSoftmaxLoss(C, D, scale=8.0, reduction="sum", **o),
    "none": lambda **o: hs.ArcFaceLoss(C, D, scale=8.0, reduction="none", energy_weight=0.3, **o),
    "streamed": lambda **o: hs.ArcFaceLoss(C, D, scale=8.0, stream=2, bias=True, label_smoothing=0.1, **o),
    "energy": lambda **o: hs.SphereFacePlusLoss(C, D, **o),
    "energy in logs": lambda **o: hs.ArcFaceLoss(C, D, scale=8.0, energy_weight=0.3, energy_s=6.0, **o),
    "rotated": lambda **o: rotated(hs.ArcFaceLoss(C, D, scale=8.0, bias=True, **o)),
    "rotated, magnitudes": lambda **o: rotated(hs.AMSoftmaxLoss(C, D, scale=8.0, **o), magnitude=True, blocks=2),
    "adaface": lambda **o: hs.AdaFaceLoss(C, D, scale=8.0, rate=0.5, **o),
    "magface": lambda **o: hs.MagFaceLoss(C, D, scale=8.0, norm_range=(0.5, 3.0), class_weight=WEIGHTS, **o),
    "curricularface": lambda **o: hs.CurricularFaceLoss(C, D, scale=8.0, rate=0.5, subcenters=2, **o),
    "elasticface": lambda **o: hs.ElasticFaceLoss(C, D, scale=8.0, plus=True, std=0.3, **o),
    "sphereface_r": lambda **o: hs.SphereFaceRLoss(C, D, scale=8.0, version="v2", **o),
    "sphereface2": lambda **o: hs.SphereFace2Loss(C, D, scale=8.0, bias=True, **o),
    "uniface": lambda **o: hs.UniFaceLoss(C, D, scale=8.0, subcenters=3, stream=2, **o),
    "two classes": lambda **o: hs.ArcFaceLoss(2, D, scale=8.0, **o),
}


def batch(case, dtype=F64):
    """The samples of all processes; those of the first are all ignored in every third step."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, B, D, generator=generator, dtype=dtype)
    y = torch.randint(2 if case == "two classes" else C, (STEPS, B), generator=generator)
    y[::3, : PARTS[3][0]] = -100
    weights = torch.rand(STEPS, B, generator=generator)
    steps = STEPS if case == "arcface" else FEWER
    return x[:steps], y[:steps], weights[:steps]


def trained(rank, size, case, dtype=F64, wrap=DistributedDataParallel, optimizer=torch.optim.SGD, **options):
    """The losses and the parameters of a network and a head after some steps."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(D, 8, dtype=dtype), nn.Tanh(), nn.Linear(8, D, dtype=dtype))
    head = HEADS[case](dtype=dtype)
    model = body
    if size > 1:
        mesh = init_device_mesh("cpu", (size,))
        model = wrap(body)
        shard_head(head, mesh)
    options = options or {"lr": 0.1, "momentum": 0.9}
    optimizer = optimizer([p for p in [*body.parameters(), *head.parameters()] if p.requires_grad], **options)
    start = sum(PARTS[size][:rank])
    own, losses = slice(start, start + PARTS[size][rank]), []
    for step, (x, y, weight) in enumerate(zip(*batch(case, dtype), strict=True)):
        optimizer.zero_grad()
        weights = {"sample_weight": weight[own]} if step % 2 else {}
        loss = head(model(x[own]), y[own], **weights)
        losses.append(loss.detach())
        (loss.sum() / B if head.reduction in ("none", "sum") else loss).backward()
        optimizer.step()
    state = {f"body {key}": whole(value.detach()).clone() for key, value in body.state_dict().items()}
    state |= {f"head {key}": whole(value.detach()).clone() for key, value in head.state_dict().items()}
    if head.reduction == "none":
        return state | {"losses": torch.stack(losses)}
    return state | {"losses": torch.stack(losses)}


def all_cases(rank, size):
    return {case: trained(rank, size, case) for case in HEADS}


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request, tmp_path_factory):
    return run(request.param, tmp_path_factory.mktemp("ranks"), all_cases)


@pytest.mark.parametrize("case", HEADS)
def test_training_is_that_of_one_process(ranks, case):
    alone = trained(0, 1, case)
    states = [states[case] for states in ranks]
    if case == "none":
        together = torch.cat([state.pop("losses") for state in states], 1)
        torch.testing.assert_close(together, alone.pop("losses"), rtol=1e-8, atol=1e-10)
    for key, value in alone.items():
        for state in states:
            assert torch.equal(state[key], states[0][key]), key
        torch.testing.assert_close(states[0][key], value, rtol=1e-8, atol=1e-10, msg=lambda m, key=key: f"{key}: {m}")
