"""Operands of layers and functions under calibration, and the settings chosen for them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from chop.ir.graph import MaseGraph
from chop.ir.ops import Operand, find_op, node_module, parameter_role
from chop.nn.modules.lora import adapted_layer
from chop.nn.quantized.call_operands import DATA_OUT, role_in
from chop.nn.quantized.convert import quantized_class
from chop.nn.quantized.functional import parse_function_config
from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.formats import find_format
from chop.nn.quantizers.scale_integer import STORED
from chop.passes.ptq.observe.operand_observer import (
    ObserverChoice,
    OperandObserver,
    chosen_settings,
    explicit_settings,
    parameter_settings,
)
from chop.passes.quantization_rules import FormatChoice


@dataclass
class Watched:
    """A layer or function with the format of each operand, and what is found for them.

    `key`: the rule's, the path of a module or the name of a node; `nodes`: the calls. `given`: its
    config. `names`: the operand whose keys in the config speak of another.
    """

    key: str
    nodes: list[fx.Node]
    given: dict[str, Any]
    quantizers: dict[str, Quantizer]
    inputs: tuple[Operand, ...]
    parameters: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    seen: dict[str, OperandObserver] = field(default_factory=dict)
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def is_layer(self) -> bool:
        """Whether there is a module that can store scales."""
        return self.nodes[0].op == "call_module"

    def is_open(self, role: str, operands: Sequence[str]) -> bool:
        """Whether the format of an operand leaves a setting to choose."""
        form, name = self.quantizers[role], self.names.get(role, role)
        kind = name.rstrip("_0123456789")  # data_in_1 -> data_in
        if form.is_bypass or kind not in operands:
            return False
        given = [f"{n}_{s}" for n in (name, kind) for s in chosen_settings(form)]
        return bool(given) and not any(self.given.get(key) is not None for key in given)

    def settle(self, operands: Sequence[str], observer: ObserverChoice, where: str) -> None:
        """Choose the settings of the inputs seen, and of the layer's own tensors."""
        for role, watcher in self.seen.items():
            if watcher.has_seen:
                self.found[role] = watcher.result()
        layer = adapted_layer(node_module(self.nodes[0])) if self.is_layer else None
        for name in self.parameters:
            role, value = parameter_role(name), operator.attrgetter(name)(layer)
            is_first = isinstance(value, Tensor) and role not in self.found
            if is_first and self.is_open(role, operands):
                form = self.quantizers[role]
                self.found[role] = parameter_settings(form, observer, value, where)

    @property
    def scales(self) -> dict[str, Tensor]:
        """Scales that the layer is to store."""
        return {
            f"{role}_scale": found["scale"]
            for role, found in self.found.items()
            if self.is_layer and isinstance(found.get("scale"), Tensor)
        }

    @property
    def config(self) -> dict[str, Any]:
        """The config with what was chosen; every operand is spelt out where one was."""
        if not self.found:
            return dict(self.given)
        config = dict(self.given)
        for role, form in self.quantizers.items():
            name = self.names.get(role, role)
            has_own = any(key.startswith(f"{name}_") for key in config)
            if role != DATA_OUT and not has_own:
                config |= explicit_settings(form, name)
        for role, found in self.found.items():
            chosen = {k: v for k, v in found.items() if k not in ("low", "high")}
            if isinstance(chosen.get("scale"), Tensor):
                chosen["scale"] = STORED if self.is_layer else chosen["scale"].tolist()
            name = self.names.get(role, role)
            config |= {f"{name}_{setting}": value for setting, value in chosen.items()}
        return config

    @property
    def records(self) -> Iterator[dict[str, Any]]:
        """A row for each operand."""
        for role, found in self.found.items():
            plain = {k: v for k, v in found.items() if not isinstance(v, Tensor)}
            yield {"node": self.nodes[0].name, "operand": role, **plain}


def watch(graph: MaseGraph, node: fx.Node, choice: FormatChoice) -> Watched:
    """What the rules give to one call."""
    if node.op == "call_module":
        return _watched_layer(node, choice)
    op, config, where = find_op(node, graph.custom_ops), dict(choice.config), choice.where
    assert op is not None and op.compute is not None, f"'{node.name}' was chosen without an op"
    form = find_format(config["name"], f"{where}.name")
    quantizers = parse_function_config(op, form, config, where)
    operands = op.compute.operands
    names = {o.role: role_in(o, config) for o in operands}
    return Watched(node.name, [node], config, quantizers, operands, names=names)


def _watched_layer(node: fx.Node, choice: FormatChoice) -> Watched:
    layer = adapted_layer(node_module(node))
    cls = quantized_class(layer, choice.config["name"], where=choice.where)
    plain, quantizers = cls.parse(choice.config, choice.where)
    compute = cls.op.compute
    assert compute is not None, "a class of quantised layers has it"
    return Watched(str(node.target), [node], plain, quantizers, compute.inputs, compute.parameters)


def operand_of(operand: Operand, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The operand in a call; None where the call has none."""
    if operand.position < len(args):
        return args[operand.position]
    return kwargs.get(operand.argument)
