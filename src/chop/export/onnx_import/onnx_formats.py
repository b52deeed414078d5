"""Quantised weights and activations of a file as formats of the layers that compute with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from chop.export.onnx_import.layers import Rounding
from chop.export.onnx_import.model import OnnxModel
from chop.export.onnx_import.quantised import Grid
from chop.export.rounding import Steps
from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op, node_module
from chop.log import get_logger
from chop.nn.quantized.convert import float_class_of
from chop.nn.quantized.operands import DATA_OUT
from chop.nn.quantizers import FP8, MXFP, MXInt, Quantizer
from chop.passes.graph.transforms import quantize_transform_pass

logger = get_logger(__name__)

Settings = dict[str, Any]
Choices = dict[str, tuple[Settings, Tensor | None]]
"""By name of a format: its settings for an operand, and the scales that its layer stores."""
PREFERRED = ("fp8", "integer", "mxfp", "mxint", "scale_integer")


def power_of(scale: float) -> int | None:
    """The exponent of a power of two."""
    mantissa, exponent = math.frexp(scale)
    return exponent - 1 if mantissa == 0.5 else None


def whole_range(low: int, high: int) -> Settings | None:
    """The settings of formats of integers from `low` to `high`; None where none has them."""
    is_signed = low < 0
    width = (high + 1).bit_length() - 1 + is_signed
    if high + 1 != 2 ** (width - is_signed) or low not in (0, -high, -high - 1):
        return None
    settings: Settings = {"width": width}
    if not is_signed:
        return settings | {"is_signed": False}
    return settings | {"narrow": low == -high}


# -- weights ---------------------------------------------------------------------------------


def weight_choices(values: Tensor, grid: Grid) -> Choices:
    """The formats that a weight of the file is in: each gives its very values."""
    if grid.element:
        is_plain = bool((grid.scale == 1).all())
        same = is_plain and _same(FP8(grid.element), values)  # type: ignore[arg-type]
        return {"fp8": ({"element": grid.element}, None)} if same else {}
    settings = whole_range(grid.low, grid.high)
    if settings is None or not bool((grid.scale > 0).all()):
        return {}
    found: Choices = {}
    is_one = grid.scale.numel() == 1
    power = power_of(float(grid.scale.reshape(-1)[0])) if is_one else None
    if power is not None and grid.zero_point == 0 and -126 <= power <= 90:
        found["integer"] = {**settings, "frac_width": -power}, None
    shared = _shared(grid.scale.expand(values.shape).float())
    if shared is None:
        return found
    granularity, scales = shared
    if "group_size" in granularity and grid.zero_point == 0:
        found |= _block_choices(values, settings["width"], granularity["group_size"], scales)
    if 2 <= settings["width"] <= 16:
        zero = {"zero_point": grid.zero_point} if grid.zero_point else {}
        narrow = {"narrow": False} if settings.get("narrow") is False else {}
        plain = {k: v for k, v in settings.items() if k != "narrow"}
        found["scale_integer"] = {**plain, **narrow, **zero, **granularity}, scales
    return found


def _same(form: Quantizer, values: Tensor) -> bool:
    return torch.equal(form.quantize(values.float()), values.float())


def _block_choices(values: Tensor, width: int, size: int, scales: Tensor) -> Choices:
    """Formats whose blocks share a power of two."""
    mantissa, _ = torch.frexp(scales)
    if not bool((mantissa == 0.5).all()):
        return {}
    found: Choices = {}
    if _same(MXFP("e2m1", block_size=size), values):
        found["mxfp"] = {"element": "e2m1", "block_size": size}, None
    if _same(MXInt(width, block_size=size), values):
        found["mxint"] = {"width": width, "block_size": size}, None
    return found


def _shared(scale: Tensor) -> tuple[Settings, Tensor] | None:
    """What shares a scale (all, a channel, a group of a row), and the scales as a layer has."""
    if bool((scale == scale.reshape(-1)[0]).all()):
        return {}, scale.reshape(-1)[0].clone()
    for axis in range(scale.dim()):
        rows = scale.movedim(axis, 0).reshape(scale.shape[axis], -1)
        if bool((rows == rows[:, :1]).all()):
            return {"granularity": "channel", "axis": axis}, rows[:, 0].clone()
    size = _group_size(scale)
    if size is None:
        return None
    return {"granularity": "group", "group_size": size}, scale[..., ::size].contiguous()


def _group_size(scale: Tensor) -> int | None:
    """The largest power of two, or divisor of a row, in whose runs scales are alike."""
    length = scale.shape[-1]
    sizes = {1 << i for i in range(1, length.bit_length())} | {
        d for d in range(2, min(length, 1025)) if length % d == 0
    }
    for size in sorted(sizes, reverse=True):
        first = scale[..., ::size].repeat_interleave(size, -1)[..., :length]
        if torch.equal(first, scale):
            return size
    return None


# -- activations -----------------------------------------------------------------------------


def activation_choices(steps: Steps, *, is_layer: bool) -> Choices:
    """The formats that round as the file does."""
    settings = whole_range(steps.low, steps.high)
    if settings is None:
        return {}
    found: Choices = {}
    scales = steps.scale_values
    power = power_of(scales[0]) if len(scales) == 1 else None
    if power is not None and steps.zero_point == 0 and settings["width"] <= 32:
        found["integer"] = {**settings, "frac_width": -power}, None
    if not 2 <= settings["width"] <= 16:
        return found
    if settings.get("is_signed", True):
        settings["narrow"] = bool(settings.get("narrow"))
    if steps.zero_point:
        settings["zero_point"] = steps.zero_point
    if len(scales) > 1:
        settings |= {"granularity": "channel", "axis": steps.axis}
    stored = torch.tensor(scales if len(scales) > 1 else scales[0], dtype=torch.float32)
    given = list(scales) if len(scales) > 1 else scales[0]
    settings["scale"] = "stored" if is_layer else given
    found["scale_integer"] = settings, stored if is_layer else None
    return found


# -- layers and functions --------------------------------------------------------------------


@dataclass
class _Plan:
    """What is known of the operands of a layer or a function: `nodes` call it."""

    nodes: list[fx.Node]
    choices: dict[str, Choices] = field(default_factory=dict)

    def chosen(self) -> tuple[str, dict[str, tuple[Settings, Tensor | None]]] | None:
        """One format for all operands, or for the weight alone."""
        for roles in (list(self.choices), ["weight"]):
            known = [r for r in roles if r in self.choices]
            for name in PREFERRED:
                if known and all(name in self.choices[r] for r in known):
                    return name, {r: self.choices[r][name] for r in known}
        return None


class Formats:
    """Moves the roundings of a captured file into its layers and functions."""

    def __init__(self, graph: MaseGraph, model: OnnxModel) -> None:
        self.graph, self.model = graph, model
        self.plans: dict[str, _Plan] = {}
        self.at_source: set[fx.Node] = set()
        self._weights()
        roundings = [n for n in graph.nodes if self._steps(n) is not None]
        taken = {node: self._offer(node) for node in roundings}
        rules = self._rules()
        for node in roundings:
            self._move(node, taken[node])
        graph.recompile()
        if rules:
            quantize_transform_pass(graph, {"by": "name", **rules})

    def _steps(self, node: fx.Node) -> Steps | None:
        module = node_module(node) if node.op == "call_module" else None
        return module.steps if isinstance(module, Rounding) else None

    def _key(self, node: fx.Node) -> str:
        return str(node.target) if node.op == "call_module" else node.name

    def _plan(self, node: fx.Node) -> _Plan:
        key = self._key(node)
        if key not in self.plans:
            same = [n for n in self.graph.nodes if n.op == "call_module" and n.target == key]
            self.plans[key] = _Plan(same if node.op == "call_module" else [node])
        return self.plans[key]

    def _weights(self) -> None:
        for node in self.graph.nodes:
            if node.op != "call_module" or float_class_of(node_module(node)) is None:
                continue
            module = node_module(node)
            for role in ("weight", "bias"):
                parameter = module._parameters.get(role)
                grid = None if parameter is None else self.model.grid_of(parameter)
                if grid is not None and parameter is not None:
                    found = weight_choices(parameter.detach(), grid)
                    if found:
                        self._plan(node).choices[role] = found

    def _offer(self, node: fx.Node) -> list[tuple[fx.Node, str]]:
        """The users of a rounding that may round by themselves, with the operand it is of."""
        steps = self._steps(node)
        assert steps is not None, "was looked at"
        roles = {user: self._role(user, node) for user in node.users}
        if None in roles.values() and self._offer_source(node, steps):
            return []
        found = []
        for user, role in roles.items():
            if role is None:
                continue
            plan = self._plan(user)
            choices = activation_choices(steps, is_layer=user.op == "call_module")
            is_new = role not in plan.choices and len(plan.nodes) == 1
            if choices and is_new:
                plan.choices[role] = choices
                found.append((user, role))
        return found

    def _offer_source(self, node: fx.Node, steps: Steps) -> bool:
        """Whether what makes the value, for this rounding alone, may round its result."""
        source = node.args[0]
        is_call = isinstance(source, fx.Node) and source.op in ("call_module", "call_function")
        if not isinstance(source, fx.Node) or not is_call or len(source.users) > 1:
            return False
        plan, choices = self._plan(source), self._result_choices(source, steps)
        if not choices or len(plan.nodes) > 1:
            return False
        plan.choices[DATA_OUT] = choices
        self.at_source.add(node)
        return True

    def _result_choices(self, source: fx.Node, steps: Steps) -> Choices:
        op = find_op(source, self.graph.custom_ops)
        if op is None or op.compute is None:
            return {}
        if source.op == "call_module":
            can = float_class_of(node_module(source)) is not None
        else:
            can = op.compute.function is not None and source.target not in op.compute.unlike
        return activation_choices(steps, is_layer=source.op == "call_module") if can else {}

    def _role(self, user: fx.Node, node: fx.Node) -> str | None:
        """The operand that `node` is of `user`; None where it is more, or none with a format."""
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
            found = plan.chosen()
            if found is None:
                continue
            name, roles = found
            config: Settings = {"name": name}
            module = node_module(plan.nodes[0]) if plan.nodes[0].op == "call_module" else None
            for role in (*self._all_roles(plan.nodes[0]), DATA_OUT):
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

    def _all_roles(self, node: fx.Node) -> list[str]:
        op = find_op(node, self.graph.custom_ops)
        assert op is not None and op.compute is not None, "was looked at"
        if node.op == "call_module":
            return list(op.compute.layer_roles)
        return [o.role for o in op.compute.operands]

    def _move(self, node: fx.Node, taken: list[tuple[fx.Node, str]]) -> None:
        """Let users read what was rounded; where one does not round itself, by arithmetic."""
        source = node.args[0]
        if node in self.at_source:
            plan = self._plan(source)  # type: ignore[arg-type]
            if DATA_OUT in plan.choices and plan.chosen() is not None:
                node.replace_all_uses_with(source)  # type: ignore[arg-type]
        for user, role in taken:
            if role in self._plan(user).choices and self._plan(user).chosen() is not None:
                user.replace_input_with(node, source)  # type: ignore[arg-type]
        if node.users:
            self._by_arithmetic(node)
        self.graph.fx_graph.erase_node(node)
        owner, _, leaf = str(node.target).rpartition(".")
        delattr(self.graph.model.get_submodule(owner), leaf)

    def _by_arithmetic(self, node: fx.Node) -> None:
        steps = self._steps(node)
        assert steps is not None, "was looked at"
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
            made = graph.call_function(torch.mul, (whole, scale))
        node.replace_all_uses_with(made)

    def _scale(self, steps: Steps, node: fx.Node) -> Any:
        if len(steps.scale_values) == 1:
            return steps.scale_values[0]
        name = f"{node.name}_scale"
        values = torch.tensor(steps.scale_values).reshape([-1, *[1] * (-1 - steps.axis)])
        self.graph.model.register_buffer(name, values)
        return self.graph.fx_graph.get_attr(name)


def apply_formats(graph: MaseGraph, model: OnnxModel) -> None:
    """Give layers and functions the formats of the file."""
    Formats(graph, model)
