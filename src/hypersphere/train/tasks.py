"""The training tasks: classify samples or the nodes of a graph; :func:`register_task` adds others.

A task has modules, which a checkpoint holds, and phases, one for each optimizer: a step runs each in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import models
from .._internal import catalog
from ..energy import EnergyRegularizer
from ..losses import EmbeddingRegularizer
from ..models.ngpt import NGPT
from ..rotation import Resampler, rotation_penalty
from . import initial_weights, networks, neurons, openset
from .config import Config, Embedding
from .distributed import World
from .evaluation import Predictions, evaluate, predictions
from .optimizers import build_optimizer
from .splits import Batch, DataSpec, Splits, evaluation, first_two

LARGE = 16 * 16  # pixels; from this size channels_last is the default on a CPU
EVERY, PENALTY = 750, 0.1  # defaults: steps between draws, weight of the penalty

Start = nn.Module | dict[str, Tensor]  # of init_from: another run's model, or the tensors of a file


@dataclass
class Phase:
    """One optimizer's share of a step.

    Attributes:
        name: of its loss in the metrics.
        module: whose parameters it updates.
        loss: of a batch, the mean over its samples.
        wrapped: what `loss` calls, if its gradients are averaged over processes.
        terms: added to the loss, once a step.
        resampler: of stochastic OPT.
        every: steps from one run of the phase to the next.
    """

    name: str
    module: nn.Module
    optimizer: Optimizer
    loss: Callable[[Batch], Tensor]
    wrapped: nn.Module
    terms: list[Callable[[], Tensor]] = field(default_factory=list)
    resampler: Resampler | None = None
    every: int = 1


class TrainingTask:
    """Base of all tasks.

    A subclass sets the attributes in its constructor and implements :meth:`build`, :meth:`check_batch` and, to measure
    more than the loss, :meth:`evaluate`.

    Attributes:
        modules: by their names in checkpoints.
        phases: what a step runs.
        main: the module that load_run returns.
        has_classes: whether it has labels and an accuracy.
        body, head: the network and loss head whose energies are logged.
        regularizer: the energy term of the config.
        step: steps done.
        channels_last: memory format of the inputs.
    """

    main: str
    has_classes = True
    modules: dict[str, nn.Module]
    phases: list[Phase]
    body: nn.Module
    head: nn.Module | None = None
    regularizer: EnergyRegularizer | None = None
    step = 0
    channels_last = False

    def __init__(self, config: Config, splits: Splits, world: World, start: Start | None = None) -> None:
        self.config, self.splits, self.world = config, splits, world

    @classmethod
    def build(cls, config: Config, spec: DataSpec) -> nn.Module:
        """Build the main module, not rotated; ValueError if the config does not fit the data."""
        raise NotImplementedError

    @classmethod
    def build_all(cls, config: Config, spec: DataSpec) -> dict[str, nn.Module]:
        """Build all modules, not rotated, by their names in checkpoints: by default the main module only."""
        return {cls.main: cls.build(config, spec)}

    @classmethod
    def input_spec(cls, module: nn.Module, spec: DataSpec) -> DataSpec:
        """Return what the main module takes: by default the data."""
        return spec

    def check_batch(self, batch: Batch) -> None:
        """Run a batch through the modules in eval mode; raise if they do not fit the data."""
        raise NotImplementedError

    def prepare(self, module: nn.Module, body: nn.Module, head: nn.Module | None = None) -> None:
        """Rotate the neurons of a module, as the config says, and move it to the device."""
        neurons.prepare(body, head, self.config.rotation, self.config.seed)
        module.to(self.world.device)

    def add_energy(self, body: nn.Module, head: nn.Module | None = None) -> None:
        """Build the energy term of the config, if it has one; log the energies of these neurons."""
        self.body, self.head = body, head
        if self.config.energy is not None:
            self.regularizer = neurons.build_regularizer(body, head, self.config.energy, self.config.seed)

    def energies(self) -> dict[str, float]:
        """Return the current energy of every layer."""
        return neurons.energies(self.body, self.head, self.config.energy)

    def pair_energies(self) -> dict[str, float]:
        """Return the energy that OPT's figures show, of every hidden layer: the same for all configs."""
        return neurons.pair_energies(self.body, self.head, self.config.energy)

    def try_out(self) -> None:
        """Run two samples through the network before anything is written. ValueError if that fails."""
        for module in self.modules.values():
            module.eval()
        inputs, labels = first_two(self.splits)
        batch = Batch(inputs, labels, total=len(labels))
        wanted = self.config.channels_last
        self.channels_last = self._gains_by_channels_last() if wanted is None else wanted
        try:
            with torch.no_grad():
                try:
                    self.check_batch(self.to_device(batch))
                except RuntimeError:
                    if wanted is not None or not self.channels_last:
                        raise
                    self.channels_last = False  # such as a network that calls view
                    self.check_batch(self.to_device(batch))
        except Exception as error:
            names = f"model.name={self.config.model.name} does not fit data.name={self.config.data.name}"
            raise ValueError(f"{names}: {' '.join(str(error).split())}") from error
        for module in self.modules.values():
            module.train()

    def to_device(self, batch: Batch) -> Batch:
        """Move a batch to the device, in the memory format of this training."""
        batch = batch.to(self.world.device)
        return batch.in_channels_last() if self.channels_last else batch

    def _gains_by_channels_last(self) -> bool:
        """Return whether channels_last makes steps faster: a fixed rule, since results must not depend on a timing."""
        return False

    def step_metrics(self) -> dict[str, float]:
        """Return what else is logged of the last step, the same in all processes."""
        return {}

    def count_correct(self, batch: Batch) -> tuple[int, int]:
        """Return the correct predictions and the samples of the last training batch; (0, 0) without classes."""
        return 0, 0

    @torch.no_grad()
    def evaluate(self, split: str, interrupted: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Evaluate a split; None if it was interrupted. By default: the mean loss of the first phase."""
        total, count = 0.0, 0
        for batch in map(self.to_device, evaluation(self.splits, split, self.config.data, self.world)):
            if interrupted():
                return None
            total, count = total + float(self.phases[0].loss(batch)) * len(batch), count + len(batch)
        total, samples = self.world.all_sum(total, count)
        return {"loss": total / samples}

    def final_predictions(self, split: str, is_current: bool) -> Predictions | None:
        """Return the predictions of a split for the run folder; None without classes, or if processes share the split.

        Args:
            is_current: the last evaluation, if there was one, had the same weights.
        """
        return None

    def phase(
        self,
        name: str,
        module: nn.Module,
        loss: Callable[[Batch], Tensor],
        regularizer: EnergyRegularizer | None = None,
    ) -> Phase:
        """Build the phase of a module after :meth:`prepare`."""
        config = self.config
        optimizer = build_optimizer(module, config)
        wrapped = self.world.wrap_ddp(module)
        terms: list[Callable[[], Tensor]] = [] if regularizer is None else [regularizer]
        rotation, resampler = config.rotation, None
        if rotation is not None and rotation.method == "regularized":
            penalty = PENALTY if rotation.penalty is None else rotation.penalty
            terms.append(partial(rotation_penalty, module, penalty, squared=rotation.penalty_squared))
        if rotation is not None and (rotation.sample is not None or rotation.shuffle):
            resampler = Resampler(module, optimizer, EVERY if rotation.every is None else rotation.every)
        if rotation is not None and rotation.renormalize:
            optimizer.register_step_post_hook(partial(neurons.renormalize, module))
        for network in module.modules():
            if isinstance(network, NGPT):
                optimizer.register_step_post_hook(network.normalize_weights)
        return Phase(name, module, optimizer, loss, wrapped, terms, resampler)

    def compiled(self, module: nn.Module) -> Any:
        """Compile a module, if the config says so."""
        return torch.compile(module) if self.config.compile else module


# ------------------------------------------------------------------------------------------------- registry


@dataclass(frozen=True)
class RegisteredTask:
    """A task and the configs that it trains."""

    task: type[TrainingTask]
    when: Callable[[Config, DataSpec], bool]


TASKS: dict[str, RegisteredTask] = {}


def register_task(name: str, task: type[TrainingTask], when: Callable[[Config, DataSpec], bool]) -> None:
    """Register a task under a name: it trains the configs and data for which `when` returns True.

    Of several the one that was registered last is taken; classification trains whatever no other task does.

    Example:
        >>> register_task("mine", TrainingTask, when=lambda config, spec: config.model.name == "my_network")
        >>> TASKS.pop("mine").task
        <class 'hypersphere.train.tasks.TrainingTask'>
    """
    TASKS[name] = RegisteredTask(task, when)


def task_of(config: Config, spec: DataSpec) -> type[TrainingTask]:
    """Return the task that trains a config on data. ValueError if its network is not registered."""
    models.preset(config.model.name)
    return next(entry.task for entry in reversed(TASKS.values()) if entry.when(config, spec))


def make(config: Config, splits: Splits, world: World, start: Start | None = None) -> TrainingTask:
    """Build the task of a config."""
    return task_of(config, splits.spec)(config, splits, world, start)


class Classification(TrainingTask):
    """Classify samples; also text, where the label of every position is the next character."""

    main = "classifier"
    edges: Tensor | None = None  # of a graph
    collected: Predictions | None = None  # of the last evaluation

    def __init__(self, config: Config, splits: Splits, world: World, start: Start | None = None) -> None:
        super().__init__(config, splits, world, start)
        classes = splits.spec.classes
        if len(classes) < 2:
            raise ValueError(
                f"data.name={config.data.name}: a classifier needs at least two classes, got {len(classes)}"
                f"{f', {classes[0]!r}' if classes else ''}"
            )
        if config.loss.sparse and world.size > 1:
            raise ValueError(f"loss.sparse needs a single process, got {world.size}")
        self.model = self.build(config, splits.spec)
        if isinstance(start, nn.Module):
            initial_weights.start_from(self.model, start, str(config.init_from))
        elif start is not None:
            initial_weights.start_from_tensors(self.model, start, config, splits.spec)
        self.prepare(self.model, self.model.network, self.model.head)
        self.add_energy(self.model.network, self.model.head)
        self.modules = {"classifier": self.model}
        phase = self.phase("loss", self.model, self.loss, self.regularizer)
        self.phases = [phase]
        self.run = self.compiled(phase.wrapped)
        self.output: Tensor | None = None  # of the network, in the last step
        self.even = None if config.embedding is None else _build_evenness(config.embedding, config.seed)
        self.evenness: Tensor | None = None  # in the last step, without its weight
        openset.check_splits(self.model, splits, f"data.name={config.data.name}")

    @classmethod
    def build(cls, config: Config, spec: DataSpec) -> networks.Classifier:
        return networks.build_classifier(config, spec)

    def check_batch(self, batch: Batch) -> None:
        logits, classes = self.model(batch.inputs, edges=self.edges), len(self.splits.spec.classes)
        if not isinstance(logits, Tensor) or logits.dim() < 2 or logits.shape[-1] != classes:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"it must return a logit for each of {classes} classes, (B, {classes}), got {got}")

    def _gains_by_channels_last(self) -> bool:
        spec = self.splits.spec
        is_large = spec.kind == "images" and spec.shape[1] * spec.shape[2] >= LARGE
        has_convolutions = any(isinstance(module, nn.Conv2d) for module in self.model.modules())
        return self.world.device.type == "cpu" and is_large and has_convolutions

    def loss(self, batch: Batch) -> Tensor:
        self._count_annealing_once(batch)
        loss, output = self.run(batch.inputs, batch.labels, self.edges)
        self.output = output.detach()
        settings = self.config.embedding
        return loss if settings is None else loss + settings.weight * self._evenness_term(batch, output)

    def _evenness_term(self, batch: Batch, output: Tensor) -> Tensor:
        """Return 0 with the gradient of the evenness of the batch of all processes, so that the loss stays the loss."""
        rows, labels = networks.labelled_rows(batch.inputs, batch.labels, output, self.edges)
        if batch.total < 2:
            return rows.new_zeros(())
        even: Any = self.even
        head: Any = self.model.head
        even.draws = self.step  # so that no state of it needs a checkpoint
        value: Tensor = even(rows, labels, head.weight) if even.measure == "hug" else even(rows)
        self.evenness = value.detach()
        # batch.share is that of this process's samples; the term is of all samples of the batch
        return (value - self.evenness) * (batch.total / (len(batch) * self.world.size))

    def step_metrics(self) -> dict[str, float]:
        return {} if self.evenness is None else {"evenness": float(self.evenness)}

    def _count_annealing_once(self, batch: Batch) -> None:
        """Keep the head's annealing at one count per step, however many batches a step has."""
        head, step = self.model.head, getattr(self.model.head, "step", None)
        if batch.number and head is not None and isinstance(step, Tensor):
            head.step = step - 1

    @torch.no_grad()
    def count_correct(self, batch: Batch) -> tuple[int, int]:
        assert self.output is not None
        _, hits = predictions(self.model, self.output, batch)
        return int(hits.sum()), len(hits)

    def evaluate(self, split: str, interrupted: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        if self.splits.is_open(split):
            return openset.evaluate(self.model, self.splits, split, self.config, self.to_device, interrupted)
        batches = map(self.to_device, evaluation(self.splits, split, self.config.data, self.world))
        self.collected = Predictions(self.splits.spec) if self._collects else None
        classes = len(self.splits.spec.classes)
        totals = evaluate(self.model, batches, classes, self.edges, interrupted, self.collected)
        if totals is None:
            return None
        sums = (totals.loss, int(totals.correct.sum()), int(totals.samples.sum()), totals.top5 or 0)
        loss, correct, count, top5 = self.world.all_sum(*sums)
        top = {} if totals.top5 is None else {"top5": top5 / count}
        return {"loss": loss / count, "accuracy": correct / count, **top}

    @property
    def _collects(self) -> bool:
        return self.config.out is not None and self.world.size == 1

    def final_predictions(self, split: str, is_current: bool) -> Predictions | None:
        if not self._collects or self.splits.is_open(split):
            return None
        if self.collected is None or not is_current:
            self.evaluate(split)
        return self.collected


def _build_evenness(settings: Embedding, seed: int) -> EmbeddingRegularizer:
    options = {key: getattr(settings, key) for key in catalog.EVENNESS[settings.measure]}
    return EmbeddingRegularizer(settings.measure, seed=seed, **options)


class NodeClassification(Classification):
    """Classify the nodes of one graph, which is the only batch."""

    def __init__(self, config: Config, splits: Splits, world: World, start: Start | None = None) -> None:
        if world.size > 1:
            raise ValueError(f"data.name={config.data.name} is one batch: it takes one process, got {world.size}")
        super().__init__(config, splits, world, start)
        self.edges = splits.train.adjacency.to(world.device)


register_task("classification", Classification, when=lambda config, spec: True)
register_task("node classification", NodeClassification, when=lambda config, spec: spec.kind == "graph")
