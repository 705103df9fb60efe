"""Load the papers' datasets from their official files, ``load("cifar10", root)``, and make batches.

Nothing is downloaded. Register your own dataset by ``register("mine", loader)``.
"""

from .._internal.modules import import_all
from ._dataset import ArrayDataset, Dataset, Graph, LazyDataset, MissingSplit
from ._pairs import Pair, Pairs
from ._random import SampleGenerator
from ._registry import DATASETS, RegisteredDataset, has_pairs, load, load_pairs, names, register
from .augment import AUGMENTATIONS
from .batching import batches, num_batches
from .class_balanced import ClassBalancedSampler
from .episodes import episode, episode_indices
from .faces import read_pairs
from .subsets import fold, holdout, imbalance

__all__ = ["AUGMENTATIONS", "DATASETS", "ArrayDataset", "ClassBalancedSampler", "Dataset", "Graph", "LazyDataset"]
__all__ += ["MissingSplit"]
__all__ += ["Pair", "Pairs", "RegisteredDataset", "SampleGenerator", "batches", "episode", "episode_indices", "fold"]
__all__ += ["has_pairs", "holdout", "imbalance", "load", "load_pairs", "names", "num_batches", "read_pairs", "register"]

import_all(__name__, __path__)  # each registers its datasets
