"""Parameter groups for any optimizer, and OGD, an optimizer that keeps matrices orthogonal."""

from .groups import param_groups as param_groups
from .ogd import OGD as OGD
