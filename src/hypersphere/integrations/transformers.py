"""The callback for Hugging Face's Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ._shared import CallbackArguments, add_gradient, merge_if_rotated, start_resampling

if TYPE_CHECKING:
    TrainerCallback: Any = object
else:
    try:
        from transformers import TrainerCallback
    except ImportError:
        TrainerCallback = None

_KEY = "hypersphere.energy"  # in trainer_state.json


class TransformersCallback(CallbackArguments, TrainerCallback or object):  # type: ignore[misc]
    """Energy, stochastic OPT and merging in Hugging Face's Trainer.

    A callback cannot change the loss. So the energy's gradient is added at the beginning of each optimizer step, before
    the batches' gradients, and clipped together with theirs. It is not divided by the number of accumulated batches.
    The energy is logged as ``energy``; the Trainer's ``loss`` does not include it.

    If the model is rotated with ``sample``, its dimensions are drawn anew every `every` optimizer steps. A checkpoint
    holds all of the state: ``trainer.train(resume_from_checkpoint=...)`` is bit-identical to an uninterrupted training
    where the Trainer itself is.

    Args:
        energy: an :class:`hypersphere.EnergyRegularizer` of the model, or None.
        every: steps between draws, as in :class:`hypersphere.Resampler`.
        merge: merge rotations when training ends; a model that is loaded from a checkpoint must be rotated again.
    """

    package, base = "transformers", TrainerCallback
    _value: Tensor | None = None  # the last energy

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: nn.Module, optimizer: Any, **_: Any
    ) -> None:
        if args.deepspeed:
            raise ValueError("TransformersCallback does not work with DeepSpeed, which keeps gradients to itself")
        start_resampling(model, [optimizer], self.every)
        if self.energy is not None and _KEY in state.stateful_callbacks:  # of the checkpoint
            self.energy.load_state_dict(state.stateful_callbacks[_KEY])

    def on_step_begin(self, args: Any, state: Any, control: Any, *, optimizer: Any, **_: Any) -> None:
        if self.energy is not None:
            self._value = add_gradient(self.energy, optimizer, getattr(optimizer, "scaler", None))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.energy is not None:  # checkpoints are written after this
            state.stateful_callbacks[_KEY] = self.energy.state_dict()

    def on_log(self, args: Any, state: Any, control: Any, *, logs: dict[str, float], **_: Any) -> None:
        if self._value is not None and "loss" in logs:
            logs["energy"] = state.log_history[-1]["energy"] = self._value.item()

    def on_train_end(self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: Any) -> None:
        if self.merge:
            merge_if_rotated(model)
