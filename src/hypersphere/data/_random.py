"""Random numbers by counter: the j-th number of sample i is a hash of (seed, epoch, what for, i, j).

No number depends on one drawn before it, so a sample gets the same ones in whatever batch, process or order it comes:

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


def key(seed: int, epoch: int, what: str) -> int:
    """64 bits that stand for all three."""
    return stable_hash(seed, epoch, what)


def words(key: int, indices: npt.ArrayLike) -> Words:
    """One word for each index, in its shape."""
    return _mix(np.uint64(key) + (np.asarray(indices).astype(np.uint64) + np.uint64(1)) * _GAMMA)


def order(seed: int, epoch: int, what: str, indices: npt.ArrayLike) -> Indices:
    """`indices`, sorted by their words: a random order in which the place of each depends on itself alone."""
    indices = np.asarray(indices, dtype=np.int64)
    return indices[np.argsort(words(key(seed, epoch, what), indices), kind="stable")]


def _mix(x: Words) -> Words:
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


class SampleGenerator:
    """Random numbers for the samples of a batch, a row each: what an augmentation gets.

    A sample's row depends on (seed, epoch, index of the sample) and on how many numbers were asked for before, not on
    the batch. So an augmentation that draws from nothing else is a pure function of those.

    Args:
        seed, epoch: >= 0.
        indices: of the samples in their data set, (B,).

    Example:
        >>> batch, alone = SampleGenerator(0, 0, [7, 8, 9]), SampleGenerator(0, 0, [8])
        >>> bool((batch.uniform(2)[1] == alone.uniform(2)[0]).all())
        True
        >>> batch.integers(0, 9).shape, batch.normal(1024, 3).shape
        (torch.Size([3]), torch.Size([3, 1024, 3]))
    """

    def __init__(self, seed: int, epoch: int, indices: Any) -> None:
        seed, epoch = checks.integer("seed", seed, low=0), checks.integer("epoch", epoch, low=0)
        self._states = words(key(seed, epoch, "augment"), indices)
        self._drawn = 0

    def __len__(self) -> int:
        return len(self._states)

    def words(self, *shape: int) -> Words:
        """64 random bits each, (B, *shape) uint64."""
        count = math.prod(shape)
        counters = np.arange(self._drawn + 1, self._drawn + count + 1, dtype=np.uint64) * _GAMMA
        self._drawn += count
        return _mix(self._states[:, None] + counters).reshape(len(self), *shape)

    def uniform(self, *shape: int) -> Tensor:
        """In [0, 1), (B, *shape) float32: multiples of 2⁻²⁴."""
        return torch.from_numpy((self.words(*shape) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """In [low, high), (B, *shape) int64; for up to 2³² values, which are equally likely to 1 part in 2³²/values."""
        values = checks.integer("high", high, low=low + 1) - low
        if values > 2**32:
            raise ValueError(f"high must be <= low + 2**32, got {low} and {high}")
        scaled = (self.words(*shape) >> np.uint64(32)) * np.uint64(values) >> np.uint64(32)
        return torch.from_numpy(scaled.astype(np.int64) + low)

    def normal(self, *shape: int) -> Tensor:
        """N(0, 1), (B, *shape) float32, by Box and Muller from the two halves of a word."""
        # numpy, not torch: MKL's log and cos may round by where a number lies in memory, which a batch decides
        bits = self.words(*shape)
        radius = np.sqrt(-2 * np.log(((bits >> np.uint64(32)) + np.uint64(1)) * 2.0**-32))
        return torch.from_numpy(
            (radius * np.cos((bits & np.uint64(2**32 - 1)) * (math.tau * 2.0**-32))).astype(np.float32)
        )
