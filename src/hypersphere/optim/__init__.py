"""Parameter groups for any optimizer, OGD, which keeps matrices orthogonal, and RowSGD for very many classes."""

from .groups import param_groups as param_groups
from .ogd import OGD as OGD
from .row_sgd import RowSGD as RowSGD
