"""Operands of layers and functions under calibration, and the settings chosen for them."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
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
from chop.passes.ptq.observe.format_ranges import RangedFormat, ranged, rules_of, slot_rows
from chop.passes.ptq.observe.histogram import LEAST_BINS, MOST_COUNTS
from chop.passes.ptq.observe.observers import Observer, RuleObserver, make_observer
from chop.passes.quantization_rules import FormatChoice


@dataclass
class Watched:
    """A layer or function with the format of each operand, and the settings chosen for them.

    `key`: the path of a module or the name of a node, as in a rule. `nodes`: its calls. `base`: its
    config before calibration. `names`: the operand whose config keys apply to another.
    `observers` and `chosen`: by role.
    """

    key: str
    nodes: list[fx.Node]
    base: dict[str, Any]
    quantizers: dict[str, Quantizer]
    inputs: tuple[Operand, ...]
    parameters: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    observers: dict[str, OperandObserver] = field(default_factory=dict)
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def is_layer(self) -> bool:
        """True if there is a module that can store scales."""
        return self.nodes[0].op == "call_module"

    def is_open(self, role: str, operands: Sequence[str]) -> bool:
        """Return True if the format of an operand leaves a setting to choose."""
        form, name = self.quantizers[role], self.names.get(role, role)
        kind = name.rstrip("_0123456789")  # data_in_1 -> data_in
        if form.is_bypass or kind not in operands:
            return False
        keys = [f"{n}_{s}" for n in (name, kind) for s in chosen_settings(form)]
        return bool(keys) and not any(self.base.get(key) is not None for key in keys)

    def settle(self, operands: Sequence[str], observer: ObserverChoice, where: str) -> None:
        """Choose the settings of the observed inputs, and of the layer's own tensors."""
        for role, watcher in self.observers.items():
            if watcher.has_seen:
                self.chosen[role] = watcher.result()
        layer = adapted_layer(node_module(self.nodes[0])) if self.is_layer else None
        for name in self.parameters:
            role, value = parameter_role(name), operator.attrgetter(name)(layer)
            is_first = isinstance(value, Tensor) and role not in self.chosen
            if is_first and self.is_open(role, operands):
                form = self.quantizers[role]
                self.chosen[role] = parameter_settings(form, observer, value, where)

    @property
    def scales(self) -> dict[str, Tensor]:
        """Scales that the layer has to store."""
        return {
            f"{role}_scale": settings["scale"]
            for role, settings in self.chosen.items()
            if self.is_layer and isinstance(settings.get("scale"), Tensor)
        }

    @property
    def config(self) -> dict[str, Any]:
        """The config with the chosen settings; then every operand is explicit."""
        config = dict(self.base)
        if not self.chosen:
            return config
        for role, form in self.quantizers.items():
            name = self.names.get(role, role)
            has_own = any(key.startswith(f"{name}_") for key in config)
            if role != DATA_OUT and not has_own:
                config |= explicit_settings(form, name)
        for role, chosen in self.chosen.items():
            settings = {k: v for k, v in chosen.items() if k not in ("low", "high")}
            if isinstance(settings.get("scale"), Tensor):
                settings["scale"] = STORED if self.is_layer else settings["scale"].tolist()
            name = self.names.get(role, role)
            config |= {f"{name}_{setting}": value for setting, value in settings.items()}
        return config

    @property
    def records(self) -> Iterator[dict[str, Any]]:
        """One row per operand."""
        for role, settings in self.chosen.items():
            plain = {k: v for k, v in settings.items() if not isinstance(v, Tensor)}
            yield {"node": self.nodes[0].name, "operand": role, **plain}


def watch(graph: MaseGraph, node: fx.Node, choice: FormatChoice) -> Watched:
    """Return the operands of one call with the formats of the rules."""
    if node.op == "call_module":
        layer = adapted_layer(node_module(node))
        cls = quantized_class(layer, choice.config["name"], where=choice.where)
        plain, quantizers = cls.parse(choice.config, choice.where)
        compute = cls.op.compute
        assert compute is not None, "a class of quantised layers has it"
        inputs = compute.inputs
        # several weights of one role have no common scale: each is measured
        parameters = compute.parameters if compute.own_names is None else ()
        return Watched(str(node.target), [node], plain, quantizers, inputs, parameters)
    op, config, where = find_op(node, graph.custom_ops), dict(choice.config), choice.where
    assert op is not None and op.compute is not None, f"'{node.name}' was chosen without an op"
    form = find_format(config["name"], f"{where}.name")
    quantizers = parse_function_config(op, form, config, where)
    operands = op.compute.operands
    names = {o.role: role_in(o, config) for o in operands}
    config |= _channel_axes(quantizers, names, config)
    quantizers = parse_function_config(op, form, config, where)
    return Watched(node.name, [node], config, quantizers, operands, names=names)


def is_by_channel(form: Quantizer) -> bool:
    """Return True if a format has one scale per channel."""
    return form.scaled is not None and form.scaled.granularity == "channel"


def _channel_axes(
    quantizers: Mapping[str, Quantizer], names: Mapping[str, str], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the last dimension as the channels of activations whose config has no axis.

    The default of a format is the first dimension: the channels of a weight, but the batch of an
    activation, whose stored scales would fit one batch size.
    """
    keys = {f"{names[role]}_axis" for role, form in quantizers.items() if is_by_channel(form)}
    return {key: -1 for key in sorted(keys) if key not in config}


def operand_of(operand: Operand, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the operand of a call; None if the call has none."""
    if operand.position < len(args):
        return args[operand.position]
    return kwargs.get(operand.argument)


ObserverChoice = str | Mapping[str, Any]


def chosen_settings(form: Quantizer) -> tuple[str, ...]:
    """Return the settings of a format that an observer selects."""
    if form.scaled is not None:
        return ("scale",)
    with_range = ranged(form)
    if with_range is not None:
        return (with_range.setting,)  # type: ignore[attr-defined]
    return ("scale_rule",) if any(True for _ in rules_of(form)) else ()


class OperandObserver:
    """Observer of one operand that returns the settings of its format."""

    def __init__(self, form: Quantizer, observer: ObserverChoice, where: str) -> None:
        self.form, self.ranged = form, ranged(form)
        self._observer: Observer | RuleObserver = (
            RuleObserver(form) if self.ranged is None else make_observer(observer, where)
        )
        self.has_seen = False

    def observe(self, x: Tensor) -> None:
        """Add one batch."""
        self.has_seen = True
        is_ranged = self.ranged is not None
        self._observer.observe(slot_rows(self.form, x, by_row=False) if is_ranged else x)

    def result(self) -> dict[str, Any]:
        """Return the settings; for formats with a range also `low` and `high`, as numbers."""
        if isinstance(self._observer, RuleObserver):
            return self._observer.settings()
        assert self.ranged is not None, "it has an observer of ranges"
        return _result(self.form, self.ranged, *self._observer.range_for(self.ranged))


def parameter_settings(
    form: Quantizer, observer: ObserverChoice, value: Tensor, where: str
) -> dict[str, Any]:
    """Return the settings for a parameter; every row has its own groups."""
    with_range = ranged(form)
    if with_range is None:
        rules = RuleObserver(form)
        rules.observe(value)
        return rules.settings()
    ranges = []
    every = slot_rows(form, value.detach(), by_row=True)
    # few enough at once that the observer stores each slot's values instead of counting them
    at_once = max(1, MOST_COUNTS // max(every.shape[1], LEAST_BINS))
    for rows in torch.split(every, at_once):
        rows_observer = make_observer(observer, where)
        rows_observer.observe(rows)
        ranges.append(rows_observer.range_for(with_range))
    low, high = (torch.cat(bounds) for bounds in zip(*ranges, strict=True))
    result = _result(form, with_range, low, high)
    if form.scaled is not None and form.scaled.granularity == "group":
        result["scale"] = result["scale"].reshape(*value.shape[:-1], -1)
    return result


def _result(form: Quantizer, with_range: RangedFormat, low: Tensor, high: Tensor) -> dict[str, Any]:
    settings = with_range.settings(low, high)
    if form.scaled is not None and form.scaled.granularity == "tensor":
        settings["scale"] = float(settings["scale"])
    return {**settings, "low": float(low.min()), "high": float(high.max())}


def explicit_settings(form: Quantizer, role: str) -> dict[str, Any]:
    """Return config keys that set this very format for `role`, so that it follows no other."""
    if form.is_bypass:
        return {f"{role}_name": "NA"}
    fields = dataclasses.fields(form)
    changed = [f.name for f in fields if getattr(form, f.name) != f.default]
    return {f"{role}_{name}": getattr(form, name) for name in changed or [fields[-1].name]}
