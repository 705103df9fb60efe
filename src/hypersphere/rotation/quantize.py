"""Rotate vectors so that few bits a number keep their neighbours: iterative quantization, or a learned rotation.

A rotation keeps all inner products, and a quantizer acts on coordinates. So the rotation can be chosen such that the
quantized vectors are near to the rotated ones:

    min over orthogonal R of Σ_n ‖Q((x_n − μ)Rᵀ) − (x_n − μ)Rᵀ‖²

==========  ==========================================================================================================
method      R
==========  ==========================================================================================================
itq         alternates Q for fixed R with the R of the Procrustes problem for fixed Q (Gong et al. 2013), which never
            increases the sum
learned     begins at that R, then learns it by Cayley and Adam on the inner products of pairs, through the quantizer
random      a random orthogonal matrix
none        the identity
==========  ==========================================================================================================

Shapes: N vectors, d dimensions.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from .._internal import checks, draws, safe_files
from .._internal.linalg import nearest_orthogonal
from .._internal.overflow import scale_to_one
from .._internal.tensor_files import TensorFile
from .._internal.tensors import from_floats
from ..orthogonal import ORTHOGONALIZERS, gram_schmidt

BITS = (1, 4, 8)
METHODS = ("itq", "learned", "random", "none")
_SCHEMA = "hypersphere vector rotation 1"
_PAIRS = 512  # vectors of a batch of the learned rotation


@dataclass(frozen=True, repr=False)
class VectorRotation:
    """A rotation of vectors and the quantizer of their coordinates, from :func:`fit_rotation`.

    Attributes:
        matrix: R (d, d), orthogonal.
        mean: μ (d,), which is subtracted first.
        low, step: (d,) of the quantizer for 4 and 8 bits: coordinate c has the code round((c − low)/step).
        bits: of a coordinate.

    Example:
        >>> turn = fit_rotation(torch.randn(100, 16))
        >>> turn(torch.randn(3, 16)).shape, turn.codes(torch.randn(3, 16)).shape  # 16 bits are 2 bytes
        (torch.Size([3, 16]), torch.Size([3, 2]))
    """

    matrix: Tensor
    mean: Tensor
    low: Tensor
    step: Tensor
    bits: int

    def __call__(self, x: Any) -> Tensor:
        """Return (x − μ)Rᵀ, (N, d), of a tensor or an array."""
        rows = _check_vectors("x", x, len(self.mean))
        return (rows - self.mean) @ self.matrix.mT

    def codes(self, x: Any) -> Tensor:
        """Return the codes of vectors (N, d) as bytes: (N, ⌈d/8⌉) with 1 bit, (N, ⌈d/2⌉) with 4, (N, d) with 8."""
        numbers = _quantize(self(x), self.low, self.step, self.bits)
        per_byte = 8 // self.bits
        padded = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % per_byte)).unflatten(1, (-1, per_byte))
        shifts = torch.arange(per_byte, device=padded.device) * self.bits
        return (padded << shifts).sum(2).to(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the rotated vectors (N, d) that the codes stand for; with 1 bit ±1."""
        per_byte = 8 // self.bits
        width = -(-len(self.mean) // per_byte)
        if not isinstance(codes, Tensor) or codes.dtype is not torch.uint8 or codes.shape[1:] != (width,):
            got = f"{codes.dtype} {tuple(codes.shape)}" if isinstance(codes, Tensor) else type(codes).__name__
            raise ValueError(f"codes must be uint8 (N, {width}), got {got}")
        shifts = torch.arange(per_byte, device=codes.device) * self.bits
        numbers = (codes.unsqueeze(2) >> shifts & (2**self.bits - 1)).flatten(1)[:, : len(self.mean)]
        return _dequantize(numbers, self.low, self.step, self.bits)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .safetensors file."""
        tensors = {"matrix": self.matrix, "mean": self.mean, "low": self.low, "step": self.step}
        data = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
        safe_files.write_bytes(path, save(data, {"format": _SCHEMA, "bits": str(self.bits)}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> VectorRotation:
        """Read a file that :meth:`save` wrote."""
        file = TensorFile(path)
        if file.metadata.get("format") != _SCHEMA:
            raise ValueError(f"{file.path} is not a rotation of vectors (format {file.metadata.get('format')!r})")
        shapes = {name: info.shape for name, info in file.infos.items()}
        d = shapes.get("mean", (0,))[0]
        bits = file.metadata.get("bits", "")
        if shapes != {"matrix": (d, d), "mean": (d,), "low": (d,), "step": (d,)} or bits not in map(str, BITS):
            raise ValueError(f"{file.path} is not a rotation of vectors: shapes {shapes}, bits {bits!r}")
        return cls(**file.read_all(copy=True), bits=int(bits))

    def __repr__(self) -> str:
        return f"VectorRotation({len(self.mean)} dimensions, {self.bits} bit{'s' * (self.bits > 1)})"


def fit_rotation(
    x: Any, bits: int = 1, *, method: str = "itq", center: bool = True, iterations: int = 50, seed: int = 0
) -> VectorRotation:
    """Fit a rotation of vectors that makes them quantizable; see the module for the methods.

    On good embeddings the gain is modest (MiniLM sentences with 1 bit: recall@10 0.51 as they are, 0.56 by itq); where
    coordinates are very unequal it is large. :func:`hypersphere.inspect` of the vectors says which. "learned" was no
    better than "itq" on what was measured. Queries need no codes: ``turn(queries) @ turn.decode(codes).mT``.

    Args:
        x: (N, d), a tensor or an array; some tens of thousands are enough.
        bits: 1 (the sign), 4 or 8 (equal steps over the range of each coordinate).
        method: "itq", "learned", "random" or "none".
        center: subtract the mean. Inner products of centred vectors rank differently than those of the vectors
            themselves; for 1 bit it is nearly always better.
        iterations: rounds of itq; of "learned" also four times as many steps.
        seed: of the start and of the pairs.

    Example:
        >>> x = torch.randn(200, 8) * torch.tensor([9.0, 1, 1, 1, 1, 1, 1, 1])
        >>> turn = fit_rotation(x, seed=1)
        >>> torch.dist(turn.matrix @ turn.matrix.mT, torch.eye(8)) < 1e-5
        tensor(True)
    """
    rows = _check_vectors("x", x)
    checks.choice("bits", bits, BITS)
    checks.choice("method", method, METHODS)
    iterations = checks.integer("iterations", iterations, low=1)
    d = rows.shape[1]
    mean = rows.mean(0) if center else rows.new_zeros(d)
    centred = scale_to_one(rows - mean, (0, 1))  # which the rotation does not depend on
    matrix = torch.eye(d, dtype=rows.dtype, device=rows.device)
    if method != "none":
        normal = torch.randn(d, d, generator=draws.generator(checks.integer("seed", seed), "rotation", 0))
        matrix = gram_schmidt(normal.to(rows))
    if method in ("itq", "learned"):
        for _ in range(iterations):
            matrix = _procrustes_round(centred, matrix, bits)
    if method == "learned":
        matrix = _learn(centred, matrix, bits, 4 * iterations, seed)
    low, step = _fit_steps((rows - mean) @ matrix.mT, bits)
    return VectorRotation(matrix, mean, low, step, bits)


def truncate(x: Any, dimensions: int) -> Tensor:
    """Return the rotation onto fewer dimensions that keeps inner products best: M (d', d) for the vectors x Mᵀ.

    Its rows are the leading eigenvectors of XᵀX, the principal components without centring. They minimize

        Σ_ij (⟨x_i, x_j⟩ − ⟨M x_i, M x_j⟩)²

    over all linear maps, because the Gram matrix of the mapped vectors is the best one of rank d' (Eckart & Young
    1936). The best of fewer dimensions are the first rows, so the vectors x Mᵀ can be cut again at any length.

    Args:
        x: (N, d), a tensor or an array; some tens of thousands are enough. Rows of length one, for cosines.
        dimensions: d' <= d.

    Example:
        >>> x = torch.randn(100, 1) * torch.tensor([[3.0, 4.0]]) / 5
        >>> truncate(x, 1).abs()
        tensor([[0.6000, 0.8000]])
    """
    rows = scale_to_one(_check_vectors("x", x), (0, 1))
    if checks.integer("dimensions", dimensions, low=1) > rows.shape[1]:
        raise ValueError(f"dimensions must be <= {rows.shape[1]}, got {dimensions}")
    vectors = torch.linalg.eigh((rows.mT @ rows).double()).eigenvectors
    return vectors.flip(1)[:, :dimensions].mT.to(rows).contiguous()


def _procrustes_round(centred: Tensor, matrix: Tensor, bits: int) -> Tensor:
    rotated = centred @ matrix.mT
    low, step = _fit_steps(rotated, bits)
    quantized = _dequantize(_quantize(rotated, low, step, bits), low, step, bits)
    return nearest_orthogonal(quantized.mT @ centred)


def _learn(centred: Tensor, start: Tensor, bits: int, steps: int, seed: int) -> Tensor:
    """Turn `start` by Cayley so that inner products of quantized vectors are those of the vectors, up to a factor.

    The gradient passes the quantizer as if it were the identity, for 1 bit where the coordinate is not far from 0.
    """
    cayley = ORTHOGONALIZERS["cayley"]
    d = centred.shape[1]
    packed = torch.zeros(d * (d - 1) // 2, dtype=centred.dtype, device=centred.device, requires_grad=True)
    optimizer = torch.optim.Adam([packed], lr=1e-3)
    spread = centred.square().mean().sqrt().clamp_min(1e-30)
    for k in range(steps):
        generator = draws.generator(seed, "pairs", k)
        index = torch.randint(len(centred), (min(_PAIRS, len(centred)),), generator=generator)
        batch = centred[index.to(centred.device)]
        with torch.enable_grad():
            rotated = batch @ start.mT @ cayley.matrix(packed).mT
            low, step = _fit_steps(rotated.detach(), bits)
            value = _dequantize(_quantize(rotated.detach(), low, step, bits), low, step, bits)
            smooth = (rotated / spread).clamp(-2, 2) if bits == 1 else rotated
            quantized = smooth + (value - smooth).detach()
            wanted, got = batch @ batch.mT, quantized @ quantized.mT
            factor = ((wanted * got).sum() / got.square().sum().clamp_min(1e-30)).detach()
            loss = (wanted - factor * got).square().mean() / wanted.square().mean().clamp_min(1e-30)
            (packed.grad,) = torch.autograd.grad(loss, packed)
        optimizer.step()
    with torch.no_grad():
        return cayley.matrix(packed) @ start


def _fit_steps(rotated: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the smallest value and the step of each coordinate; unused with 1 bit."""
    low, high = rotated.amin(0), rotated.amax(0)
    return low, ((high - low) / (2**bits - 1)).clamp_min(torch.finfo(low.dtype).tiny)


def _quantize(rotated: Tensor, low: Tensor, step: Tensor, bits: int) -> Tensor:
    """Return the code of each coordinate, int64 in [0, 2^bits)."""
    if bits == 1:
        return (rotated > 0).long()
    return ((rotated - low) / step).round().clamp(0, 2**bits - 1).long()


def _dequantize(codes: Tensor, low: Tensor, step: Tensor, bits: int) -> Tensor:
    return 2 * codes.to(low.dtype) - 1 if bits == 1 else low + codes * step


def _check_vectors(name: str, x: Any, d: int | None = None) -> Tensor:
    """Return vectors (N, d) in at least float32; raise if they are none or not finite."""
    if isinstance(x, np.ndarray):
        x = from_floats(x) if np.issubdtype(x.dtype, np.floating) else torch.from_numpy(x)
    checks.floating(name, x)
    if x.dim() != 2 or not x.numel() or (d is not None and x.shape[1] != d):
        raise ValueError(f"{name} must be (N, {'d' if d is None else d}) and not empty, got {tuple(x.shape)}")
    rows: Tensor = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    if not bool(rows.isfinite().all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity in {int((~rows.isfinite()).any(1).sum())} rows")
    return rows
