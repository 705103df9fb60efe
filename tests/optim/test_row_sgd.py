"""RowSGD: rows with a gradient as torch.optim.SGD steps them, the others untouched."""

import copy

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.optim import row_sgd

F64 = torch.float64


def sparse(rows, values, like):
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, like.shape)


def run(make, grads, is_sparse):
    parameter = nn.Parameter(torch.arange(12, dtype=F64).view(4, 3))
    optimizer = make([parameter])
    for rows, values in grads:
        grad = sparse(rows, values, parameter)
        parameter.grad = grad if is_sparse else grad.to_dense()
        optimizer.step()
    return parameter.detach(), optimizer.state[parameter]


def literal(grads, lr, momentum, decay):
    """The formula of the docstring, row by row."""
    w, v, last = torch.arange(12, dtype=F64).view(4, 3), torch.zeros(4, 3, dtype=F64), [0] * 4
    for step, (rows, values) in enumerate(grads, 1):
        for row, g in zip(rows, values, strict=True):
            n, last[row] = step - last[row], step
            w[row] *= (1 - lr * decay) ** (n - 1)
            v[row] = momentum**n * v[row] + g + decay * w[row]
            w[row] -= lr * v[row]
    return w


ROWS = ([0, 2], [2], [1, 2], [0, 1], [3], [0, 3])


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.9, 0.1)])
@pytest.mark.parametrize("piece", [3, 8, 2**17])
def test_the_formula(piece, momentum, decay, monkeypatch):
    monkeypatch.setattr(row_sgd, "_PIECE", piece)  # numbers: one, two or all rows at once
    grads = [(rows, torch.randn(len(rows), 3, dtype=F64)) for rows in ROWS]
    w, _ = run(lambda p: hs.optim.RowSGD(p, 0.1, momentum, decay), grads, True)
    torch.testing.assert_close(w, literal(grads, 0.1, momentum, decay), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("is_sparse", [True, False])
def test_with_a_gradient_in_every_row_it_is_sgd(is_sparse):
    grads = [(list(range(4)), torch.randn(4, 3, dtype=F64)) for _ in range(20)]
    ours, _ = run(lambda p: hs.optim.RowSGD(p, 0.1, 0.9, 0.01), grads, is_sparse)
    theirs, _ = run(lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01), grads, False)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)


def test_what_is_equal_to_dense_sgd_at_rows_with_pauses():
    grads = [(rows, torch.randn(len(rows), 3, dtype=F64)) for rows in ROWS]
    touched = ROWS[-1]
    ours, _ = run(lambda p: hs.optim.RowSGD(p, 0.1, 0.0, 0.2), grads, True)
    theirs, _ = run(lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.2), grads, False)
    torch.testing.assert_close(ours[touched], theirs[touched], rtol=1e-13, atol=1e-13)
    _, state = run(lambda p: hs.optim.RowSGD(p, 0.1, 0.9), grads, True)
    _, dense = run(lambda p: torch.optim.SGD(p, 0.1, 0.9), grads, False)
    buffer = "momentum_buffer"
    torch.testing.assert_close(state[buffer][touched], dense[buffer][touched], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_state_is_resumed_bit_by_bit(dtype):
    parameters = [nn.Parameter(torch.randn(5, 2, dtype=dtype))]
    optimizer = hs.optim.RowSGD(parameters, 0.1, weight_decay=0.01)
    for row in (1, 3, 1):
        parameters[0].grad = sparse([row], torch.ones(1, 2, dtype=dtype), parameters[0])
        optimizer.step()
    twin = [nn.Parameter(parameters[0].detach().clone())]
    other = hs.optim.RowSGD(twin, 1.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.state[twin[0]]["step"].dtype is torch.int64
    for p, o in ((parameters, optimizer), (twin, other)):
        p[0].grad = sparse([3, 4], torch.ones(2, 2, dtype=dtype), p[0])
        o.step()
    assert torch.equal(parameters[0], twin[0])


def test_bad_values():
    p = [nn.Parameter(torch.ones(2, 2))]
    with pytest.raises(ValueError, match="momentum must be >= 0 and < 1"):
        hs.optim.RowSGD(p, 0.1, momentum=1.0)
    with pytest.raises(ValueError, match="lr must be finite and >= 0"):
        hs.optim.RowSGD(p, -0.1)
