"""The networks of the three papers, by name: ``create("cnn9.mhe", num_classes=100)``.

A family name (``cnn9``, ``resnet18``) takes every option of the family; ``family.paper`` is the paper's network.
"""

from .._internal.modules import import_all
from ._parts import Network, Style, check_images, check_ints, check_size, flatten_features, initialize
from ._registry import PRESETS, Preset, create, names, preset, register

__all__ = ["PRESETS", "Network", "Preset", "Style", "check_images", "check_ints", "check_size", "create"]
__all__ += ["flatten_features", "initialize", "names", "preset", "register"]

import_all(__name__, __path__)  # each registers its networks
