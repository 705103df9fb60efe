"""Evaluate embeddings on classes that were not trained on: verification, identification, few-shot episodes."""

from .few_shot import EpisodeAccuracy as EpisodeAccuracy
from .few_shot import few_shot_accuracy as few_shot_accuracy
from .identification import identification_ranks as identification_ranks
from .roc import Roc as Roc
from .roc import roc_curve as roc_curve
from .verification import Verification as Verification
from .verification import divide_into_folds as divide_into_folds
from .verification import verify_pairs as verify_pairs
