"""Recurrent layers and their cells, with quantised weights, inputs and hidden states.

The hidden state passes the format of the input before each step, because it is an operand of the
same products. The cell state of an LSTM stays in floating point. Without a format of the input, the
fused kernel of torch runs on the quantised weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.errors import ConfigError
from chop.ir.ops.by_name import layer
from chop.ir.ops.compute import Parameters, computes
from chop.ir.ops.integer_kernels import undefined
from chop.ir.ops.row import MODULE, Op, Shapes

States = tuple[Tensor, ...]
"""Hidden state, and the cell state of an LSTM."""
Step = Callable[[Tensor, Tensor, States], States]
"""Next states from the products with the input and the hidden state, and the states."""


def _recurrent_macs(s: Shapes) -> int:
    steps = math.prod(s.inputs[0][:-1])
    return steps * sum(math.prod(p) for n, p in s.parameters.items() if n.startswith("weight"))


def _lstm_step(of_input: Tensor, of_state: Tensor, states: States) -> States:
    i, f, g, o = (of_input + of_state).chunk(4, -1)
    cell = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def _gru_step(of_input: Tensor, of_state: Tensor, states: States) -> States:
    (reset, update, new), (r, z, n) = of_input.chunk(3, -1), of_state.chunk(3, -1)
    gate = torch.sigmoid(update + z)
    candidate = torch.tanh(new + torch.sigmoid(reset + r) * n)
    return ((1 - gate) * candidate + gate * states[0],)


def _tanh_step(of_input: Tensor, of_state: Tensor, states: States) -> States:
    return (torch.tanh(of_input + of_state),)


def _relu_step(of_input: Tensor, of_state: Tensor, states: States) -> States:
    return (torch.relu(of_input + of_state),)


def _step_of(m: Any) -> Step:
    """Return the arithmetic of one step of a layer or cell."""
    kind = m.float_class.__name__.removesuffix("Cell")
    if kind == "RNN":
        return _relu_step if m.nonlinearity == "relu" else _tanh_step
    return {"LSTM": _lstm_step, "GRU": _gru_step}[kind]


def _layer_names(m: Any) -> tuple[str, ...]:
    return tuple(m._flat_weights_names)


def _cell_names(m: Any) -> tuple[str, ...]:
    return ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _states_of(hx: Any) -> States:
    return tuple(hx) if isinstance(hx, tuple | list) else (hx,)


def _layer_kernel(m: Any, p: Parameters, input: Any, hx: Any = None) -> Any:
    """Run a recurrent layer; as `nn.LSTM.forward`, without packed sequences."""
    if not isinstance(input, Tensor):
        raise ConfigError(
            f"{type(m).__name__}: a packed sequence. Allowed: tensors, such as padded sequences."
        )
    is_batched = input.dim() == 3
    x = input if is_batched else input.unsqueeze(1)
    x = x.transpose(0, 1) if m.batch_first and is_batched else x
    states = _first_states(m, x, hx, is_batched)
    if m.quantizers["data_in"].is_bypass:
        output, states = _fused(m, p, x, states)
    else:
        output, states = _stepwise(m, dict(zip(_layer_names(m), p, strict=True)), x, states)
    output = output.transpose(0, 1) if m.batch_first and is_batched else output
    if not is_batched:
        output, states = output.squeeze(1), tuple(s.squeeze(1) for s in states)
    return output, states if m.mode == "LSTM" else states[0]


def _first_states(m: Any, x: Tensor, hx: Any, is_batched: bool) -> States:
    """Return the given states, or zeros, of all layers and directions."""
    if hx is not None:
        states = _states_of(hx)
        return states if is_batched else tuple(s.unsqueeze(1) for s in states)
    count = m.num_layers * (2 if m.bidirectional else 1)
    sizes = (m.proj_size or m.hidden_size, m.hidden_size)[: 2 if m.mode == "LSTM" else 1]
    return tuple(x.new_zeros(count, x.shape[1], size) for size in sizes)


def _fused(m: Any, p: Parameters, x: Tensor, states: States) -> tuple[Tensor, States]:
    """Run the kernel of torch."""
    kernel = getattr(torch._VF, m.mode.lower())
    first: Any = states if m.mode == "LSTM" else states[0]
    settings = (m.bias, m.num_layers, m.dropout, m.training, m.bidirectional, False)
    output, *last = kernel(x, first, list(p), *settings)
    return output, tuple(last)


def _stepwise(
    m: Any, own: Mapping[str, Tensor], x: Tensor, states: States
) -> tuple[Tensor, States]:
    """Run all layers and directions step by step."""
    step, rounded = _step_of(m), m.quantizers["data_in"]
    last: list[States] = []
    for number in range(m.num_layers):
        outputs = []
        for direction, end in enumerate(("", "_reverse")[: 2 if m.bidirectional else 1]):
            place = number * (2 if m.bidirectional else 1) + direction
            names = (f"{kind}_l{number}{end}" for kind in (*_cell_names(m), "weight_hr"))
            weights = [own.get(name) for name in names]
            rows = torch.flip(x, [0]) if direction else x
            first = tuple(s[place] for s in states)
            hidden, final = _one_direction(step, rounded, weights, rows, first)
            outputs.append(torch.flip(hidden, [0]) if direction else hidden)
            last.append(final)
        x = torch.cat(outputs, -1)
        if number < m.num_layers - 1:
            x = F.dropout(rounded(x), m.dropout, m.training)
    return x, tuple(torch.stack(each) for each in zip(*last, strict=True))


def _one_direction(
    step: Step, rounded: Any, weights: list[Any], x: Tensor, states: States
) -> tuple[Tensor, States]:
    """Run one layer over time; return the hidden states, and the last states."""
    of_input, of_state, input_bias, state_bias, projection = weights
    products = F.linear(x, of_input, input_bias)
    hidden = []
    for product in products.unbind(0):
        states = step(product, F.linear(rounded(states[0]), of_state, state_bias), states)
        if projection is not None:
            states = (F.linear(rounded(states[0]), projection), *states[1:])
        hidden.append(states[0])
    return torch.stack(hidden), states


def _cell_kernel(m: Any, p: Parameters, input: Tensor, hx: Any = None) -> Any:
    """Run one step of a cell."""
    of_input, of_state, input_bias, state_bias = p
    count = 2 if _step_of(m) is _lstm_step else 1
    zeros = input.new_zeros(*input.shape[:-1], m.hidden_size)
    states = (zeros,) * count if hx is None else _states_of(hx)
    products = F.linear(input, of_input, input_bias)
    hidden = m.quantizers["data_in"](states[0])
    states = _step_of(m)(products, F.linear(hidden, of_state, state_bias), states)
    return states if count == 2 else states[0]


def _row(name: str, module: str, *, is_cell: bool) -> Op:
    kernel = _cell_kernel if is_cell else _layer_kernel
    return layer(
        name,
        module,
        type=MODULE,
        macs=_recurrent_macs,
        is_random=not is_cell,
        compute=computes(
            "input* hx",
            None,
            kernel,
            parameters="weight bias",
            own_names=_cell_names if is_cell else _layer_names,
            integer=undefined,
        ),
    )


ROWS = (
    *(_row(name.lower(), name, is_cell=False) for name in ("LSTM", "GRU", "RNN")),
    *(_row(f"{name.lower()}_cell", f"{name}Cell", is_cell=True) for name in ("LSTM", "GRU", "RNN")),
)
