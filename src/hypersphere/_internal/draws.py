"""Random draws that are the same in every process: seeds are hashed from names, without Python's salt."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor

from . import checks

F = TypeVar("F", bound=Callable[..., Any])


def stable_hash(*parts: object) -> int:
    """Hash the parts, in this order, to 64 bits."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def unwrapped_name(name: str) -> str:
    """Strip the prefixes of torch.compile and DistributedDataParallel, so that draws do not depend on wrapping."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def not_traced(function: F) -> F:
    """Keep torch.compile from tracing a function.

    As torch.compiler.disable does, which imports the compiler: more than a second at every start.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


@not_traced
def generator(seed: int, name: str, draw: int) -> Generator:
    """Make a generator that depends only on these three, in every process."""
    return Generator().manual_seed(stable_hash(seed, draw, name) & (2**63 - 1))


def normal_numbers(key: int, step: Tensor, count: int) -> Tensor:
    """Draw float64 standard normal numbers (count,) that depend only on key and step, on the step's device.

    Args:
        key: a :func:`stable_hash`.
        step: a 0-d int64 tensor. Its value is not read, so a forward pass may draw without waiting, and be compiled.
    """
    index = torch.arange(2 * count, device=step.device)
    bits = _mix(_mix(step * 0x9E3779B97F4A7C1 + (key - 2**63)) + index * 0x9E3779B97F4A7C1)
    uniform = ((bits >> 11) & (2**53 - 1)).double() * 2.0**-53
    radius, turn = uniform.view(2, count)
    return (-2 * (-radius).log1p()).sqrt() * (2 * math.pi * turn).cos()  # Box-Muller


def _mix(bits: Tensor) -> Tensor:
    """Scramble the bits of int64 numbers (the last steps of splitmix64)."""
    bits = (bits ^ ((bits >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    bits = (bits ^ ((bits >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    return bits ^ ((bits >> 31) & (2**33 - 1))


class CountedDraws:
    """What draws anew at each call, from a seed and the number of the draw: with the state to resume it."""

    seed: int
    draws: int

    def state_dict(self) -> dict[str, int]:
        """Return the state that makes a resumed training draw the same."""
        return {"draws": self.draws, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if set(state) != {"draws", "seed"}:
            raise ValueError(f"state must hold 'draws' and 'seed', got {', '.join(map(repr, state)) or 'nothing'}")
        self.draws, self.seed = checks.integer("draws", state["draws"], low=0), checks.integer("seed", state["seed"])
