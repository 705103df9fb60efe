"""Neural networks that learn on hyperspheres: angles instead of inner products."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import cosine, functional, layers, losses, optim, recurrent, regularizers, report, selection, similarity
    from .conversion import spherize
    from .layers import SphereConv1d, SphereConv2d, SphereConv3d, SphereLinear
    from .losses import (
        AMSoftmaxLoss,
        AngularSoftmaxLoss,
        ArcFaceLoss,
        ASoftmaxLoss,
        GASoftmaxLoss,
        SSoftmaxLoss,
        WSoftmaxLoss,
    )
    from .optim import param_groups
    from .recurrent import SphereGRU, SphereLSTM, SphereRNN
    from .regularizers import orthonormal_penalty
    from .selection import Neurons, select
    from .similarity import LearnableSigmoid
else:
    # Names are found when they are first used, so that importing the package does not import torch.
    _HOME = {
        "spherize": "conversion",
        **dict.fromkeys(("SphereConv1d", "SphereConv2d", "SphereConv3d", "SphereLinear"), "layers"),
        **dict.fromkeys(("SphereRNN", "SphereGRU", "SphereLSTM"), "recurrent"),
        **dict.fromkeys(
            (
                "AngularSoftmaxLoss",
                "WSoftmaxLoss",
                "GASoftmaxLoss",
                "ASoftmaxLoss",
                "SSoftmaxLoss",
                "AMSoftmaxLoss",
                "ArcFaceLoss",
            ),
            "losses",
        ),
        "param_groups": "optim",
        "orthonormal_penalty": "regularizers",
        "Neurons": "selection",
        "select": "selection",
        "LearnableSigmoid": "similarity",
    }
    _MODULES = (
        "cosine",
        "functional",
        "layers",
        "losses",
        "optim",
        "recurrent",
        "regularizers",
        "report",
        "selection",
        "similarity",
    )

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name in _MODULES:
            return import_module(f".{name}", __name__)
        if name in _HOME:
            value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*globals(), *_HOME, *_MODULES])
