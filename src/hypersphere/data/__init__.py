"""Load the papers' datasets from their official files, ``load("cifar10", root)``, and make batches.

Nothing is downloaded. Register your own dataset by ``register("mine", loader)``.
"""

from .._internal.modules import import_all
from ._dataset import ArrayDataset, Dataset, Graph, LazyDataset, MissingSplit
from ._pairs import Pair, Pairs
from ._random import SampleGenerator
from ._registry import LOADERS, PAIRS, load, load_pairs, names, register
from .augment import AUGMENTATIONS
from .faces import read_pairs
from .sampling import batches, episode, episode_indices, fold, holdout, imbalance, num_batches

__all__ = ["AUGMENTATIONS", "LOADERS", "PAIRS", "ArrayDataset", "Dataset", "Graph", "LazyDataset", "MissingSplit"]
__all__ += ["Pair", "Pairs", "SampleGenerator", "batches", "episode", "episode_indices", "fold", "holdout", "imbalance"]
__all__ += ["load", "load_pairs", "names", "num_batches", "read_pairs", "register"]

import_all(__name__, __path__)  # each registers its datasets
