"""Parameter groups for any optimizer, OGD, Pion, which keeps singular values, Hyperball,
which keeps norms, MuonAdamW, and RowSGD for many classes."""

from .groups import param_groups as param_groups
from .hyperball import Hyperball as Hyperball
from .muon import MuonAdamW as MuonAdamW
from .ogd import OGD as OGD
from .pion import Pion as Pion
from .row_sgd import RowSGD as RowSGD
