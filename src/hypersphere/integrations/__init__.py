"""Callbacks for the trainers of other packages: energy, stochastic OPT and merging.

- :class:`TransformersCallback`: Hugging Face's Trainer
- :class:`LightningCallback`: Lightning's Trainer
- :class:`AccelerateEnergy`: the energy in a loop of your own with accelerate

The packages are imported when one of these names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._internal.lazy import lazy

if TYPE_CHECKING:
    from . import huggingface as huggingface
    from . import sklearn as sklearn
    from .accelerate import AccelerateEnergy as AccelerateEnergy
    from .lightning import LightningCallback as LightningCallback
    from .transformers import TransformersCallback as TransformersCallback
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {"AccelerateEnergy": "accelerate", "LightningCallback": "lightning", "TransformersCallback": "transformers"}
        | {"huggingface": "", "sklearn": ""},
    )
