"""How redundant the neurons of a model are: one row a layer, as data and as a table."""

from .row import LISTED as LISTED
from .row import Row as Row
from .rows import Diagnosis as Diagnosis
from .rows import diagnose as diagnose
