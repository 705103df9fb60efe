"""Train from a config to results: :func:`fit`. :func:`_train` is the loop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import torch

from .._internal import checks
from .._internal.amx import avoid_trapping_amx
from .._internal.draws import stable_hash
from . import splits
from .automatic import rest_rate
from .config import Config, derive
from .distributed import World, restarts, session
from .results import Result, read_result
from .schedule import set_batch_norm_momentum, set_rate
from .storage import folder
from .training import Callback, Training
from .training import TrainingError as TrainingError


def fit(config: Config, *, callbacks: Sequence[Callback] = (), progress: bool = True) -> Result:
    """Train as `config` says and return the results.

    Files are written if the config has ``out``. Ctrl-C and SIGTERM leave a checkpoint there, from which
    ``resume=True`` continues, bit-identical to an uninterrupted run. torch's random state is restored.

    Args:
        config: a :class:`~hypersphere.train.config.Config`; recipes make one.
        callbacks: functions called as callback(model, step, metrics) with every line of metrics.
        progress: show progress on stderr.

    Returns:
        A :class:`Result`, which prints as a table: ``summary`` (what result.json holds), ``metrics`` (the lines of
        metrics.jsonl), ``model`` (in eval mode, rotations merged), ``path``, ``config``.

    Example:
        >>> from hypersphere.train import Config, fit
        >>> result = fit(Config(steps=2), progress=False)
        >>> result.summary.step, result.model(torch.zeros(1, 1, 8, 8)).shape
        (2, torch.Size([1, 10]))
    """
    if not isinstance(config, Config):
        raise TypeError(f"config must be a hypersphere.train.Config, got {type(config).__name__}")
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise TypeError(f"callbacks must be a list of functions (model, step, metrics), got {callbacks!r}")
    if restarts() and config.out is not None:
        config = derive(config, resume=True)  # torchrun restarts all processes when one has died
    with _isolated(config) as (config, world):
        if config.resume and (finished := read_result(config)) is not None:
            return finished
        training = Training(config, world, callbacks)
        with _trained(training, progress):
            result = training.finish()
        training.warn_if_diverged(result.summary)
        training.interruptions.reraise()  # a signal received during finish()
        return result


@dataclass(frozen=True)
class Part:
    """What a part of a training reached on its validation split; `total` is the steps of the whole training."""

    accuracy: float
    loss: float
    step: int
    total: int
    seconds: float


def fit_part(config: Config, part: int = 1) -> Part:
    """Train the first 1/part of a training's steps and evaluate its validation split.

    The test split is not loaded. The schedule is that of the whole training. Called with a smaller `part`, the run in
    `out` continues; with 1 its weights are those of an uninterrupted training.

    Args:
        config: with `out`, `resume` and a validation split.
    """
    with _isolated(config) as (config, world):
        training = Training(config, world, with_test=False)
        if training.splits.validation is None:
            raise ValueError("there is no validation split: set data.validation or data.fold")
        training.end = -(-training.total // part)
        if training.done.step > training.end:
            raise ValueError(f"{config.out} is already at step {training.done.step}, beyond step {training.end}")
        with _trained(training, False):
            seconds = training.seconds()
        training.interruptions.reraise()
        done = training.done
        accuracy, loss = done.metrics["accuracy"], done.metrics["loss"]
        if not math.isfinite(loss):
            raise TrainingError(f"step {done.step}: the validation loss is {loss}")
        return Part(accuracy, loss, done.step, training.total, round(seconds, 3))


@contextmanager
def _isolated(config: Config) -> Iterator[tuple[Config, World]]:
    """Enter the process group, check the run folder and yield the config with what a run there recorded.

    torch's random state and gradient modes are left as they were.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        session(config.device) as world,
        torch.random.fork_rng([world.device] if world.device.type == "cuda" else []),
    ):
        if config.amp and world.device.type == "cpu" and (limited := avoid_trapping_amx()) and world.is_main:
            checks.warn_once(f"amp: {limited}")
        folder.check_out(config, world)
        yield folder.with_recorded(config, world), world


@contextmanager
def _trained(t: Training, progress: bool) -> Iterator[None]:
    """Lock the folder and train until the end; files are open inside the `with`."""
    with folder.locked(t.config, t.world) as t.run_id, t.running(progress):
        with closing(splits.steps(t.splits, t.config, t.done.step, t.world)) as source:
            _train(t, source)
        yield


def _train(t: Training, source: Iterator[list[splits.Batch]]) -> None:
    """Train until the end. In each step every phase that is due runs its batches forward and backward, then updates."""
    config, task, precision = t.config, t.task, t.precision
    ratio = (config.optimizer.rotation_lr or config.optimizer.lr) / config.optimizer.lr
    # torch.manual_seed takes 0.4 ms: it formats a stack for each kind of device that is not there
    seed = torch.default_generator.manual_seed if t.world.device.type == "cpu" else torch.manual_seed
    while True:
        if t.evaluation_is_due:
            t.evaluate()
            t.save()
        elif t.checkpoint_is_due:
            t.save()
        if t.is_over:
            return
        t.stop_if_requested()

        # Randomness in a step depends on seed and step only, so that no generator state needs a checkpoint.
        seed(stable_hash(config.seed, "step", t.done.step, t.world.rank) & (2**63 - 1))
        batches = [task.to_device(batch) for batch in next(source)]
        task.step = t.done.step
        rate, rotations = t.schedule.rate(t.done.step), ratio * t.schedule.rate(t.done.step, of_rotations=True)
        rest = rest_rate(config.optimizer) / config.optimizer.lr * rate
        for module in task.modules.values():
            set_batch_norm_momentum(module, t.schedule.batch_norm_momentum(t.done.step))
        losses = {}
        for phase in task.phases:
            if (t.done.step + 1) % phase.every:
                continue
            set_rate(phase.optimizer, rate, rotations, rest)
            phase.optimizer.zero_grad(set_to_none=True)
            parts = []  # sum to the mean loss over the samples of the step
            for i, batch in enumerate(batches):
                last = i == len(batches) - 1
                with precision.synchronized(phase.wrapped, last):
                    with precision.autocast():
                        part = phase.loss(batch) * batch.share
                        terms = [term() for term in phase.terms] if last else []
                    precision.backward(sum(terms, part))
                parts.append(part.detach())
            norm = precision.gradient_norm(phase.module, phase.optimizer)
            # the only synchronization with the device in a step
            losses[phase.name], size = torch.stack([sum(parts, norm.new_zeros(())), norm]).tolist()
            t.check_finite(phase, batches, losses[phase.name], size)
            precision.step(phase.module, phase.optimizer, norm)  # a Resampler counts it by a hook
        t.end_step(losses, batches[-1], sum(map(len, batches)), rate)
