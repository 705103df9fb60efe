"""Evaluate embeddings on unseen classes: verification, identification, few-shot, thresholds, neighbours."""

from .few_shot import EpisodeAccuracy as EpisodeAccuracy
from .few_shot import few_shot_accuracy as few_shot_accuracy
from .identification import identification_ranks as identification_ranks
from .neighbors import Neighbors as Neighbors
from .neighbors import nearest as nearest
from .roc import Roc as Roc
from .roc import roc_curve as roc_curve
from .threshold import OperatingPoint as OperatingPoint
from .threshold import threshold_at as threshold_at
from .threshold import threshold_of_embeddings as threshold_of_embeddings
from .verification import Verification as Verification
from .verification import divide_into_folds as divide_into_folds
from .verification import verify_pairs as verify_pairs
