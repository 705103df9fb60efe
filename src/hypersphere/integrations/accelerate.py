"""The energy in a training loop with accelerate."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..energy.regularizer import EnergyRegularizer
from ._shared import add_gradient, check_energy


class AccelerateEnergy:
    """The energy in a training loop with accelerate; call it between ``accelerator.backward`` and clipping.

    It adds the energy's gradient once per optimizer step, whatever number of batches is accumulated, and multiplied by
    the scale of mixed precision. Its draws are part of ``accelerator.save_state`` and ``load_state``. A
    :class:`hypersphere.Resampler` needs no help: its counters are buffers of the model.

    Args:
        accelerator: an ``accelerate.Accelerator``.
        energy: an :class:`hypersphere.EnergyRegularizer` of the model.
    """

    def __init__(self, accelerator: Any, energy: EnergyRegularizer) -> None:
        check_energy(energy)
        if not all(hasattr(accelerator, name) for name in ("sync_gradients", "register_for_checkpointing")):
            raise TypeError(f"accelerator must be an accelerate.Accelerator, got {type(accelerator).__name__}")
        if str(accelerator.distributed_type).endswith("DEEPSPEED"):
            raise ValueError("AccelerateEnergy does not work with DeepSpeed, which keeps gradients to itself")
        self.accelerator, self.energy = accelerator, energy
        accelerator.register_for_checkpointing(energy)

    def __call__(self, optimizer: Optimizer) -> Tensor | None:
        """Add the gradient and return the energy; None while gradients are only accumulated."""
        if not self.accelerator.sync_gradients:
            return None
        return add_gradient(self.energy, optimizer, self.accelerator.scaler)
