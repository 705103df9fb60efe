"""Parameter groups for any optimizer, OGD, Pion, which keeps singular values, and RowSGD for many classes."""

from .groups import param_groups as param_groups
from .ogd import OGD as OGD
from .pion import Pion as Pion
from .row_sgd import RowSGD as RowSGD
