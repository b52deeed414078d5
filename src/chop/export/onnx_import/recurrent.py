"""LSTM, GRU and RNN of ONNX as the layers of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from chop.export.onnx_import.call import Call, operator

LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "LSTM": (nn.LSTM, (0, 2, 3, 1)),
    "GRU": (nn.GRU, (1, 0, 2)),
    "RNN": (nn.RNN, (0,)),
}
"""The layer, and where each gate of torch's stands in ONNX."""
ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _check(call: Call, directions: int) -> None:
    name = call.node.operator
    given = call.attribute("activations", ACTIVATIONS[name] * directions)
    if [g.lower() for g in given] != [a.lower() for a in ACTIVATIONS[name] * directions]:
        raise ValueError(f"activations {given[:6]}. Allowed: {ACTIVATIONS[name]}")
    if call.attribute("direction", "forward") == "reverse":
        raise ValueError("direction reverse. Allowed: forward, bidirectional")
    has_peepholes = name == "LSTM" and call.given(7)
    if has_peepholes or (call.given(4) and call.constant(4) is None):
        raise ValueError("lengths or peepholes")
    if call.attribute("clip") or call.attribute("layout", 0) or call.attribute("input_forget", 0):
        raise ValueError("clip, layout or input_forget")
    if name == "GRU" and not call.attribute("linear_before_reset", 0):
        raise ValueError("linear_before_reset = 0. Allowed: 1")
    if not all(call.scope.is_fixed(call.name(i)) for i in (1, 2, 3) if call.given(i)):
        raise ValueError("weights that depend on inputs")


def _turned(values: Tensor, gates: tuple[int, ...]) -> Tensor:
    """Rows in torch's order of gates."""
    parts = values.chunk(len(gates))
    return torch.cat([parts[g] for g in gates])


def _made(call: Call) -> nn.Module:
    cls, gates = LAYERS[call.node.operator]
    weight, recurrent, bias = call.tensor(1), call.tensor(2), call.optional(3)
    directions, hidden, has_bias = weight.shape[0], recurrent.shape[2], bias is not None
    layer: nn.Module = cls(weight.shape[2], hidden, bias=has_bias, bidirectional=directions == 2)
    state = {}
    for i, end in enumerate(("", "_reverse")[:directions]):
        state[f"weight_ih_l0{end}"] = _turned(weight[i], gates)
        state[f"weight_hh_l0{end}"] = _turned(recurrent[i], gates)
        if bias is not None:
            first, second = bias[i].chunk(2)
            state[f"bias_ih_l0{end}"] = _turned(first, gates)
            state[f"bias_hh_l0{end}"] = _turned(second, gates)
    layer.load_state_dict(state)
    return layer.eval()


@operator(*LAYERS)
def _recurrent(call: Call) -> Any:
    directions = 2 if call.attribute("direction") == "bidirectional" else 1
    _check(call, directions)
    x = call.tensor(0)
    key = ("recurrent", *call.node.inputs[1:4])
    layer = call.scope.layer(key, call.node.name, lambda: _made(call))
    states = [call.tensor(i) for i in (5, 6) if call.given(i)]
    is_lstm = call.node.operator == "LSTM"
    if is_lstm and len(states) == 2:
        made, last = layer(x, (states[0], states[1]))
    elif states and not is_lstm:
        made, last = layer(x, states[0])
    else:
        made, last = layer(x)
    length, batch = x.shape[0], x.shape[1]
    found = made.reshape(length, batch, directions, -1).permute(0, 2, 1, 3)
    results = (found, last[0], last[1]) if is_lstm else (found, last)
    return results[: len(call.node.outputs)]
