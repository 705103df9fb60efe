"""Counter-based random numbers: the j-th number of sample i is a hash of (seed, epoch, purpose, i, j).

No number depends on earlier draws, so a sample gets the same numbers in every batch, process and order:

    key  = the first 8 bytes of BLAKE2b("seed/epoch/what")
    word = mix(mix(key + (i + 1)·γ) + (j + 1)·γ)  mod 2⁶⁴,     γ = 0x9E3779B97F4A7C15

mix is the finalizer of SplitMix64 (Steele, Lea, Flood, 2014): three xor-shifts and two multiplications. It is integer
arithmetic, the same on every machine.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .._internal import checks
from .._internal.draws import stable_hash

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def random_bits(key: int, indices: npt.ArrayLike) -> Words:
    """Return one random word for each index, in the shape of `indices`."""
    return _mix(np.uint64(key) + (np.asarray(indices).astype(np.uint64) + np.uint64(1)) * _GAMMA)


def shuffle(seed: int, epoch: int, what: str, indices: npt.ArrayLike) -> Indices:
    """Shuffle `indices` by sorting them by their words."""
    indices = np.asarray(indices, dtype=np.int64)
    return indices[np.argsort(random_bits(stable_hash(seed, epoch, what), indices), kind="stable")]


def _mix(x: Words) -> Words:
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


class SampleGenerator:
    """Random numbers for an augmentation, one row per sample of a batch.

    The row of a sample depends on (seed, epoch, index of the sample) and on how many numbers were drawn before, not on
    the batch. An augmentation that only draws from it is a pure function of those.

    Args:
        seed, epoch: >= 0.
        indices: of the samples in their dataset, (B,).
    """

    def __init__(self, seed: int, epoch: int, indices: Any) -> None:
        seed, epoch = checks.integer("seed", seed, low=0), checks.integer("epoch", epoch, low=0)
        self._states = random_bits(stable_hash(seed, epoch, "augment"), indices)
        self._drawn = 0

    def __len__(self) -> int:
        return len(self._states)

    def words(self, *shape: int) -> Words:
        """Draw 64 random bits each, (B, *shape) uint64."""
        count = math.prod(shape)
        counters = np.arange(self._drawn + 1, self._drawn + count + 1, dtype=np.uint64) * _GAMMA
        self._drawn += count
        return _mix(self._states[:, None] + counters).reshape(len(self), *shape)

    def uniform(self, *shape: int) -> Tensor:
        """Draw from [0, 1), (B, *shape) float32: multiples of 2⁻²⁴."""
        return torch.from_numpy((self.words(*shape) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Draw from [low, high), (B, *shape) int64; up to 2³² values, uniform to 1 part in 2³²/values."""
        values = checks.integer("high", high, low=low + 1) - low
        if values > 2**32:
            raise ValueError(f"high must be <= low + 2**32, got {low} and {high}")
        scaled = (self.words(*shape) >> np.uint64(32)) * np.uint64(values) >> np.uint64(32)
        return torch.from_numpy(scaled.astype(np.int64) + low)

    def normal(self, *shape: int) -> Tensor:
        """Draw from N(0, 1), (B, *shape) float32, by Box and Muller from the two halves of a word."""
        # numpy, not torch: MKL's log and cos may round differently by memory alignment, that is, by batch
        bits = self.words(*shape)
        radius = np.sqrt(-2 * np.log(((bits >> np.uint64(32)) + np.uint64(1)) * 2.0**-32))
        return torch.from_numpy(
            (radius * np.cos((bits & np.uint64(2**32 - 1)) * (math.tau * 2.0**-32))).astype(np.float32)
        )
