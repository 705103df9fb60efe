"""Recurrent layers whose gates compare by angle instead of inner product (SphereNet, 2.4).

    gates = [scale·g(cos(W_ih, x)) + b_ih] + [scale·g(cos(W_hh, h)) + b_hh]

with torch's cells around them: the GRU's reset gate acts on the second bracket, and the LSTM's projection weight_hr
stays plain. Signatures, parameter names and shapes are those of torch.nn.RNN, GRU and LSTM; `scale` and
`similarity.log_k` exist once per module, with a value for every gate neuron.

Shapes: T steps, B batch, I input size, H hidden size, P size of the state that leaves a layer (H, or proj_size).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .._internal import checks
from .._internal.fx import Proxy, call_as_leaf
from .._internal.nearest import explain_keywords
from .._internal.precision import autocast_enabled
from .cosine import clamp_cosine, unit, unit_unchecked
from .sphere import SimilarityLike, SphereOptions, apply_similarity, check_dtypes

State = tuple[Tensor, ...]
#: (gates of the input, gates of the state, state) → state
Cell = Callable[[Tensor, Tensor, State], State]


def rnn_cell(nonlinearity: Callable[[Tensor], Tensor]) -> Cell:
    return lambda gates_x, gates_h, state: (nonlinearity(gates_x + gates_h),)


def gru_cell(gates_x: Tensor, gates_h: Tensor, state: State) -> State:
    """Step a GRU: gates r, z, n in torch's order; the reset gate r acts on the state's gates."""
    reset_x, update_x, new_x = gates_x.chunk(3, 1)
    reset_h, update_h, new_h = gates_h.chunk(3, 1)
    new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
    return (torch.lerp(new, state[0], torch.sigmoid(update_x + update_h)),)


def lstm_cell(gates_x: Tensor, gates_h: Tensor, state: State) -> State:
    """Step an LSTM: gates i, f, g, o in torch's order."""
    i, f, g, o = (gates_x + gates_h).chunk(4, 1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


#: torch's name of the mode → cell
CELLS: dict[str, Cell] = {
    "RNN_TANH": rnn_cell(torch.tanh),
    "RNN_RELU": rnn_cell(torch.relu),
    "GRU": gru_cell,
    "LSTM": lstm_cell,
}


class _SphereRecurrent(SphereOptions):
    """Mixin that runs layers and directions step by step; nn.RNNBase holds parameters and options.

    Not based on nn.RNN, nn.GRU and nn.LSTM, which torch.compile refuses by class.
    """

    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        """Run over (T, B, I), (B, T, I) with batch_first, (T, I), or a PackedSequence, as torch does."""
        if isinstance(input, Proxy):
            return call_as_leaf(self, input, hx)
        packed = isinstance(input, PackedSequence)
        data = input.data if packed else input
        check_dtypes(data, self.weight_ih_l0)
        if data.dim() not in ((2,) if packed else (2, 3)) or data.shape[-1] != self.input_size:
            raise ValueError(
                f"input must be (T, B, {self.input_size}), batch_first, unbatched or packed; got {tuple(data.shape)}"
            )
        unbatched = not packed and data.dim() == 2
        if packed:
            sizes = input.batch_sizes.tolist()
        else:
            x = data.unsqueeze(1) if unbatched else data.transpose(0, 1) if self.batch_first else data
            sizes = [x.shape[1]] * x.shape[0]
            data = x.reshape(-1, self.input_size)
        if not sizes:
            raise ValueError(f"input must have at least one step, got {tuple(data.shape)}")
        state = self._initial_state(hx, data, sizes[0], unbatched)
        if packed and hx is not None and input.sorted_indices is not None:
            state = tuple(part.index_select(1, input.sorted_indices) for part in state)

        output, final = self._run_layers(data, sizes, state)

        if packed:
            if input.unsorted_indices is not None:
                final = tuple(part.index_select(1, input.unsorted_indices) for part in final)
            result: Any = PackedSequence(output, input.batch_sizes, input.sorted_indices, input.unsorted_indices)
        else:
            result = output.view(len(sizes), sizes[0], output.shape[1])
            if unbatched:
                result, final = result.squeeze(1), tuple(part.squeeze(1) for part in final)
            elif self.batch_first:
                result = result.transpose(0, 1)
        return result, final if len(final) > 1 else final[0]

    def _run_layers(self: Any, data: Tensor, sizes: list[int], state: State) -> tuple[Tensor, State]:
        """Run all layers over packed data (ΣB_t, I): packed outputs, and final states (layers·directions, B, ·)."""
        directions = 2 if self.bidirectional else 1
        finals: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for reverse in range(directions):
                index = layer * directions + reverse
                out, final = self._run_direction(
                    data, sizes, tuple(part[index] for part in state), f"_l{layer}{'_reverse' * reverse}", bool(reverse)
                )
                outputs.append(out)
                finals.append(final)
            data = torch.cat(outputs, 1) if directions == 2 else outputs[0]
            if self.dropout and layer < self.num_layers - 1:
                data = F.dropout(data, self.dropout, self.training)
        return data, tuple(torch.stack(states) for states in zip(*finals, strict=True))

    def _run_direction(
        self: Any, data: Tensor, sizes: list[int], initial: State, suffix: str, reverse: bool
    ) -> tuple[Tensor, State]:
        """Run one layer in one direction. Sequences are sorted by length, so the running ones are the first rows."""
        bias_x = getattr(self, f"bias_ih{suffix}", None)
        bias_h = getattr(self, f"bias_hh{suffix}", None)
        project = getattr(self, f"weight_hr{suffix}", None)
        unit_h = unit(getattr(self, f"weight_hh{suffix}"))
        gates_x = self._gates(unit(data), unit(getattr(self, f"weight_ih{suffix}")), bias_x)  # all time steps at once
        steps = gates_x.split(sizes)
        cell = CELLS[self.mode]
        initial = tuple(part.to(gates_x.dtype) for part in initial)  # autocast's
        state = tuple(part[: sizes[-1] if reverse else sizes[0]] for part in initial)
        outputs, ended = [], []
        for t in reversed(range(len(sizes))) if reverse else range(len(sizes)):
            running = len(state[0])
            if sizes[t] > running:  # backwards, more sequences begin
                begin = (part[running : sizes[t]] for part in initial)
                state = tuple(torch.cat(pair) for pair in zip(state, begin, strict=True))
            elif sizes[t] < running:  # forwards, some sequences have ended
                ended.append(tuple(part[sizes[t] :] for part in state))
                state = tuple(part[: sizes[t]] for part in state)
            state = cell(steps[t], self._gates(unit_unchecked(state[0]), unit_h, bias_h), state)
            if project is not None:
                state = (F.linear(state[0], project), *state[1:])
            outputs.append(state[0])
        final = tuple(torch.cat(states) for states in zip(state, *reversed(ended), strict=True))
        return torch.cat(outputs[::-1] if reverse else outputs), final

    def _gates(self: Any, unit_x: Tensor, unit_weight: Tensor, bias: Tensor | None) -> Tensor:
        return apply_similarity(clamp_cosine(F.linear(unit_x, unit_weight)), bias, self.similarity, self.scale)

    def _initial_state(self: Any, hx: Any, data: Tensor, batch: int, unbatched: bool) -> State:
        """Return hx, or zeros if None, each (layers·directions, B, ·)."""
        layers = self.num_layers * (2 if self.bidirectional else 1)
        sizes = [self.proj_size or self.hidden_size] + [self.hidden_size] * (self.mode == "LSTM")
        if hx is None:
            return tuple(data.new_zeros(layers, batch, size) for size in sizes)
        states = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
        wanted = [(layers, size) if unbatched else (layers, batch, size) for size in sizes]
        for part in states:
            checks.floating("hx", part)
            if part.dtype is not data.dtype and not autocast_enabled(data):
                raise TypeError(f"hx must be {data.dtype} as the input is, got {part.dtype}")
        if [tuple(part.shape) for part in states] != wanted:
            raise ValueError(f"hx must have the shapes {wanted}, got {[tuple(part.shape) for part in states]}")
        return tuple(part.unsqueeze(1) if unbatched else part for part in states)


class SphereRNN(_SphereRecurrent, nn.RNNBase):
    """:class:`torch.nn.RNN` with angles instead of inner products; see :mod:`hypersphere.layers.recurrent`.

    Args:
        similarity: as in :class:`SphereLinear`; "learnable" has a k for every gate neuron, shared by all layers.
        scale: None (1), True (learned, one for every gate neuron), or a number.

    Example:
        >>> output, state = SphereRNN(8, 16, num_layers=2, bidirectional=True)(torch.randn(5, 3, 8))
        >>> output.shape, state.shape
        (torch.Size([5, 3, 32]), torch.Size([4, 3, 16]))
    """

    @explain_keywords
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        similarity: SimilarityLike = "cosine",
        scale: bool | float | None = None,
    ) -> None:
        checks.choice("nonlinearity", nonlinearity, ("tanh", "relu"))
        options = (num_layers, bias, batch_first, dropout, bidirectional)
        dtype = checks.floating_dtype(dtype)
        mode = f"RNN_{nonlinearity.upper()}"
        super().__init__(mode, input_size, hidden_size, *options, device=device, dtype=dtype)
        self.nonlinearity = nonlinearity
        self._set_sphere(similarity, scale, hidden_size)


class SphereGRU(_SphereRecurrent, nn.RNNBase):
    """:class:`torch.nn.GRU` with angles instead of inner products; see :class:`SphereRNN`.

    Example:
        >>> output, state = SphereGRU(8, 16, batch_first=True, similarity="sigmoid(0.3)", scale=4.0)(
        ...     torch.randn(3, 5, 8)
        ... )
        >>> output.shape, state.shape
        (torch.Size([3, 5, 16]), torch.Size([1, 3, 16]))
    """

    @explain_keywords
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        similarity: SimilarityLike = "cosine",
        scale: bool | float | None = None,
    ) -> None:
        options = (num_layers, bias, batch_first, dropout, bidirectional)
        dtype = checks.floating_dtype(dtype)
        super().__init__("GRU", input_size, hidden_size, *options, device=device, dtype=dtype)
        self._set_sphere(similarity, scale, 3 * hidden_size)


class SphereLSTM(_SphereRecurrent, nn.RNNBase):
    """:class:`torch.nn.LSTM` with angles instead of inner products; see :class:`SphereRNN`.

    Example:
        >>> output, (h, c) = SphereLSTM(8, 16, proj_size=4)(torch.randn(5, 3, 8))
        >>> output.shape, h.shape, c.shape
        (torch.Size([5, 3, 4]), torch.Size([1, 3, 4]), torch.Size([1, 3, 16]))
    """

    @explain_keywords
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        similarity: SimilarityLike = "cosine",
        scale: bool | float | None = None,
    ) -> None:
        options = (num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        dtype = checks.floating_dtype(dtype)
        super().__init__("LSTM", input_size, hidden_size, *options, device=device, dtype=dtype)
        self._set_sphere(similarity, scale, 4 * hidden_size)
