"""Formats for a transformer: fixed point by the data of each node, and products in MXINT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from chop import MaseGraph
from chop.ir.ops import node_module

WIDTHS = {"data_in": 8, "weight": 8, "bias": 12, "data_out": 8}
"""Bits by role, where nothing else is asked for."""
PROBABILITY = {"data_out_width": 8, "data_out_frac_width": 8, "data_out_is_signed": False}
"""Of softmax: from 0 to 255/256."""
IN_INTEGERS = ("softmax", "layer_norm", "gelu", "tanh")
"""Ops that compute as hardware does."""


class _Watched(fx.Interpreter):
    """Runs a graph and keeps what each node reads and gives."""

    def __init__(self, graph: MaseGraph) -> None:
        super().__init__(graph.model)
        self.seen: dict[str, tuple[list[Any], Any]] = {}

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        given = super().run_node(n)
        self.seen[n.name] = ([*args, *kwargs.values()], given)
        return given


def best_frac_width(tensors: Sequence[Tensor], width: int) -> int:
    """Fractional bits with the least mean square error for numbers of `width` bits."""
    values = torch.cat([t.detach().double().reshape(-1) for t in tensors])
    values = values[values.abs() < 2.0**20]  # not what masks have
    top = max(float(values.abs().max()), 2.0**-12)
    whole = int(torch.tensor(top).log2().ceil())
    errors = {}
    for frac in range(width - 1 - whole, width + 4 - whole):
        codes = (values * 2.0**frac).round().clamp(-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        errors[frac] = float((codes * 2.0**-frac - values).square().mean())
    return min(errors, key=lambda frac: (errors[frac], frac))


def fixed_rules(
    graph: MaseGraph,
    inputs: Sequence[Tensor],
    widths: Mapping[str, Mapping[str, int]],
    repeated: str = "",
) -> dict[str, Any]:
    """A config for `quantize_transform_pass`, by name; `widths` has bits by op and role.

    `repeated`: how the names of the parts of repeated layers begin, before their number; all layers
    then have the same formats, and what goes from one to the next has one too.
    """
    watched = _Watched(graph)
    with torch.no_grad():
        watched.run(*inputs)
    rules: dict[str, Any] = {"by": "name", "default": {"config": {"name": None}}}
    last = list(graph.fx_graph.nodes)[-1].all_input_nodes[-1]
    for node in graph.fx_graph.nodes:
        op = node.meta["mase"].common.mase_op
        if op in widths:
            config = _config(node, op, watched.seen[node.name], WIDTHS | dict(widths[op]))
            if node is last:
                config |= {"data_out_width": 16, "data_out_frac_width": 8}
            rules[node.name] = {"config": config}
    if repeated:
        _make_alike(rules, repeated, watched)
    return rules


def _make_alike(rules: dict[str, Any], repeated: str, watched: _Watched) -> None:
    """Layers with the fewest fractional bits that any of them has, in the same place."""
    names = [name for name in rules if name not in ("by", "default")]
    starts = {n[len(repeated)]: k for k, n in reversed([*enumerate(names)]) if repeated in n}
    firsts = sorted(starts.values())
    size = firsts[1] - firsts[0]
    layers = [names[k : k + size] for k in firsts]
    for same in zip(*layers, strict=True):
        _same_places([rules[name]["config"] for name in same])
    carried = [names[firsts[0] - 1], *(layer[-1] for layer in layers)]
    for name in carried:
        config, result = rules[name]["config"], watched.seen[name][1]
        config.setdefault("data_out_width", WIDTHS["data_out"])
        places = best_frac_width([result], config["data_out_width"])
        config.setdefault("data_out_frac_width", places)
    _same_places([rules[name]["config"] for name in carried], "data_out_frac_width")


def _same_places(configs: Sequence[dict[str, Any]], only: str = "frac_width") -> None:
    keys = {key for config in configs for key in config if key.endswith(only)}
    for key in keys:
        least = min(config[key] for config in configs)
        for config in configs:
            config[key] = least


def _config(
    node: fx.Node, op: str, seen: tuple[list[Any], Any], widths: Mapping[str, int]
) -> dict[str, Any]:
    operands = [v for v in seen[0] if isinstance(v, Tensor) and v.is_floating_point()]
    roles: dict[str, Sequence[Tensor]] = {"data_in": operands[:1]}
    if op == "matmul":
        roles["weight"] = operands[1:2]
    if op == "add":
        roles["data_in"] = operands
    if node.op == "call_module":
        module = node_module(node)
        roles |= {n: [p] for n, p in module.named_parameters(recurse=False)}
    if op == "embedding":
        roles.pop("data_in")
    if op in IN_INTEGERS or op == "matmul":
        roles["data_out"] = [seen[1]]
    config: dict[str, Any] = {"name": "integer"}
    for role, tensors in roles.items():
        config[f"{role}_width"] = widths[role]
        config[f"{role}_frac_width"] = best_frac_width(tensors, widths[role])
    if op in IN_INTEGERS:
        config["arithmetic"] = "integer"
    return config | (PROBABILITY if op == "softmax" else {})


MXINT = {"width": 8, "block_size": 16, "exponent_width": 4}
"""MXINT8 with exponents from -7 to 7: one for 16 elements."""


def mxint_rules(graph: MaseGraph, rules: Mapping[str, Any]) -> dict[str, Any]:
    """`rules` with every linear layer and matmul in MXINT, in blocks along what is summed over."""
    found = dict(rules)
    for node in graph.fx_graph.nodes:
        op = node.meta["mase"].common.mase_op
        if op in ("linear", "matmul"):
            config = {f"{role}_{k}": v for role in ("data_in", "weight") for k, v in MXINT.items()}
            more = {"weight_axis": -2} if op == "matmul" else {"bias_width": WIDTHS["bias"]}
            found[node.name] = {"config": {"name": "mxint", **config, **more}}
    return found
