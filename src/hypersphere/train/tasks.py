"""The training tasks: classify samples, classify the nodes of a graph, or train a GAN.

A task has modules, which a checkpoint holds, and phases: a step takes each in turn. A classifier has one phase, a GAN
two, of which the generator's may be due in every k-th step only, a graph one whose only batch is the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._internal.draws import generator
from ..data import Graph
from ..energy import EnergyRegularizer
from ..rotation import Resampler, rotation_penalty
from . import adversarial, building, openset
from .config import Config, Gan
from .distributed import World
from .evaluation import Predictions, evaluate, predictions
from .splits import Batch, Splits, evaluation, first_two
from .storage.layout import FINAL, weights
from .storage.weights import read_tensors

LARGE = 16 * 16  # pixels; from this size channels_last is the default on a CPU
INNER, PENALTY = 750, 0.1  # defaults: steps between draws, weight of the penalty

Start = nn.Module | dict[str, Tensor]  # of init_from: another run's model, or the tensors of a file


@dataclass
class Phase:
    """One optimizer's part of a step.

    Attributes:
        name: of its loss in the metrics.
        module: whose parameters it updates.
        loss: of a batch, the mean over its samples.
        wrapped: what `loss` calls, if its gradients are averaged over processes.
        terms: what is added to the loss, once a step.
        resampler: of stochastic OPT.
        every: it takes part in every so many steps.
    """

    name: str
    module: nn.Module
    optimizer: Optimizer
    loss: Callable[[Batch], Tensor]
    wrapped: nn.Module
    terms: list[Callable[[], Tensor]] = field(default_factory=list)
    resampler: Resampler | None = None
    every: int = 1


class Task:
    """Base of all tasks; `modules` by their names in checkpoints."""

    modules: dict[str, nn.Module]
    phases: list[Phase]
    regularizer: EnergyRegularizer | None = None  # the energy term of the config
    main: str  # the module that load_run returns
    step = 0  # steps done
    channels_last = False  # memory format of the inputs

    def __init__(self, config: Config, splits: Splits, world: World) -> None:
        self.config, self.splits, self.world = config, splits, world

    def energies(self) -> dict[str, float]:
        """Return the current energy of every layer."""
        raise NotImplementedError

    def pair_energies(self) -> dict[str, float]:
        """Return the energy that OPT's figures show, of every hidden layer: the same for all configs."""
        raise NotImplementedError

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
                    self._try_out(self.to_device(batch))
                except RuntimeError:
                    if wanted is not None or not self.channels_last:
                        raise
                    self.channels_last = False  # such as a network that calls view
                    self._try_out(self.to_device(batch))
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

    def _try_out(self, batch: Batch) -> None:
        raise NotImplementedError

    def count_correct(self, batch: Batch) -> tuple[int, int]:
        """Return the correct predictions and the samples of the last training batch; (0, 0) without classes."""
        return 0, 0

    def evaluate(self, split: str, interrupted: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Evaluate a split; None if it was interrupted."""
        raise NotImplementedError

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
        """Build the phase of a module that is on its device and rotated."""
        config = self.config
        optimizer = building.build_optimizer(module, config)
        wrapped = self.world.wrap_ddp(module)
        terms: list[Callable[[], Tensor]] = [] if regularizer is None else [regularizer]
        rotation, resampler = config.rotation, None
        if rotation is not None and rotation.method == "regularized":
            penalty = PENALTY if rotation.penalty is None else rotation.penalty
            terms.append(partial(rotation_penalty, module, penalty, squared=rotation.penalty_squared))
        if rotation is not None and rotation.sample is not None:
            resampler = Resampler(module, optimizer, INNER if rotation.inner is None else rotation.inner)
        if rotation is not None and rotation.renormalize:
            optimizer.register_step_post_hook(partial(building.renormalize, module))
        return Phase(name, module, optimizer, loss, wrapped, terms, resampler)

    def compiled(self, module: nn.Module) -> Any:
        return torch.compile(module) if self.config.compile else module


class Classification(Task):
    """Classify samples; also text, where the label of every position is the next character."""

    main = "classifier"
    edges: Tensor | None = None  # of a graph
    collected: Predictions | None = None  # of the last evaluation

    def __init__(self, config: Config, splits: Splits, world: World, start: Start | None = None) -> None:
        super().__init__(config, splits, world)
        classes = splits.spec.classes
        if len(classes) < 2:
            raise ValueError(
                f"data.name={config.data.name}: a classifier needs at least two classes, got {len(classes)}"
                f"{f', {classes[0]!r}' if classes else ''}"
            )
        self.model = building.build_classifier(config, splits.spec)
        if isinstance(start, nn.Module):
            building.start_from(self.model, start, str(config.init_from))
        elif start is not None:
            building.start_from_tensors(self.model, start, config, splits.spec)
        building.prepare(self.model.network, self.model.head, config.rotation, config.seed)
        self.model.to(world.device)
        if config.energy is not None:
            self.regularizer = building.build_regularizer(
                self.model.network, self.model.head, config.energy, config.seed
            )
        self.modules = {"classifier": self.model}
        phase = self.phase("loss", self.model, self.loss, self.regularizer)
        self.phases = [phase]
        self.run = self.compiled(phase.wrapped)
        self.given: Tensor | None = None  # the last output of the network
        openset.check_splits(self.model, splits, f"data.name={config.data.name}")

    def energies(self) -> dict[str, float]:
        return building.energies(self.model.network, self.model.head, self.config.energy)

    def pair_energies(self) -> dict[str, float]:
        return building.pair_energies(self.model.network, self.model.head, self.config.energy)

    def _try_out(self, batch: Batch) -> None:
        self._check_logits(self.model(batch.inputs, edges=self.edges))

    def _gains_by_channels_last(self) -> bool:
        spec = self.splits.spec
        is_large = spec.kind == "images" and spec.shape[1] * spec.shape[2] >= LARGE
        has_convolutions = any(isinstance(module, nn.Conv2d) for module in self.model.modules())
        return self.world.device.type == "cpu" and is_large and has_convolutions

    def _check_logits(self, logits: Any) -> None:
        classes = len(self.splits.spec.classes)
        if not isinstance(logits, Tensor) or logits.dim() < 2 or logits.shape[-1] != classes:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"it must return a logit for each of {classes} classes, (B, {classes}), got {got}")

    def loss(self, batch: Batch) -> Tensor:
        self._begin(batch)
        loss, given = self.run(batch.inputs, batch.labels, self.edges)
        self.given = given.detach()
        return loss

    def _begin(self, batch: Batch) -> None:
        """Keep the head's annealing at one count per step, however many batches a step has."""
        head, step = self.model.head, getattr(self.model.head, "step", None)
        if batch.number and head is not None and isinstance(step, Tensor):
            head.step = step - 1

    @torch.no_grad()
    def count_correct(self, batch: Batch) -> tuple[int, int]:
        assert self.given is not None
        _, hits = predictions(self.model, self.given, batch)
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


class NodeClassification(Classification):
    """Classify the nodes of one graph, which is the only batch."""

    def __init__(self, config: Config, splits: Splits, world: World, start: Start | None = None) -> None:
        if world.size > 1:
            raise ValueError(f"data.name={config.data.name} is one batch: it takes one process, got {world.size}")
        super().__init__(config, splits, world, start)
        self.edges = splits.train.adjacency.to(world.device)


class Adversarial(Task):
    """Train a generator of images against a discriminator (MHE, App. G).

    The energy is the discriminator's. Noise is a function of seed and step, one draw for all processes.
    """

    main = "generator"

    def __init__(self, config: Config, splits: Splits, world: World, start: Start | None = None) -> None:
        super().__init__(config, splits, world)
        if splits.spec.kind != "images":
            raise ValueError(f"model.name={config.model.name} makes images, but data.name={config.data.name} has none")
        self.generator, self.discriminator = building.build_gan(config, splits.spec)
        if world.device.type == "cpu":
            building.check_gan_cost(self.generator, self.discriminator, config.rotation)
        self.gan = config.gan or Gan()
        self.loss_of = adversarial.LOSSES[self.gan.loss]
        if start is not None and not isinstance(start, nn.Module):
            raise ValueError(f"init_from must be a run folder for model.name={config.model.name}, got a file")
        if start is not None:
            building.load_fitting(self.generator, start.state_dict(), f"init_from={config.init_from}")
            if (file := Path(str(config.init_from), FINAL, weights("discriminator"))).is_file():
                building.load_fitting(self.discriminator, read_tensors(file), str(file))
        for module in (self.generator, self.discriminator):
            building.prepare(module, None, config.rotation, config.seed)
            module.to(world.device)
        if config.energy is not None:
            self.regularizer = building.build_regularizer(self.discriminator, None, config.energy, config.seed)
        self.modules = {"generator": self.generator, "discriminator": self.discriminator}
        critic = self.phase("discriminator_loss", self.discriminator, self.discriminator_loss, self.regularizer)
        maker = self.phase("generator_loss", self.generator, self.generator_loss)
        maker.every = self.gan.discriminator_steps
        self.phases = [critic, maker]
        if (limit := self.gan.clip_weights) is not None:
            critic.optimizer.register_step_post_hook(lambda *_: adversarial.clip_weights(self.discriminator, limit))
        self.discriminate, self.generate = self.compiled(critic.wrapped), self.compiled(maker.wrapped)
        self.fooled = self.compiled(self.discriminator)  # not averaged over processes: it is not updated by this loss

    def energies(self) -> dict[str, float]:
        return building.energies(self.discriminator, None, self.config.energy)

    def pair_energies(self) -> dict[str, float]:
        return building.pair_energies(self.discriminator, None, self.config.energy)

    def _try_out(self, batch: Batch) -> None:
        made = self.generator(self.noise("try", 0, batch))
        if made.shape != batch.inputs.shape:
            raise ValueError(f"it generates {tuple(made.shape[1:])}, the data have {tuple(batch.inputs.shape[1:])}")
        self.discriminator(made)

    def noise(self, name: str, number: int, batch: Batch) -> Tensor:
        """Draw noise for the batch of all processes and return this process's part."""
        latent: int = self.generator.latent  # type: ignore[assignment]
        return self._own(torch.randn(batch.total, latent, generator=self._draw(name, number, batch)), batch)

    def _draw(self, name: str, number: int, batch: Batch) -> torch.Generator:
        return generator(self.config.seed, f"{name} {batch.number}", number)

    def _own(self, whole: Tensor, batch: Batch) -> Tensor:
        return whole[batch.offset : batch.offset + len(batch)].to(self.world.device)

    def discriminator_loss(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            fake = self.generator(self.noise("discriminator", self.step, batch))
            fake = fake.to(batch.inputs.dtype)
        real, false = self.discriminate(torch.cat([batch.inputs, fake])).float().chunk(2)
        loss = self.loss_of(real).mean() + self.loss_of(-false).mean()
        if not self.gan.gradient_penalty:
            return loss
        shares = self._own(torch.rand(batch.total, generator=self._draw("between", self.step, batch)), batch)
        # the module itself: torch.compile has no second derivatives, and one call is averaged over processes
        penalty = adversarial.gradient_penalty(self.discriminator, batch.inputs, fake, shares)
        return loss + self.gan.gradient_penalty * penalty

    def generator_loss(self, batch: Batch) -> Tensor:
        fake = self.generate(self.noise("generator", self.step, batch))
        with _frozen(self.discriminator):
            return self.loss_of(self.fooled(fake).float()).mean()

    @torch.no_grad()
    def evaluate(self, split: str, interrupted: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        names = ("loss", "discriminator_loss", "generator_loss", "told_apart")
        sums, count = [0.0] * len(names), 0
        for batch in evaluation(self.splits, split, self.config.data, self.world):
            if interrupted():
                return None
            batch = self.to_device(batch)
            real = self.discriminator(batch.inputs).float()
            made = self.generator(self.noise(split, 0, batch))
            false = self.discriminator(made).float()
            critic = self.loss_of(real).sum() + self.loss_of(-false).sum()
            told_apart = adversarial.told_apart(self.gan.loss, real, false)
            figures = torch.stack([critic, critic, self.loss_of(false).sum(), told_apart.sum()])
            sums, count = [a + b for a, b in zip(sums, figures.tolist(), strict=True)], count + len(batch)
        *sums, samples = self.world.all_sum(*sums, count)
        return {name: value / samples for name, value in zip(names, sums, strict=True)}


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Give the module's parameters no gradient inside the `with`."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def make(config: Config, splits: Splits, world: World, start: Start | None = None) -> Task:
    """Build the task of a config."""
    if config.model.is_generator:
        return Adversarial(config, splits, world, start)
    if isinstance(splits.train, Graph):
        return NodeClassification(config, splits, world, start)
    return Classification(config, splits, world, start)
