"""Formats of layers and functions from the quantised weights and activations of a file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from chop.export.activation_rounding import Steps
from chop.export.onnx_import.layer_operators import Rounding
from chop.export.onnx_import.onnx_model import OnnxModel
from chop.export.onnx_import.quantised import Grid
from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op, node_module
from chop.log import get_logger
from chop.nn.quantized.call_operands import DATA_OUT
from chop.nn.quantized.convert import float_class_of
from chop.nn.quantizers import FP8, MXFP, MXInt, Quantizer
from chop.passes.graph.transforms import quantize_transform_pass

logger = get_logger(__name__)

Settings = dict[str, Any]
Choices = dict[str, tuple[Settings, Tensor | None]]
"""Settings of an operand, and the scales that its layer stores, by name of a format."""
PREFERRED = ("fp8", "integer", "mxfp", "mxint", "scale_integer")


def power_of(scale: float) -> int | None:
    """Return the exponent of a power of two, or None."""
    mantissa, exponent = math.frexp(scale)
    return exponent - 1 if mantissa == 0.5 else None


def whole_range(low: int, high: int) -> Settings | None:
    """Return the settings of integer formats from `low` to `high`; None if there are none."""
    is_signed = low < 0
    width = (high + 1).bit_length() - 1 + is_signed
    if high + 1 != 2 ** (width - is_signed) or low not in (0, -high, -high - 1):
        return None
    settings: Settings = {"width": width}
    if not is_signed:
        return settings | {"is_signed": False}
    return settings | {"narrow": low == -high}


def weight_choices(values: Tensor, grid: Grid) -> Choices:
    """Return the formats that reproduce the values of a weight exactly."""
    if grid.element:
        is_plain = bool((grid.scale == 1).all())
        same = is_plain and _same(FP8(grid.element), values)  # type: ignore[arg-type]
        return {"fp8": ({"element": grid.element}, None)} if same else {}
    settings = whole_range(grid.low, grid.high)
    if settings is None or not bool((grid.scale > 0).all()):
        return {}
    choices: Choices = {}
    is_one = grid.scale.numel() == 1
    power = power_of(float(grid.scale.reshape(-1)[0])) if is_one else None
    if power is not None and grid.zero_point == 0 and -126 <= power <= 90:
        choices["integer"] = {**settings, "frac_width": -power}, None
    shared = _shared(grid.scale.expand(values.shape).float())
    if shared is None:
        return choices
    granularity, scales = shared
    size = granularity.get("group_size")
    if size is not None and grid.zero_point == 0:
        mantissa, _ = torch.frexp(scales)
        if bool((mantissa == 0.5).all()):  # blocks share a power of two
            if _same(MXFP("e2m1", block_size=size), values):
                choices["mxfp"] = {"element": "e2m1", "block_size": size}, None
            if _same(MXInt(settings["width"], block_size=size), values):
                choices["mxint"] = {"width": settings["width"], "block_size": size}, None
    if 2 <= settings["width"] <= 16:
        zero = {"zero_point": grid.zero_point} if grid.zero_point else {}
        narrow = {"narrow": False} if settings.get("narrow") is False else {}
        plain = {k: v for k, v in settings.items() if k != "narrow"}
        choices["scale_integer"] = {**plain, **narrow, **zero, **granularity}, scales
    return choices


def _same(form: Quantizer, values: Tensor) -> bool:
    return torch.equal(form.quantize(values.float()), values.float())


def _shared(scale: Tensor) -> tuple[Settings, Tensor] | None:
    """Return the granularity of a scale (tensor, channel, group), and the scales of a layer."""
    if bool((scale == scale.reshape(-1)[0]).all()):
        return {}, scale.reshape(-1)[0].clone()
    for axis in range(scale.dim()):
        rows = scale.movedim(axis, 0).reshape(scale.shape[axis], -1)
        if bool((rows == rows[:, :1]).all()):
            return {"granularity": "channel", "axis": axis}, rows[:, 0].clone()
    length = scale.shape[-1]
    sizes = {1 << i for i in range(1, length.bit_length())} | {
        d for d in range(2, min(length, 1025)) if length % d == 0
    }
    for size in sorted(sizes, reverse=True):
        first = scale[..., ::size]
        if torch.equal(first.repeat_interleave(size, -1)[..., :length], scale):
            return {"granularity": "group", "group_size": size}, first.contiguous()
    return None


def activation_choices(steps: Steps, *, is_layer: bool) -> Choices:
    """Return the formats that round like the file."""
    settings = whole_range(steps.low, steps.high)
    if settings is None:
        return {}
    choices: Choices = {}
    scales: Any = steps.scale_values
    power = power_of(scales[0]) if len(scales) == 1 else None
    if power is not None and steps.zero_point == 0 and settings["width"] <= 32:
        choices["integer"] = {**settings, "frac_width": -power}, None
    if not 2 <= settings["width"] <= 16:
        return choices
    if settings.get("is_signed", True):
        settings["narrow"] = bool(settings.get("narrow"))
    if steps.zero_point:
        settings["zero_point"] = steps.zero_point
    if len(scales) > 1:
        settings |= {"granularity": "channel", "axis": steps.axis}
    values = list(scales) if len(scales) > 1 else scales[0]
    settings["scale"] = "stored" if is_layer else values
    stored = torch.tensor(values, dtype=torch.float32) if is_layer else None
    choices["scale_integer"] = settings, stored
    return choices


@dataclass
class _FormatPlan:
    """Possible formats of the operands of a layer or a function, which `nodes` call."""

    nodes: list[fx.Node]
    choices: dict[str, Choices] = field(default_factory=dict)

    def chosen(self) -> tuple[str, dict[str, tuple[Settings, Tensor | None]]] | None:
        """Return one format for all operands, or for the weight alone, or None."""
        for candidates in (list(self.choices), ["weight"]):
            roles = [r for r in candidates if r in self.choices]
            for name in PREFERRED:
                if roles and all(name in self.choices[r] for r in roles):
                    return name, {r: self.choices[r][name] for r in roles}
        return None


class FormatMover:
    """Transfer of the roundings of a captured file into its layers and functions."""

    def __init__(self, graph: MaseGraph, model: OnnxModel) -> None:
        self.graph, self.model = graph, model
        self.plans: dict[str, _FormatPlan] = {}
        self.at_source: set[fx.Node] = set()
        self._add_weights()
        roundings = [n for n in graph.nodes if self._steps(n) is not None]
        users = {node: self._offer(node) for node in roundings}
        rules = self._rules()
        for node in roundings:
            self._move(node, users[node])
        graph.recompile()
        if rules:
            quantize_transform_pass(graph, {"by": "name", **rules})

    def _steps(self, node: fx.Node) -> Steps | None:
        module = node_module(node) if node.op == "call_module" else None
        return module.steps if isinstance(module, Rounding) else None

    def _plan(self, node: fx.Node) -> _FormatPlan:
        is_module = node.op == "call_module"
        key = str(node.target) if is_module else node.name
        if key not in self.plans:
            same = [n for n in self.graph.nodes if n.op == "call_module" and n.target == key]
            self.plans[key] = _FormatPlan(same if is_module else [node])
        return self.plans[key]

    def _add_weights(self) -> None:
        for node in self.graph.nodes:
            if node.op != "call_module" or float_class_of(node_module(node)) is None:
                continue
            module = node_module(node)
            for role in ("weight", "bias"):
                parameter = module._parameters.get(role)
                grid = None if parameter is None else self.model.grid_of(parameter)
                if grid is not None and parameter is not None:
                    choices = weight_choices(parameter.detach(), grid)
                    if choices:
                        self._plan(node).choices[role] = choices

    def _offer(self, node: fx.Node) -> list[tuple[fx.Node, str]]:
        """Return the users of a rounding that can round their operand, with its role."""
        steps = self._steps(node)
        assert steps is not None, "checked by the caller"
        roles = {user: self._role(user, node) for user in node.users}
        if None in roles.values() and self._offer_source(node, steps):
            return []
        users = []
        for user, role in roles.items():
            if role is None:
                continue
            plan = self._plan(user)
            choices = activation_choices(steps, is_layer=user.op == "call_module")
            is_new = role not in plan.choices and len(plan.nodes) == 1
            if choices and is_new:
                plan.choices[role] = choices
                users.append((user, role))
        return users

    def _offer_source(self, node: fx.Node, steps: Steps) -> bool:
        """Return True if the source of the value has no other user and can round its result."""
        source = node.args[0]
        is_call = isinstance(source, fx.Node) and source.op in ("call_module", "call_function")
        if not isinstance(source, fx.Node) or not is_call or len(source.users) > 1:
            return False
        plan = self._plan(source)
        is_module = source.op == "call_module"
        op = find_op(source, self.graph.custom_ops)
        if op is None or op.compute is None or len(plan.nodes) > 1:
            return False
        if is_module:
            can_round = float_class_of(node_module(source)) is not None
        else:
            can_round = op.compute.function is not None and source.target not in op.compute.unlike
        choices = activation_choices(steps, is_layer=is_module) if can_round else {}
        if not choices:
            return False
        plan.choices[DATA_OUT] = choices
        self.at_source.add(node)
        return True

    def _role(self, user: fx.Node, node: fx.Node) -> str | None:
        """Return the role of `node` in `user`; None if it has several, or none with a format."""
        op = find_op(user, self.graph.custom_ops)
        if op is None or op.compute is None or node in user.kwargs.values():
            return None
        if user.op == "call_module":
            operands = op.compute.inputs if float_class_of(node_module(user)) else ()
        else:
            is_alike = op.compute.function is not None and user.target not in op.compute.unlike
            operands = op.compute.operands if is_alike else ()
        places = [i for i, a in enumerate(user.args) if a is node]
        roles = [o.role for o in operands if [o.position] == places]
        return roles[0] if len(roles) == 1 and len(places) == 1 else None

    def _rules(self) -> dict[str, Any]:
        rules = {}
        for key, plan in self.plans.items():
            chosen, node = plan.chosen(), plan.nodes[0]
            if chosen is None:
                continue
            name, roles = chosen
            config: Settings = {"name": name}
            module = node_module(node) if node.op == "call_module" else None
            op = find_op(node, self.graph.custom_ops)
            assert op is not None and op.compute is not None, "a plan has an op"
            operands = [operand.role for operand in op.compute.operands]
            for role in (*(operands if module is None else op.compute.layer_roles), DATA_OUT):
                if role not in roles:
                    config[f"{role}_name"] = "NA"
                    continue
                settings, scale = roles[role]
                config |= {f"{role}_{k}": v for k, v in settings.items()}
                if scale is not None and module is not None:
                    module.register_buffer(f"{role}_scale", scale)
                    config[f"{role}_scale"] = "stored"
            rules[key] = {"config": config}
            plan.choices = {r: plan.choices[r] for r in roles}
        return rules

    def _move(self, node: fx.Node, users: list[tuple[fx.Node, str]]) -> None:
        """Remove a rounding; users that do not round themselves read arithmetic instead."""
        source = node.args[0]
        if node in self.at_source:
            plan = self._plan(source)  # type: ignore[arg-type]
            if DATA_OUT in plan.choices and plan.chosen() is not None:
                node.replace_all_uses_with(source)  # type: ignore[arg-type]
        for user, role in users:
            if role in self._plan(user).choices and self._plan(user).chosen() is not None:
                user.replace_input_with(node, source)  # type: ignore[arg-type]
        if node.users:
            self._by_arithmetic(node)
        self.graph.fx_graph.erase_node(node)
        owner, _, leaf = str(node.target).rpartition(".")
        delattr(self.graph.model.get_submodule(owner), leaf)

    def _by_arithmetic(self, node: fx.Node) -> None:
        steps = self._steps(node)
        assert steps is not None, "checked by the caller"
        logger.warning(
            "node '%s': its users have no format that rounds so; it is rounded by arithmetic.",
            node.name,
        )
        graph = self.graph.fx_graph
        with graph.inserting_before(node):
            scale = self._scale(steps, node)
            whole = graph.call_function(torch.div, (node.args[0], scale))
            whole = graph.call_function(torch.round, (whole,))
            low, high = steps.low - steps.zero_point, steps.high - steps.zero_point
            whole = graph.call_function(torch.clamp, (whole, low, high))
            rounded = graph.call_function(torch.mul, (whole, scale))
        node.replace_all_uses_with(rounded)

    def _scale(self, steps: Steps, node: fx.Node) -> Any:
        if len(steps.scale_values) == 1:
            return steps.scale_values[0]
        name = f"{node.name}_scale"
        values = torch.tensor(steps.scale_values).reshape([-1, *[1] * (-1 - steps.axis)])
        self.graph.model.register_buffer(name, values)
        return self.graph.fx_graph.get_attr(name)


def apply_formats(graph: MaseGraph, model: OnnxModel) -> None:
    """Give layers and functions the formats of the file."""
    FormatMover(graph, model)
