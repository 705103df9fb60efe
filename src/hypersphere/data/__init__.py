"""Load the papers' datasets from their official files, ``load("cifar10", root)``, and make batches.

Nothing is downloaded. Register your own dataset by ``register("mine", loader)``.
"""

from .._internal.modules import import_all
from ._dataset import ArrayDataset as ArrayDataset
from ._dataset import Dataset as Dataset
from ._dataset import Graph as Graph
from ._dataset import LazyDataset as LazyDataset
from ._dataset import MissingSplit as MissingSplit
from ._pairs import Pair as Pair
from ._pairs import Pairs as Pairs
from ._random import SampleGenerator as SampleGenerator
from ._registry import LOADERS as LOADERS
from ._registry import PAIRS as PAIRS
from ._registry import load as load
from ._registry import load_pairs as load_pairs
from ._registry import names as names
from ._registry import register as register
from .augment import AUGMENTATIONS as AUGMENTATIONS
from .faces import read_pairs as read_pairs
from .sampling import batches as batches
from .sampling import episode as episode
from .sampling import episode_indices as episode_indices
from .sampling import fold as fold
from .sampling import holdout as holdout
from .sampling import imbalance as imbalance
from .sampling import num_batches as num_batches

import_all(__name__, __path__)  # each registers its datasets
