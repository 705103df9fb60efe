"""The networks of the three papers, by name: ``create("cnn9.mhe", num_classes=100)``.

A family name (``cnn9``, ``resnet18``) takes every option of the family; ``family.paper`` is the paper's network.
"""

from .._internal.modules import import_all
from ._parts import Network as Network
from ._parts import initialize as initialize
from ._registry import PRESETS as PRESETS
from ._registry import Preset as Preset
from ._registry import create as create
from ._registry import names as names
from ._registry import preset as preset
from ._registry import register as register

import_all(__name__, __path__)  # each registers its networks
