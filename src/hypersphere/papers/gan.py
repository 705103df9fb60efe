"""The GAN of MHE, App. G: a task of its own, registered when this module is imported.

d(x) is the discriminator's output, x real and y generated images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import models
from .._internal.draws import generator
from ..neurons import select
from ..rotation.planning import estimate_seconds, make_plans
from ..rotation.rules import RotationOptions
from ..train.config import Config, Gan, Rotation
from ..train.distributed import World
from ..train.initial_weights import load_fitting
from ..train.networks import build_network, options_of_data
from ..train.splits import Batch, DataSpec, Splits, evaluation
from ..train.storage.layout import FINAL, weights
from ..train.storage.weights import read_tensors
from ..train.tasks import Start, TrainingTask, register_task
from . import gan_networks as gan_networks  # registers them

SLOW = 20.0  # seconds per step for rotations that are refused on a CPU

#: loss → f: the discriminator minimizes f(d(x)) + f(−d(y)), the generator f(d(y))
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "logistic": lambda output: F.softplus(-output),  # MHE, Eq. 20 with D = sigmoid(d), and −log D(y)
    "wasserstein": lambda output: -output,
}


def discriminator_accuracy(loss: str, real: Tensor, fake: Tensor) -> Tensor:
    """Return (B,) which images are classified correctly; for "wasserstein", which (real, fake) pairs are ranked so."""
    if loss == "wasserstein":
        return (real > fake).float()
    return ((real > 0).float() + (fake < 0).float()) / 2


def gradient_penalty(discriminator: nn.Module, real: Tensor, fake: Tensor, shares: Tensor) -> Tensor:
    """Return the mean of (‖∇d(z)‖ − 1)² at z = share·x + (1 − share)·y.

    Args:
        real, fake: (B, C, H, W).
        shares: (B,) from 0 to 1.
    """
    between = torch.lerp(fake, real, shares.view(-1, 1, 1, 1)).requires_grad_()
    (slopes,) = torch.autograd.grad(discriminator(between).float().sum(), between, create_graph=True)
    return (slopes.flatten(1).norm(dim=1) - 1).square().mean()


@torch.no_grad()
def clip_weights(module: nn.Module, limit: float) -> None:
    """Clip all matrices and filters to ± limit, in place; biases and norms stay."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.clamp_(-limit, limit)


def build_gan(config: Config, spec: DataSpec) -> tuple[nn.Module, nn.Module]:
    """Build a generator and the discriminator of the same paper; similarity and model.widths are the latter's."""
    model, gan = config.model, config.gan or Gan()
    known = models.preset(model.name).accepted()
    options = {"batch_norm": model.batch_norm, "init": model.init, "widths": gan.widths} | options_of_data(spec)
    try:
        generator = models.create(model.name, **{k: v for k, v in options.items() if k in known and v is not None})
    except (TypeError, ValueError) as error:
        raise ValueError(f"model.name={model.name}: {error}") from None
    critic = replace(model, name="discriminator" + model.name.removeprefix("generator"))
    norm = {} if gan.norm is None else {"norm": gan.norm}
    return generator, build_network(critic, spec, num_classes=1, **norm)


def check_cost(generator: nn.Module, discriminator: nn.Module, settings: Rotation | None) -> None:
    """Raise ValueError if the rotations of a GAN would take more than SLOW seconds of a step on a CPU."""
    if settings is None:
        return
    total, largest = 0.0, (0, "")
    # a step calls the generator twice and the discriminator twice
    for name, network in (("generator", generator), ("discriminator", discriminator)):
        hidden = {layer: neurons for layer, neurons in select(network).items() if not neurons.is_output}
        plans = make_plans(hidden, RotationOptions.of(settings), first=next(iter(hidden)))
        total += 2 * estimate_seconds(plans.values())
        largest = max(largest, *((plan.size, f"{layer} of the {name}") for layer, plan in plans.items()))
    if total > SLOW:
        raise ValueError(
            f"rotation: a step would take about {total:.0f} s on one core of this CPU, since {largest[1]} has "
            f"{largest[0]} dimensions: set rotation.block_size=64 or rotation.sample=0.25, or use a GPU"
        )


class AdversarialTask(TrainingTask):
    """Train a generator of images against a discriminator (MHE, App. G).

    The energy is the discriminator's. Noise is a function of seed and step, one draw for all processes.
    """

    main = "generator"
    has_classes = False

    def __init__(self, config: Config, splits: Splits, world: World, start: Start | None = None) -> None:
        super().__init__(config, splits, world, start)
        if splits.spec.kind != "images":
            raise ValueError(f"model.name={config.model.name} makes images, but data.name={config.data.name} has none")
        self.generator, self.discriminator = build_gan(config, splits.spec)
        if world.device.type == "cpu":
            check_cost(self.generator, self.discriminator, config.rotation)
        self.gan = config.gan or Gan()
        self.loss_of = LOSSES[self.gan.loss]
        if start is not None and not isinstance(start, nn.Module):
            raise ValueError(f"init_from must be a run folder for model.name={config.model.name}, got a file")
        if start is not None:
            load_fitting(self.generator, start.state_dict(), f"init_from={config.init_from}")
            if (file := Path(str(config.init_from), FINAL, weights("discriminator"))).is_file():
                load_fitting(self.discriminator, read_tensors(file), str(file))
        for module in (self.generator, self.discriminator):
            self.prepare(module, module)
        self.add_energy(self.discriminator)
        self.modules = {"generator": self.generator, "discriminator": self.discriminator}
        critic = self.phase("discriminator_loss", self.discriminator, self.discriminator_loss, self.regularizer)
        maker = self.phase("generator_loss", self.generator, self.generator_loss)
        maker.every = self.gan.discriminator_steps
        self.phases = [critic, maker]
        if (limit := self.gan.clip_weights) is not None:
            critic.optimizer.register_step_post_hook(lambda *_: clip_weights(self.discriminator, limit))
        self.discriminate, self.generate = self.compiled(critic.wrapped), self.compiled(maker.wrapped)
        self.fooled = self.compiled(self.discriminator)  # not averaged over processes: it is not updated by this loss

    @classmethod
    def build(cls, config: Config, spec: DataSpec) -> nn.Module:
        return build_gan(config, spec)[0]

    @classmethod
    def build_all(cls, config: Config, spec: DataSpec) -> dict[str, nn.Module]:
        return dict(zip(("generator", "discriminator"), build_gan(config, spec), strict=True))

    @classmethod
    def input_spec(cls, module: nn.Module, spec: DataSpec) -> DataSpec:
        return DataSpec("other", (int(module.latent),), "float32", [])  # type: ignore[arg-type]

    def check_batch(self, batch: Batch) -> None:
        fake = self.generator(self.noise("try", 0, batch))
        if fake.shape != batch.inputs.shape:
            raise ValueError(f"it generates {tuple(fake.shape[1:])}, the data have {tuple(batch.inputs.shape[1:])}")
        self.discriminator(fake)

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
        penalty = gradient_penalty(self.discriminator, batch.inputs, fake, shares)
        return loss + self.gan.gradient_penalty * penalty

    def generator_loss(self, batch: Batch) -> Tensor:
        fake = self.generate(self.noise("generator", self.step, batch))
        with _frozen(self.discriminator):
            return self.loss_of(self.fooled(fake).float()).mean()

    @torch.no_grad()
    def evaluate(self, split: str, interrupted: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        names = ("loss", "discriminator_loss", "generator_loss", "discriminator_accuracy")
        sums, count = [0.0] * len(names), 0
        for batch in evaluation(self.splits, split, self.config.data, self.world):
            if interrupted():
                return None
            batch = self.to_device(batch)
            real = self.discriminator(batch.inputs).float()
            false = self.discriminator(self.generator(self.noise(split, 0, batch))).float()
            critic = self.loss_of(real).sum() + self.loss_of(-false).sum()
            accuracy = discriminator_accuracy(self.gan.loss, real, false)
            values = torch.stack([critic, critic, self.loss_of(false).sum(), accuracy.sum()])
            sums, count = [a + b for a, b in zip(sums, values.tolist(), strict=True)], count + len(batch)
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


register_task("gan", AdversarialTask, when=lambda config, spec: config.model.is_generator)
