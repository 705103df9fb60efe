"""Work with other packages, a file each. A package is imported when its file is used.

- :mod:`~hypersphere.integrations.huggingface`: save and load converted networks of transformers
- :mod:`~hypersphere.integrations.sklearn`: estimators that compare by angle
- :mod:`~hypersphere.integrations.pytorch_metric_learning`: its losses as heads
- :class:`TransformersCallback`, :class:`LightningCallback`, :class:`AccelerateEnergy`: energy, stochastic OPT and
  merging in Hugging Face's Trainer, in Lightning's, and in a loop of your own with accelerate
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._internal.lazy import lazy

if TYPE_CHECKING:
    from . import huggingface as huggingface
    from . import pytorch_metric_learning as pytorch_metric_learning
    from . import sklearn as sklearn
    from .accelerate import AccelerateEnergy as AccelerateEnergy
    from .lightning import LightningCallback as LightningCallback
    from .transformers import TransformersCallback as TransformersCallback
else:
    _modules = dict.fromkeys(
        ("accelerate", "huggingface", "lightning", "pytorch_metric_learning", "sklearn", "transformers"), ""
    )
    _classes = {"AccelerateEnergy": "accelerate", "LightningCallback": "lightning"}
    __getattr__, __dir__ = lazy(__name__, {**_modules, **_classes, "TransformersCallback": "transformers"})
