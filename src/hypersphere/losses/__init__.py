"""Softmax losses on angles: margins, the shared softmax, and the heads; losses of embeddings."""

from . import functional as functional
from .binary import SphereFace2Loss as SphereFace2Loss
from .binary import UniFaceLoss as UniFaceLoss
from .embedding import CenterLoss as CenterLoss
from .embedding_regularizer import EVENNESS as EVENNESS
from .embedding_regularizer import EmbeddingRegularizer as EmbeddingRegularizer
from .heads import AMSoftmaxLoss as AMSoftmaxLoss
from .heads import ArcFaceLoss as ArcFaceLoss
from .heads import ASoftmaxLoss as ASoftmaxLoss
from .heads import GASoftmaxLoss as GASoftmaxLoss
from .heads import SphereFacePlusLoss as SphereFacePlusLoss
from .heads import SSoftmaxLoss as SSoftmaxLoss
from .heads import WSoftmaxLoss as WSoftmaxLoss
from .margins import MARGINS as MARGINS
from .margins import sphereface_annealing as sphereface_annealing
from .other_logits import CurricularFaceLoss as CurricularFaceLoss
from .other_logits import SphereFaceRLoss as SphereFaceRLoss
from .sample_margins import AdaFaceLoss as AdaFaceLoss
from .sample_margins import ElasticFaceLoss as ElasticFaceLoss
from .sample_margins import MagFaceLoss as MagFaceLoss
from .sharding import shard_head as shard_head
from .softmax import AngularSoftmaxLoss as AngularSoftmaxLoss
