"""The callback for Lightning's Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._shared import CallbackArguments, add_gradient, merge_if_rotated, start_resampling

if TYPE_CHECKING:
    Callback: Any = object
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        Callback = None


class LightningCallback(CallbackArguments, Callback or object):  # type: ignore[misc]
    """Energy, stochastic OPT and merging in Lightning's Trainer.

    The energy's gradient is added before each optimizer step, once for all accumulated batches, and clipped together
    with theirs. The energy is logged as ``energy``.

    If the module is rotated with ``sample``, its dimensions are drawn anew every `every` optimizer steps. A checkpoint
    holds all of the state: ``trainer.fit(module, ckpt_path=...)`` is bit-identical to an uninterrupted training where
    the data loader's order is.

    Args:
        energy: an :class:`hypersphere.EnergyRegularizer` of the module or a part of it, or None.
        every: steps between draws, as in :class:`hypersphere.Resampler`.
        merge: merge rotations after the last checkpoint of ``fit``; a module that is loaded from a checkpoint must be
            rotated again.
    """

    package, base = "lightning", Callback

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        start_resampling(pl_module, trainer.optimizers, self.every)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self.energy is None:
            return
        scaler: Any = getattr(trainer.precision_plugin, "scaler", None)
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            scaler = None  # gradients are unscaled already; a fused optimizer does that itself
        value = add_gradient(self.energy, optimizer, scaler)
        if value is not None:
            pl_module.log("energy", value)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.merge:
            merge_if_rotated(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.energy is None else self.energy.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.energy is not None:
            self.energy.load_state_dict(state_dict)
