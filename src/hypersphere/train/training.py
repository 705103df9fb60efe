"""The state of a training and what happens between its steps: logs, evaluations, checkpoints."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import cached

from .._internal import checks
from .._internal.checksummed_json import RUN_ID
from .._internal.interruption import Interruptions
from .._internal.text import one_line
from . import automatic, display, results, splits, tasks
from .config import Config, derive
from .distributed import World
from .inference.run import load_run
from .initial_weights import check_fits
from .networks import ideas_of
from .precision import Precision
from .progress import Progress
from .schedule import LearningRate, PlateauState, has_batch_norm
from .storage import checkpoint, state_checks
from .storage.layout import CHECKPOINTS
from .storage.metrics import Metrics, MetricsLine
from .storage.reading import find, warn_damaged
from .storage.records import check_id, to_record
from .storage.summary import Summary
from .storage.weights import read_plain_tensors

FEW = 100  # fewer steps than this deserve a note
SETTLED = 20  # steps before a rising loss counts as divergence
FAR = 2.0  # times the first loss that count as divergence
GRAPH_EVERY = 10  # steps between evaluations of a graph, whose epoch is a single step

Callback = Callable[[nn.Module, int, dict[str, Any]], object]


class TrainingError(RuntimeError):
    """Raised when a training cannot continue, such as on a loss of NaN."""


class Training:
    """One training: data, task, schedule, progress and files.

    `end` is the step at which it stops, `total` by default; the schedule is always that of `total` steps.
    """

    def __init__(
        self, config: Config, world: World, callbacks: Sequence[Callback] = (), *, with_test: bool = True
    ) -> None:
        self.world, self.callbacks = world, callbacks
        self.splits = splits.load(automatic.data_of(config), config.seed, with_test=with_test)
        config = derive(config, data=automatic.fit_to_processes(config.data, self.splits.data, world.size))
        self.epoch = splits.steps_per_epoch(self.splits, config.data, config.accumulate)
        self.config = config = automatic.resolve_training(config, self.epoch, self.splits.spec.is_photo)
        splits.check_batch_size(self.splits.train, config.data, world.size)
        torch.manual_seed(config.seed)
        self.path = None if config.out is None else Path(config.out)
        newest = self.newest()
        start = None if config.init_from is None or newest is not None else _load_init_from(config.init_from)
        self.task = tasks.make(config, self.splits, world, start)
        if config.schedule.batch_norm is not None and not any(map(has_batch_norm, self.task.modules.values())):
            raise ValueError(f"schedule.batch_norm needs BatchNorm, which model.name={config.model.name} does not have")
        self.task.try_out()
        if config.channels_last is None:
            config = derive(config, channels_last=self.task.channels_last)
        self.config = self.task.config = config
        self.total = config.steps if config.steps is not None else (config.epochs or 0) * self.epoch
        self.end = self.total
        self.eval_every = config.eval_every or (GRAPH_EVERY if self.splits.spec.kind == "graph" else self.epoch)
        resampler = self.task.phases[0].resampler
        # steps between observations of the plateau schedule
        self.round = self.eval_every if resampler is None else resampler.every
        self.schedule = LearningRate(config.schedule, config.optimizer.lr, self.total)
        self.precision = Precision(config, world)
        if world.is_main:
            self.precision.warn_if_slow()
        self.done = Progress()
        self.best_weights: dict[str, dict[str, Tensor]] | None = None
        self.saver, self.interruptions = checkpoint.Saver(), Interruptions()
        self.saved = (0, 0)  # steps of the last checkpoint and of the last evaluation in it
        self.stop_requested = False  # by a signal to any process
        self.run_id: str | None = None  # once the folder is locked
        self.resumed, self.mark = newest is not None, None  # size and checksum of metrics.jsonl at the checkpoint
        if newest is not None:
            self.resume(newest)

    @contextmanager
    def running(self, progress: bool) -> Iterator[None]:
        """Open files and display, and delay signals, while the training runs."""
        config, is_main = self.config, self.world.is_main
        keep = self.done.lines if self.resumed else None
        self.run_id = self.world.broadcast_text(self.run_id or "") or None
        self.history = Metrics(self.path if is_main else None, keep=keep, mark=self.mark)
        title = f"{config.model.name} on {config.data.name}"
        self.screen = display.make(title, self.total, self.done.step, enabled=progress and is_main)
        self.clock = self.window = time.perf_counter()
        self.window_samples = 0
        with self.screen, self.interruptions:
            try:
                self.screen.note(automatic.describe_rate(config.optimizer))
                if config.compile:
                    self.screen.note("compiling the network: the first steps take longer")
                if self.resumed:
                    self.screen.note(f"resumed at step {self.done.step} of {self.total}")
                else:
                    ideas = ", ".join(ideas_of(config, self.task.modules[self.task.main]))
                    self.screen.note(
                        f"{config.model.name} with {ideas}"
                        if ideas
                        else f"{config.model.name}, plain: no sphere layers, energy or rotations"
                    )
                    self.log("train", {}, self._energies())
                    if self.total < FEW and config.steps is None:
                        self.screen.note(f"only {self.total} steps: use more epochs or a smaller data.batch_size")
                yield
            finally:
                try:
                    self.saver.wait()
                finally:
                    self.history.close()

    # ------------------------------------------------------------------------------------------- due events

    @property
    def is_over(self) -> bool:
        patience = self.config.patience
        return self.done.step >= self.end or (patience is not None and self.done.waited >= patience)

    @property
    def evaluation_is_due(self) -> bool:
        step = self.done.step
        return step > self.done.evaluated and (step % self.eval_every == 0 or step == self.end)

    @property
    def checkpoint_is_due(self) -> bool:
        every = self.config.checkpoint_every
        return every is not None and self.done.step > self.saved[0] and self.done.step % every == 0

    # ------------------------------------------------------------------------------------------- between the steps

    def end_step(self, losses: dict[str, float], batch: splits.Batch, samples: int, rate: float) -> None:
        """Count a step: means, display, metrics every `log_every` steps, plateau schedule."""
        done = self.done
        done.step += 1
        loss, flags = next(iter(losses.values())), float(self.interruptions.signal is not None)
        if self.world.size > 1:
            summed = self.world.all_sum(*losses.values(), samples, flags)
            losses = {name: value / self.world.size for name, value in zip(losses, summed, strict=False)}
            loss, samples, flags = next(iter(losses.values())), int(summed[-2]), summed[-1]
        self.stop_requested = flags > 0
        done.first = loss if done.step == 1 else done.first
        done.samples += samples
        self.window_samples += samples
        done.loss.add(loss)
        done.round.add(loss)
        self.screen.advance(done.step, loss)
        if done.step % self.config.log_every == 0 or done.step == self.total:
            right, of = self.world.all_sum(*self.task.count_correct(batch))
            measured = self.task.step_metrics() | ({"accuracy": right / of} if of else {})
            others = losses if len(self.task.phases) > 1 else {}
            now = time.perf_counter()
            speed = self.window_samples / max(now - self.window, 1e-9)
            self.window, self.window_samples = now, 0
            mean = done.loss.take()
            self.log("train", {"loss": mean, **others, **measured, "lr": rate, "samples_per_second": speed})
        if done.step % self.round == 0:
            self.schedule.observe(done.round.take())

    def stop_if_requested(self) -> None:
        """Save a checkpoint and stop, if any process has received a signal."""
        if self.stop_requested or self._is_interrupted():
            self._stop()

    def _stop(self) -> None:
        self.stop_requested = True
        self.save()
        self.saver.wait()
        self.interruptions.signal = self.interruptions.signal or signal.SIGTERM  # the signal went to another process
        self.interruptions.reraise()

    def check_finite(self, phase: tasks.Phase, batches: list[splits.Batch], loss: float, norm: float) -> None:
        """Raise TrainingError if loss or gradient is not finite, before it reaches the weights."""
        if math.isfinite(loss) and (math.isfinite(norm) or self.precision.may_skip):
            return
        bad = [
            name
            for name, parameter in phase.module.named_parameters()
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
        ]
        what = f"{phase.name} is {loss}" if not math.isfinite(loss) else "a gradient is not finite"
        hint = f"a smaller optimizer.lr{'' if self.precision.clip is not None else ' or clip=1'} may help"
        if any(batch.inputs.is_floating_point() and not bool(batch.inputs.isfinite().all()) for batch in batches):
            hint = "the inputs are not finite: check the data"
        elif not bad and math.isfinite(loss):
            what = "the gradients are too large for their type"
        where = f", first in the gradient of {bad[0]}" if bad else ""
        line = MetricsLine(self.done.step + 1, "train", values={phase.name: loss}, diverged=True)
        self.history.write(replace(line, seconds=round(self.seconds(), 3)))
        self.saver.wait()
        newest = checkpoint.latest(self.path / CHECKPOINTS) if self.path is not None else None
        last = f"; the last checkpoint is {newest}" if newest is not None else ""
        raise TrainingError(f"step {self.done.step + 1}: {what}{where}{last}; {hint}")

    def evaluate(self) -> None:
        """Evaluate, log, and keep the weights if they are the best on validation."""
        self._eval_mode(True)
        with cached():  # compute rotations once, not for every batch
            metrics = self.task.evaluate(self.splits.eval_split, self._is_interrupted)
            energies = self._energies()
        self._eval_mode(False)
        if metrics is None:
            self._stop()
        assert metrics is not None
        self.done.evaluated, self.done.metrics = self.done.step, metrics
        self.log(self.splits.eval_split, metrics, energies)
        self.window, self.window_samples = time.perf_counter(), 0
        if self.splits.eval_split == "validation" and "accuracy" in metrics:
            self._update_best(metrics)

    def _energies(self) -> results.Energies:
        return self.task.energies(), self.task.pair_energies()

    def _is_interrupted(self) -> bool:
        return self.world.size == 1 and self.interruptions.signal is not None

    def _eval_mode(self, on: bool) -> None:
        for module in self.task.modules.values():
            if on:
                self.world.broadcast_buffers(module)
            module.train(not on)

    def _update_best(self, metrics: dict[str, float]) -> None:
        best = self.done.best
        if best is None or (metrics["accuracy"], -metrics["loss"]) > (best["accuracy"], -best["loss"]):
            self.done.best, self.done.waited = {"step": self.done.step, **metrics}, 0
            weights = {name: module.state_dict() for name, module in self.task.modules.items()}
            self.best_weights = {
                name: {key: value.clone() for key, value in state.items()} for name, state in weights.items()
            }
        else:
            self.done.waited += 1

    def log(self, split: str, metrics: Mapping[str, float], energies: results.Energies = ({}, {})) -> None:
        """Log a line of metrics to the file, the display and the callbacks."""
        step = self.done.step
        line = MetricsLine(
            step,
            split,
            epoch=round(step / self.epoch, 4),
            values=dict(metrics),
            energies=dict(energies[0]),
            pair_energies=dict(energies[1]),
            run_id=None if self.history.lines else self.run_id,
            seconds=round(self.seconds(), 3),
        )
        self.done.lines += 1
        self.history.write(line)
        self.screen.show(line)
        modes = [(module, module.training) for module in self.task.modules.values()]
        for callback in self.callbacks:
            callback(self.task.modules[self.task.main], step, line.to_dict())
        for module, training in modes:  # a callback may have switched it to eval mode
            module.train(training)

    def seconds(self) -> float:
        """Return the seconds of this training, including those before it was resumed."""
        return self.done.seconds + time.perf_counter() - self.clock

    # ------------------------------------------------------------------------------------------- files

    def save(self) -> None:
        """Save a checkpoint in the background, if one is due and not saved yet."""
        step, every = self.done.step, self.config.checkpoint_every
        is_best = self.done.best is not None and self.done.best["step"] == step
        due = every is None or step % every == 0 or is_best or self.stop_requested or self.is_over
        place = step, self.done.evaluated
        if self.path is None or not self.world.is_main or not due or place == self.saved:
            return
        self.saved = place
        tensors, tree = checkpoint.flatten(self.state())
        state = {"tree": tree, "data": self.splits.spec.to_tree(), "step": step, "history": self.history.mark()}
        state[RUN_ID] = self.run_id
        self.saver.save(self.path / CHECKPOINTS, step, tensors, state, keep=self.config.keep, best=is_best)

    def state(self) -> Mapping[str, Any]:
        """Return the state that a resumed training needs."""
        return {
            **{name: module.state_dict() for name, module in self.task.modules.items()},
            "optimizers": [phase.optimizer.state_dict() for phase in self.task.phases],
            "regularizer": None if self.task.regularizer is None else self.task.regularizer.state_dict(),
            "schedule": asdict(self.schedule.state),
            "precision": self.precision.state_dict(),
            "progress": asdict(replace(self.done, seconds=self.seconds())),
        }

    def newest(self) -> Path | None:
        """Return the newest intact checkpoint; None if there is none, or `resume` is off."""
        if not self.config.resume or self.path is None:
            return None
        where = self.path / CHECKPOINTS
        found, damaged = find(where, marked=False) if self.world.is_main else (None, [])
        if found is None and damaged:
            raise ValueError(f"none of the checkpoints can be read, {damaged[0]}; to start over, move {where} away")
        warn_damaged(damaged)
        name = self.world.broadcast_text("" if found is None else found.name)
        return where / name if name else None

    def resume(self, newest: Path) -> None:
        """Load a checkpoint."""
        tensors, state = checkpoint.load(newest)
        check_id(newest.parent.parent, newest, state.get(RUN_ID))
        if state.get("data") != self.splits.spec.to_tree():
            raise ValueError(f"{newest} was trained on data of another shape or other classes")
        try:
            self._load_state(checkpoint.unflatten(tensors, state.get("tree")))
            self.mark = state.get("history")
            self.task.try_out()  # with the loaded state, whose indices may be out of range
        except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError) as error:
            raise ValueError(f"{newest} does not match the config: {one_line(error)[:200]}") from None
        if self.done.best is not None:
            self._load_best(newest.parent)
        if self.done.step > self.total:
            raise ValueError(
                f"{newest.parent.parent} is already at step {self.done.step}, beyond the requested {self.total}"
            )

    def _load_state(self, nested: Mapping[str, Any]) -> None:
        """Load what :meth:`state` returned."""
        self._load(nested)
        for phase, state in zip(self.task.phases, nested["optimizers"], strict=True):
            state_checks.load_optimizer(phase.optimizer, state)
        if self.task.regularizer is not None:
            self.task.regularizer.load_state_dict(nested["regularizer"])
        self.schedule.state = to_record(PlateauState, nested["schedule"])
        self.precision.load_state_dict(nested["precision"])
        self.done = to_record(Progress, nested["progress"])
        self.saved = self.done.step, self.done.evaluated

    def _load(self, nested: Mapping[str, Any]) -> None:
        for name, module in self.task.modules.items():
            module.load_state_dict(nested[name])

    def _load_best(self, where: Path) -> None:
        found = checkpoint.latest(where, best=True)
        tensors, state = ({}, {}) if found is None else checkpoint.load(found)
        if found is not None:
            check_id(where.parent, found, state.get(RUN_ID))
        if state.get("step") != (self.done.best or {}).get("step"):
            checks.warn(f"{where}: the best checkpoint is missing; the next evaluation becomes the best")
            self.done.best = None
            return
        nested = checkpoint.unflatten(tensors, state.get("tree"))
        try:
            weights = {name: nested[name] for name in self.task.modules}
            for name, module in self.task.modules.items():
                check_fits(module, {key: value.shape for key, value in weights[name].items()}, str(found))
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{found} does not match the config: {one_line(error)[:200]}") from None
        self.best_weights = weights

    def finish(self) -> results.Result:
        """Evaluate and write the final weights; with a validation split, those that were best on it."""
        if self.best_weights is not None:
            self._load(self.best_weights)
        self._eval_mode(True)
        energies = self._energies()
        split, metrics = self.splits.eval_split, self.done.best or self.done.metrics
        is_current = self.best_weights is None
        if split == "validation" and self.splits.test is not None:
            split, metrics = "test", self.task.evaluate("test") or {}
            is_current = True
            self.log(split, metrics, energies)
        self.saver.wait()
        predictions = self.task.final_predictions(split, is_current)
        return results.write_result(
            self.task,
            self.done,
            self.history,
            predictions,
            split=split,
            metrics=metrics,
            energies=energies,
            seconds=self.seconds(),
            diverged=self._has_diverged(metrics.get("accuracy"), split),
            run_id=self.run_id,
        )

    def _has_diverged(self, accuracy: float | None, split: str) -> bool:
        """Return whether a classifier ends at chance accuracy after a loss far above that of its first step.

        Judged by the training loss: overfitting raises that of `split` too. The last loss may be that of a guess, as
        for a network whose ReLUs are all dead.
        """
        first, losses = self.done.first, self._losses()
        if accuracy is None or first is None or not losses or self.done.step < SETTLED:
            return False
        chance, guess = self.splits.chance(split), math.log(len(self.splits.spec.classes))
        at_most = chance + 2 * math.sqrt(chance * (1 - chance) / max(1, self.splits.count(split)))
        return accuracy <= at_most and max(losses) > FAR * max(first, guess) and losses[-1] > 0.9 * guess

    def _losses(self) -> list[float]:
        """Return the training losses of the metrics, each a mean over some steps."""
        return [line.loss for line in self.history.lines if line.split == "train" and line.loss is not None]

    def warn_if_diverged(self, summary: Summary) -> None:
        if summary.diverged and self.world.is_main:
            clip = "" if self.precision.clip is not None else " or clip=1"
            checks.warn(
                f"the training diverged: its loss rose from {self.done.first:.4g} to {max(self._losses()):.4g}, and it "
                f"ends at chance accuracy, {summary.accuracy:.2%}; "
                f"try optimizer.lr below {self.config.optimizer.lr:g}{clip}"
            )


def _load_init_from(path: str) -> tasks.Start:
    """Load the model of another run, or the tensors of a file, for ``init_from``."""
    try:
        return read_plain_tensors(Path(path)) if Path(path).is_file() else load_run(path).model
    except (ValueError, OSError) as error:
        raise ValueError(f"init_from: {error}") from None
