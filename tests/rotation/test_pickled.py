"""Rotated models survive pickle, torch.save, copies and a spawned process bit for bit."""

import copy
import io
import multiprocessing
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import hypersphere as hs
from hypersphere.orthogonal import ORTHOGONALIZERS, Orthogonalizer
from tests.rotated_nets import Net, loss_of, rotated_batch
from tests.rotations import shake


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def torch_saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def mha_net():
    class_ = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return hs.rotate(nn.Sequential(class_, nn.Linear(8, 4)))


def tasks_net():
    net = hs.rotate(Net())
    hs.rotation.add_task(net, "birds")
    hs.rotation.use_task(net, "birds")
    return net


def doubly_parametrized():
    net = hs.rotate(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)))
    parametrize.register_parametrization(net[0], "bias", nn.Softplus())
    return net


IMAGES = (8, 3, 6, 6)
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cayley": (lambda: hs.rotate(Net()), IMAGES),
    "gram_schmidt": (lambda: hs.rotate(Net(), "gram_schmidt", init="normal"), IMAGES),
    "none": (lambda: hs.rotate(Net(), "none"), IMAGES),
    "learned": (lambda: hs.rotate(Net(), neurons="learned", blocks=2), IMAGES),
    "activation": (lambda: hs.rotate(Net(), layers="fc1", apply="activation", side="both", scaled=True), IMAGES),
    "sampled": (lambda: hs.rotate(Net(), sample=0.25, seed=3), IMAGES),
    "tasks": (tasks_net, IMAGES),
    "sphere": (lambda: hs.rotate(hs.spherize(Net(), "learnable", scale=True)), IMAGES),
    "attention": (mha_net, (2, 3, 8)),
    "root": (lambda: hs.rotate(nn.ConvTranspose2d(4, 6, 3, groups=2)), (2, 4, 5, 5)),
    "other parametrization": (doubly_parametrized, (2, 6)),
}


# torch.save and copies go by the same pickle: one net for them
@pytest.mark.parametrize(
    ("name", "copied"),
    [*((name, pickled) for name in NETS), *(("sampled", how) for how in (torch_saved, copy.deepcopy, copy.copy))],
)
def test_a_copy_is_the_same_model(name, copied):
    make, shape = NETS[name]
    model, x = shake(make()).eval(), torch.randn(shape)
    if name == "cayley":
        model.fc1.bias.requires_grad_(False)
    other = copied(model)
    assert type(other) is type(model) or name == "root"
    assert torch.equal(other(x), model(x))
    state, again = model.state_dict(), other.state_dict()
    assert list(state) == list(again)
    assert all(torch.equal(state[key], again[key]) for key in state)
    flags = [(key, p.requires_grad) for key, p in model.named_parameters()]
    assert flags == [(key, p.requires_grad) for key, p in other.named_parameters()]
    assert str(other) == str(model)
    if copied is copy.copy:
        return
    merged = hs.merge(other)
    hs.merge(model)
    assert list(merged.state_dict()) == list(model.state_dict())
    assert [key for key, _ in merged.named_parameters()] == [key for key, _ in model.named_parameters()]
    assert [type(module) for module in merged.modules() if not parametrize.is_parametrized(module)] == [
        type(module) for module in model.modules() if not parametrize.is_parametrized(module)
    ]
    assert torch.equal(merged(x), model(x))


def test_hooks_and_shared_layers_are_kept():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(4, 2))
    hs.rotate(model)
    layer.register_forward_hook(double)
    layer.parametrizations.weight[0].register_forward_hook(double)
    other = pickled(shake(model))
    assert other[0] is other[2]
    x = torch.randn(3, 4)
    assert torch.equal(other(x), model(x))
    other[0]._forward_hooks.clear()
    assert not torch.equal(other(x), model(x))


def double(module, args, output):
    return 2 * output


def test_the_optimizer_of_an_unpickled_model_is_checked():
    model = pickled(hs.rotate(Net(), "ogd"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model, *rotated_batch()).backward()
    with pytest.raises(ValueError, match=r"hypersphere.OGD"):
        optimizer.step()


def flip_start(m, init):
    return torch.ones(m, dtype=torch.float64)


def flip_shape(m):
    return (m,)


def flip_matrix(p):
    return torch.diag_embed(p.sign())


def flip_apply(p, v):
    return v * p.sign().unsqueeze(-2)


def test_a_method_of_the_users_own_is_registered_again():
    flip = Orthogonalizer("flip", flip_shape, flip_start, flip_matrix, flip_apply)
    net = hs.rotate(Net(), flip)
    data, x = pickle.dumps(net), torch.randn(IMAGES)
    del ORTHOGONALIZERS["flip"]
    try:
        other = pickle.loads(data)
        assert ORTHOGONALIZERS["flip"] == flip
        assert torch.equal(hs.merge(other)(x), net(x))
    finally:
        ORTHOGONALIZERS.pop("flip", None)


def test_a_class_with_a_pickle_of_its_own_is_left_to_torch():
    net = hs.rotate(nn.Sequential(Reduced(4, 4), nn.Linear(4, 2)))
    with pytest.raises(RuntimeError, match="state_dict"):
        pickle.dumps(net)


class Reduced(nn.Linear):
    def __reduce_ex__(self, protocol):
        return Reduced, (self.in_features, self.out_features), self.__getstate__()


@pytest.mark.slow
def test_a_spawned_process_computes_the_same():
    model, (x, _) = shake(hs.rotate(hs.spherize(Net()))), rotated_batch()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        output = pool.apply(forward, (model, x.numpy()))
    assert torch.equal(torch.from_numpy(output), model(x))


def forward(model, x):
    torch.set_num_threads(1)
    return model(torch.from_numpy(x)).detach().numpy()
