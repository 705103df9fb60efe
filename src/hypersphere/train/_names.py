"""What a config may name, without torch: a test keeps these tables equal to the real ones."""

from __future__ import annotations

import sys

from .._internal.nearest import nearest as nearest

_PLAIN = tuple(f"cnn{layers}" for layers in (3, 6, 9, 15, 18, 45, 60, 69))

#: the kind of thing → its names, in the order of the real table
NAMES: dict[str, tuple[str, ...]] = {
    "model": (
        *("mlp", "mlp.opt", *_PLAIN),
        *(f"cnn{layers}.spherenet" for layers in (3, 9, 18, 45, 60, 69)),
        *("cnn6.mhe", "cnn9.mhe", "cnn15.mhe", "cnn6.opt", "cnn9.opt", "wide_cnn9.opt", "cnn10.opt", "cnn4.opt"),
        *("cnn_mnist.opt", "resnet20", "resnet32", "resnet18", "resnet34", "resnet32.spherenet"),
        *("resnet32w.spherenet", "resnet18.spherenet", "resnet18v2.spherenet", "resnet32.mhe", "resnet18.mhe"),
        *("resnet34.mhe", "resnet20.opt", "resnet32.opt", "resnet18.opt", "resnet18a.opt", "resnet18b.opt"),
        *("sphereface20", "sphereface64", "cnn20.opt", "gcn", "gcn.opt", "pointnet", "pointnet.opt"),
        *("generator.mhe", "discriminator.mhe", "transformer"),
    ),
    "data": (
        *("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "cifar_fs", "fc100", "image_folder", "modelnet"),
        *("orl", "lfw", "text", "cora", "citeseer", "pubmed"),
    ),
    "augmentation": (
        *("cifar10.spherenet", "cifar10+.spherenet", "cifar10+.spherenet.vertical", "cifar.mhe", "imagenet"),
        *("modelnet.opt", "cifar10.spherenet.eval", "cifar10+.spherenet.eval", "cifar10+.spherenet.vertical.eval"),
        *("cifar.mhe.eval", "imagenet.eval", "modelnet.opt.eval"),
    ),
    "imbalance": ("single", "multiple", "mnist0"),
    "similarity": ("cosine", "linear", "sigmoid", "learnable"),
    "scale": ("auto",),
    "clip": ("auto",),
    "loss": (
        *("softmax", "w_softmax", "ga_softmax", "a_softmax", "s_softmax", "am_softmax", "arcface", "sphereface_plus"),
    ),
    "measure": (
        *("energy", "comhe_random", "comhe_angle", "orthonormal", "orthoreg", "srip", "separation", "polarization"),
        *("covering", "gram_determinant"),
    ),
    "method": (
        *("gram_schmidt", "modified_gram_schmidt", "iterative_gram_schmidt", "householder", "givens", "lowdin"),
        *("canonical", "cayley", "exponential", "ogd", "regularized", "unconstrained", "positive_definite", "upper"),
        *("lower", "banded", "symmetric", "skew", "hessenberg_upper", "hessenberg_lower", "network", "none"),
    ),
    "init": ("identity", "normal"),
    "neurons": ("fixed", "learned"),
    "layers": ("hidden", "output", "all"),
    # torch.optim in small letters, but for LBFGS (wants the loss as a function), SparseAdam (sparse gradients alone)
    # and Muon (matrices alone)
    "optimizer": (
        *("adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop"),
        *("rprop", "sgd", "ogd"),
    ),
    "schedule": ("constant", "step", "cosine", "plateau"),
    "precision": ("bfloat16", "float16"),
}

# Where names of the user's own are registered. Read if the module is there already; nothing is imported for it.
_LIVE = {
    "model": ("hypersphere.models._registry", "PRESETS"),
    "data": ("hypersphere.data._registry", "LOADERS"),
    "augmentation": ("hypersphere.data.augment", "AUGMENTATIONS"),
    "similarity": ("hypersphere.similarity", "SIMILARITIES"),
    "measure": ("hypersphere.energy.measures", "REGULARIZERS"),
    "method": ("hypersphere.orthogonal", "ORTHOGONALIZERS"),
}

#: data sets that are known by a folder of their official files
FOLDERS: dict[str, tuple[str, ...]] = {
    "mnist": ("MNIST/raw", "mnist", "MNIST"),
    "fashion_mnist": ("FashionMNIST/raw", "fashion-mnist", "fashion_mnist", "FashionMNIST"),
    "cifar10": ("cifar-10-batches-bin", "cifar-10-batches-py"),
    "cifar100": ("cifar-100-binary", "cifar-100-python"),
    "modelnet": ("modelnet40_ply_hdf5_2048", "modelnet10_ply_hdf5_2048"),
}

#: what the optimizers have, of what a config can set
MOMENTUM = ("sgd", "ogd", "rmsprop")
BETAS = ("adam", "adamax", "adamw", "nadam", "radam")
NO_DECAY = ("rprop",)

#: what the losses have, beside label_smoothing (all) and energy_weight (all but softmax)
LOSS_OPTIONS: dict[str, tuple[str, ...]] = {
    "softmax": (),
    "w_softmax": ("similarity",),
    "ga_softmax": ("similarity", "margin", "scale", "annealing"),
    "a_softmax": ("margin", "scale", "annealing"),
    "s_softmax": ("similarity", "scale"),
    "am_softmax": ("margin", "scale"),
    "arcface": ("margin", "scale"),
    "sphereface_plus": ("margin", "scale", "annealing"),
}

#: numbers in brackets that a similarity takes at most, as in "sigmoid(0.7)"
SIMILARITY_NUMBERS = {"cosine": 0, "linear": 2, "sigmoid": 1, "learnable": 1}

#: what there is no identity of
NORMAL_ONLY = ("canonical", "skew")


def known(kind: str) -> tuple[str, ...]:
    """The names of a kind, with those that the user has registered."""
    module, table = _LIVE.get(kind, ("", ""))
    live = getattr(sys.modules.get(module), table, ())
    return tuple(dict.fromkeys((*NAMES[kind], *live)))


def kind_of_data(name: str) -> str | None:
    """images | points | text | graph; None: the user's own, of which nothing is known."""
    if name not in NAMES["data"]:
        return None
    return {"modelnet": "points", "text": "text", "cora": "graph", "citeseer": "graph", "pubmed": "graph"}.get(
        name, "images"
    )


def kind_of_model(name: str) -> str | None:
    """The data a network takes, as :func:`kind_of_data`."""
    if name not in NAMES["model"]:
        return None
    family = name.partition(".")[0]
    return {"gcn": "graph", "pointnet": "points", "transformer": "text"}.get(family, "images")
