"""The networks of the three papers, by name: ``create("cnn9.mhe", num_classes=100)``.

A family name (``cnn9``, ``resnet18``) takes every option of the family; ``family.paper`` is the paper's network.
"""

from .._internal.modules import import_all
from ._parts import Network, initialize
from ._registry import PRESETS, Preset, create, names, preset, register

__all__ = ["PRESETS", "Network", "Preset", "create", "initialize", "names", "preset", "register"]

import_all(__name__, __path__)  # each registers its networks
