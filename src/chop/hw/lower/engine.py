"""Walk over the graph, and the helpers of every lowering: operands, formats, stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from chop.errors import ConfigError, HardwareError
from chop.hw.arith.golden import MAX_WIDTH, Fixed, Ints, Span
from chop.hw.design.clock import has_head
from chop.hw.design.component import Component, has_streamed
from chop.hw.design.design import Design, Wire
from chop.hw.design.stream import Stream
from chop.hw.lower import fixed_formats, mxint_values, sharing
from chop.hw.lower.calls import gives_tensor
from chop.hw.lower.lowerings import LOWERINGS, Lowering
from chop.hw.lower.storage import ALLOWED_RELOAD, MEMORY, RELOAD, Storage
from chop.hw.lower.supported import attribute, check_finite, check_supported
from chop.hw.lower.values import Lowered as Lowered
from chop.hw.lower.values import Shape as Shape
from chop.hw.lower.values import Value as Value
from chop.hw.streams.builder import Builder, with_forks
from chop.hw.streams.stream_cast import Cast
from chop.hw.streams.stream_reorder import Reorder, moves_beats
from chop.hw.timing.cycles import size_fifos, with_fifos
from chop.ir.design_spec import DEFAULT_MHZ, DesignSpec
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.node_arguments import operand_nodes
from chop.ir.ops import Op, find_op, node_module
from chop.ir.trace.effects import is_in_place
from chop.nn.modules.lookup_tables import Thermometer

TRUTH = Fixed(1, 0, is_signed=False)
"""The format of truth values."""
CONSTANT_PRODUCTS = ("shift_add", "tables")
"""Multipliers that are made for their weights."""
EXACT_WIDTH = 53
"""Bits of the widest output: a double holds its numbers."""


def Parallelism(  # noqa: N802  # the class that DesignSpec replaced
    most: int = 4,
    by_node: Mapping[str, tuple[int, int]] | None = None,
    multiplier: Mapping[str, str] | None = None,
    adders_per_stage: int = 2,
    clock_mhz: float = DEFAULT_MHZ,
) -> DesignSpec:
    """Return a `DesignSpec`; an older spelling of its first fields."""
    return DesignSpec(max(most, 1), by_node or {}, multiplier or {}, adders_per_stage, clock_mhz)


def lower(
    graph: MaseGraph,
    parallelism: DesignSpec,
    *,
    depths: Mapping[Wire, int] | None = None,
    name: str = "top",
    weights: str | Mapping[str, str] | None = None,
    share_layers: int | bool | None = None,
) -> Lowered:
    """Return the design of `graph` by the settings `parallelism`, with FIFOs.

    `depths`: of the FIFOs; by default those that the design needs. `weights` (a place, or places
    by node with 'default' for the others) and `share_layers` replace those of the settings.
    """
    spec = parallelism
    if weights is not None:
        places = {"default": weights} if isinstance(weights, str) else dict(weights)
        spec = replace(spec, weights=places.pop("default", MEMORY), node_weights=places)
    if share_layers is not None:
        spec = replace(spec, share_layers=int(share_layers))
    lowered = Lowerer(graph, spec, name).run()
    if depths is None:
        depths = size_fifos(lowered.design)
    design = with_fifos(lowered.design, depths, has_head(spec.clock_mhz))
    return replace(lowered, design=design, depths=depths)


def unary(low: Lowerer, node: fx.Node, make: Callable[[Stream], Component]) -> Value:
    """Add the component that `make` builds for the stream of the only operand of `node`."""
    value = low.operand(node)
    return replace(value, wire=low.add(node, make(low.stream(value)), value))


def row_major(shape: Shape) -> Ints:
    """Return the order of torch."""
    return np.arange(math.prod(shape))


def pixel_order(shape: Shape) -> Ints:
    """Return the order with the channels of a pixel together: (C, H, W) as (H, W, C)."""
    axes = (*range(1, len(shape)), 0)
    return np.arange(math.prod(shape)).reshape(shape).transpose(axes).reshape(-1)


def pixel_shape(shape: Shape) -> Shape:
    """Return the shape of an image's stream: (C, H, W) -> (H, W, C)."""
    return (*shape[1:], shape[0])


class Lowerer:
    """Builder of a design: walks the graph once."""

    def __init__(self, graph: MaseGraph, parallelism: DesignSpec, name: str = "top") -> None:
        check_supported(graph)
        check_finite(graph)
        parallelism.check_nodes(node.name for node in graph.fx_graph.nodes)
        self.graph = graph
        self.parallelism = parallelism
        self.storage = Storage(parallelism.weights, parallelism.node_weights)
        self.external: set[str] = set()
        self.builder = Builder(name)
        self.needed = self._needed()
        self.values: dict[fx.Node, Value] = {}
        self.components: dict[str, Component] = {}
        self.inputs: dict[str, Value] = {}
        self.outputs: dict[str, Value] = {}
        self._made: dict[tuple[Wire, Component], Wire] = {}

    def run(self) -> Lowered:
        """Lower every node that the outputs need, in turn."""
        numbers = {n: k for k, n in enumerate(self.graph.fx_graph.find_nodes(op="placeholder"))}
        for node in self.graph.fx_graph.nodes:
            if node not in self.needed or node.op == "get_attr":  # read where it is used
                continue
            if node.op == "placeholder":
                self._input(node, numbers[node])
            elif node.op == "output":
                self._output(node)
            else:
                self._call(node)
        rows = {n.name: (n, find_op(n, self.graph.custom_ops)) for n in self.graph.fx_graph.nodes}
        ops = {name: op.name if op else node.op for name, (node, op) in rows.items()}
        self.storage.check(ops, self.external)
        self.storage.warn_of_mxint(
            n for n, c in self.components.items() if c.kind == "mxint_linear"
        )
        values = {node.name: value for node, value in self.values.items()}
        if not self.parallelism.share_layers:
            design = self._reloadable(self.builder.build())
            return Lowered(design, self.inputs, self.outputs, self.components, values)
        shared = sharing.share_layers(self.builder.plain(), self.parallelism.share_layers)
        return Lowered(
            self._reloadable(with_forks(shared.design)),
            self.inputs,
            _moved(self.outputs, shared.streams),
            {**self.components, **shared.components},
            _moved(values, shared.streams),
        )

    def _reloadable(self, design: Design) -> Design:
        """Return `design` with the stages whose weights can be written at run time."""
        names = [stage.name for stage in design.stages if has_streamed(stage.component)]
        names = [name for name in names if self.storage.is_reloaded(name)]
        nodes = [n for n in self.graph.fx_graph.nodes if self.storage.is_reloaded(n.name)]
        for node in nodes:
            component = self.components.get(node.name)
            if component is not None and (problem := self._fixed_weights(node, component)):
                allowed = f"Allowed: {ALLOWED_RELOAD}; or weights.{node.name} = '{MEMORY}'"
                raise self.refuse(node, f"weights = '{RELOAD}', and {problem}", allowed)
        self.storage.check_reload({n.name: self.components.get(n.name) for n in nodes}, names)
        return replace(design, reloaded=tuple(names))

    def _fixed_weights(self, node: fx.Node, component: Component) -> str:
        """Return why the weights of `node` cannot be written; empty if they can, or it has none."""
        if has_streamed(component) or not self._has_parameters(node):
            return ""
        how = self.parallelism.multiplier_of(node.name)
        kind = f"multiplier '{how}'" if how in CONSTANT_PRODUCTS else f"'{component.kind}'"
        return f"its weights are part of the logic of {kind}"

    def _has_parameters(self, node: fx.Node) -> bool:
        sources = [each for each in node.all_input_nodes if each.op == "get_attr"]
        tensors = [attribute(self.graph, each) for each in sources]
        module = node_module(node) if node.op == "call_module" else None
        own = [] if module is None else list(module.parameters())
        return any(isinstance(each, nn.Parameter) for each in (*tensors, *own))

    def _call(self, node: fx.Node) -> None:
        self._check_in_place(node)
        try:
            value = self.lowering(node).lower(self, node)
            blocked = mxint_values.result_blocks(node)
            if value is not None and blocked is not None:
                lanes = mxint_values.block_lanes(self, node, value, blocked)
                name = f"{node.name}_mxint"
                value = mxint_values.to_blocks(self, node, name, value, blocked, lanes)
        except ConfigError as error:  # of a component, which does not know the node
            raise HardwareError(f"node '{node.name}' ({self.op(node).name}): {error}") from error
        if value is not None:
            self.values[node] = value

    def op(self, node: fx.Node) -> Op:
        """Return the row of `node` in the op table."""
        row = find_op(node, self.graph.custom_ops)
        assert row is not None, f"node '{node.name}' was not checked"
        return row

    def lowering(self, node: fx.Node) -> Lowering:
        """Return the function that lowers the op of `node`."""
        return LOWERINGS[self.op(node).rtl]

    def _needed(self) -> set[fx.Node]:
        """Return the nodes that the outputs depend on; readers of sizes alone need nothing."""
        needed: set[fx.Node] = set()
        for node in reversed(self.graph.fx_graph.nodes):
            readers = (user for user in node.users if user in needed)
            is_read = any(not self._reads_size(n) for n in readers)
            if node.op == "output" or is_read or self._reads_size(node):
                needed.add(node)
        return needed

    def _reads_size(self, node: fx.Node) -> bool:
        is_call = node.op not in ("output", "placeholder", "get_attr")
        return is_call and self.lowering(node).reads_size and not gives_tensor(node)

    def _needed_op(self, node: fx.Node) -> Op | None:
        return self.op(node) if node in self.needed else None

    def _check_in_place(self, node: fx.Node) -> None:
        is_module = node.op == "call_module"
        writes = getattr(node_module(node), "inplace", False) if is_module else is_in_place(node)
        if writes and any(len(n.users) > 1 for n in node.all_input_nodes[:1]):
            raise self.refuse(
                node,
                "it writes in place what others read",
                "Allowed: operations that give a new tensor",
            )

    def _input(self, node: fx.Node, number: int) -> None:
        shape = tuple(mase_meta(node).common["results"]["data_out_0"]["shape"])[1:]
        users = [user for user in node.users if user in self.needed and user.op != "output"]
        wants_pixels = len(shape) > 1 and bool(users) and self.lowering(users[0]).takes_pixels
        order = pixel_order(shape) if wants_pixels else row_major(shape)
        stream_shape = pixel_shape(shape) if wants_pixels else shape
        lanes, _ = self.parallelism.of(node.name, stream_shape[-1], stream_shape[-1])
        name = f"data_in_{number}"
        stream = Stream(stream_shape, lanes, self._input_format(node))
        self.inputs[name] = Value(self.builder.input(name, stream), shape, order)
        self.values[node] = self.inputs[name]

    def _input_format(self, node: fx.Node) -> Fixed:
        """Return the format of an input port: that of its readers, or a union of theirs.

        A reader that applies no format takes the numbers that the port has.
        """
        own = fixed_formats.result_format(node)
        if own is not None:
            return own
        if mxint_values.result_blocks(node) is not None:
            raise self.refuse(node, "an input in MXINT", "Allowed: 'fixed'; what reads it may be")
        dtype = mase_meta(node).common["results"]["data_out_0"].torch_dtype
        is_whole = dtype is not None and not dtype.is_floating_point
        if dtype is torch.bool or (is_whole and self._is_mask(node)):
            return TRUTH
        widths = self._whole_widths(node)
        if widths and all(widths):
            return Fixed(max(widths), 0, is_signed=False)
        read = fixed_formats.formats_read(node, self._needed_op)
        listed = [number for number in read if number is not None]
        if not listed:
            raise HardwareError(
                f"node '{node.name}': nothing that reads this input brings it to a number format. "
                f"Quantise what reads it, or set type 'fixed' and precision [width, frac_width] "
                f"of its results.data_out_0 by hand."
            )
        return listed[0] if len(listed) == 1 else fixed_formats.union(listed)

    def _whole_widths(self, node: fx.Node) -> list[int]:
        """Return the bits of the whole numbers that each reader of `node`, behind views, takes."""
        widths: list[int] = []
        for user in (each for each in node.users if each in self.needed):
            is_view = user.op != "output" and self.lowering(user).is_wiring
            widths += self._whole_widths(user) if is_view else [whole_width(user)]
        return widths

    def _is_mask(self, node: fx.Node) -> bool:
        """Return whether readers only compare an input with 0."""
        users = [user for user in node.users if user in self.needed]
        return bool(users) and all(
            user.target in (torch.ne, torch.eq) and user.args == (node, 0) for user in users
        )

    def _output(self, node: fx.Node) -> None:
        for number, result in enumerate(_results(node.args[0])):
            if not isinstance(result, fx.Node) or result not in self.values:
                raise HardwareError(f"node 'output': result {number} is no tensor of the graph.")
            value = mxint_values.plainly(self, f"data_out_{number}_plain", self.values[result])
            width = self.stream(value).format.width
            if width > EXACT_WIDTH:
                raise self.refuse(
                    result,
                    f"an output of {width} bits",
                    f"Allowed: {EXACT_WIDTH}. Quantise its result: data_out_width, "
                    f"data_out_frac_width",
                )
            self.builder.output(f"data_out_{number}", value.wire)
            self.outputs[f"data_out_{number}"] = value

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes whose results are the operands data_in_0, data_in_1 … of `node`."""
        return list(operand_nodes(node, self.op(node)).values())

    def operand(self, node: fx.Node, number: int = 0) -> Value:
        """Return an operand of `node`, in the format that the node applies."""
        sources = self.operands(node)
        if number >= len(sources) or sources[number] not in self.values:
            raise self.refuse(node, "a constant operand", "Allowed: tensors that are computed")
        value = self.values[sources[number]]
        name = f"{node.name}_cast_{number}"
        shared = mxint_values.operand_blocks(node, f"data_in_{number}")
        number_format = None if shared else fixed_formats.operand_format(node, f"data_in_{number}")
        value = mxint_values.plainly(self, f"{name}_plain", value, number_format)
        if shared is not None:
            return mxint_values.there_and_back(self, node, name, value, shared)
        return value if number_format is None else self.cast(name, value, number_format)

    def cast(self, name: str, value: Value, number_format: Fixed) -> Value:
        """Return `value` in another format, by a stage `name` if it needs one."""
        stream = self.stream(value)
        if number_format.holds(stream.format):
            return value
        return replace(value, wire=self.builder.add(name, Cast(stream, number_format), value.wire))

    def stream(self, value: Value) -> Stream:
        """Return the stream of `value`."""
        return self.builder.stream(value.wire)

    def arrange(self, node: fx.Node, value: Value, order: Ints, shape: Shape) -> Value:
        """Return `value` streamed in `order`, as a stream of `shape`; reordered if it differs."""
        if np.array_equal(value.order, order):
            return value
        place = np.empty_like(value.order)
        place[value.order] = np.arange(len(place))
        return Value(self.gather(node, value, place[order], shape), value.shape, order)

    def gather(self, node: fx.Node, value: Value, places: Ints, shape: Shape) -> Wire:
        """Return the elements of the stream of `value` at `places`, as a stream of `shape`.

        An equal stage is used again.
        """
        stream = self.stream(value)
        lanes = math.gcd(stream.lanes, shape[-1])
        if not moves_beats(places, lanes) and len(np.unique(places)) < len(places):
            lanes = 1  # a beat apart and again: one element at a time
        source = Stream((stream.elements,), lanes, stream.format)
        component = Reorder(source, tuple(int(i) for i in places), shape)
        return self.once(f"{node.name}_reorder_{value.wire.stage}", component, value.wire)

    def once(self, name: str, component: Component, wire: Wire) -> Wire:
        """Add a stage `name`, or return the one that does the same with `wire` already."""
        key = (wire, component)
        if key not in self._made:
            self._made[key] = self.builder.add(self.builder.fresh(name), component, wire)
        return self._made[key]

    def pixels(self, node: fx.Node, value: Value) -> Value:
        """Return an image, streamed pixel by pixel."""
        return self.arrange(node, value, pixel_order(value.shape), pixel_shape(value.shape))

    def takes_weights(self, node: fx.Node) -> bool:
        """Return whether the weights of `node` come from outside."""
        return self.storage.is_external(node.name)

    def weight_place(self, node: fx.Node) -> str:
        """Return the place of the weights of `node`."""
        return self.storage.place(node.name)

    def weight_port(self, node: fx.Node, stream: Stream, codes: Ints) -> Wire:
        """Add an input by which the outside sends the weights of `node`, `codes` per vector."""
        self.external.add(node.name)
        return self.builder.input(f"{node.name}_weight", stream, codes[None])

    def add(self, node: fx.Node, component: Component, *values: Value | Wire) -> Wire:
        """Add a stage named after the node, and a cast if its result needs another format."""
        component = component.for_clock(self.parallelism.clock_mhz)
        self.components[node.name] = component
        wires = [v.wire if isinstance(v, Value) else v for v in values]
        wire = self.builder.add(node.name, component, *wires)
        number_format = self.wanted_format(node)
        if number_format is not None and not number_format.holds(component.output.format):
            cast = Cast(component.output, number_format)
            wire = self.builder.add(f"{node.name}_cast", cast, wire)
        return wire

    def wanted_format(self, node: fx.Node) -> Fixed | None:
        """Return the format for the result of `node`: its own, else that of all its readers.

        None if the result stays exact.
        """
        if mxint_values.result_blocks(node) is not None:
            return None  # blocks are made of exact numbers
        own = fixed_formats.result_format(node)
        return own or fixed_formats.one_format(fixed_formats.formats_read(node, self._needed_op))

    def result_format(self, node: fx.Node, exact: Span | None = None, why: str = "") -> Fixed:
        """Return the wanted format, else one that holds all of `exact`.

        Results that are no binary fractions (`exact` is None; `why` has the reason) need a format.
        """
        number_format = self.wanted_format(node)
        if number_format is not None:
            return number_format
        if exact is None and mxint_values.result_blocks(node) is not None:
            problem = f"{why or 'its result is no binary fraction'}, of which MXINT could be made"
            raise self.refuse(node, problem, "Allowed: its result in 'integer'")
        if exact is None:
            raise self.refuse(
                node,
                f"{why or 'its result is no fixed-point number'}, and it is not brought to one",
                "Quantise it (data_out_width, data_out_frac_width), or all that reads it in one "
                "format, or set type and precision of its results.data_out_0 by hand",
            )
        if exact.width > MAX_WIDTH:
            raise self.refuse(
                node,
                f"an exact result of {exact.width} bits",
                f"Allowed: {MAX_WIDTH}. Quantise its operands (data_in_width …) or its result "
                f"(data_out_width …)",
            )
        return exact.format

    def setting(self, node: fx.Node, name: str, default: Any, names: Sequence[str] = ()) -> Any:
        """Return a configuration value: the module's attribute, or the argument of the function.

        `names` are the arguments behind the first, of functions that have no signature.
        """
        if node.op == "call_module":
            return getattr(node_module(node), name, default)
        args = mase_meta(node).common["args"]
        if name in args:
            return args[name].get("value", default)
        rest = args["args"].value[1:] if "args" in args else ()
        return dict(zip(names, rest, strict=False)).get(name, default)

    def refuse(self, node: fx.Node, what: str, allowed: str) -> HardwareError:
        """Return an error that names node, op, the problem and what is allowed."""
        op = find_op(node, self.graph.custom_ops)
        return HardwareError(f"node '{node.name}' ({op.name if op else '?'}): {what}. {allowed}.")


def _moved(values: Mapping[str, Value], streams: Mapping[str, Wire | None]) -> dict[str, Value]:
    wires = {name: streams.get(value.wire.stage, value.wire) for name, value in values.items()}
    return {name: replace(values[name], wire=wire) for name, wire in wires.items() if wire}


def table_rows(node: fx.Node) -> int:
    """Return the rows of the table that `node` reads by number; 0 if it reads none."""
    module = node_module(node) if node.op == "call_module" else None
    return module.num_embeddings if isinstance(module, nn.Embedding) else 0


def whole_width(node: fx.Node) -> int:
    """Return the bits of the whole numbers without a sign that `node` reads; 0 if it reads none."""
    module = node_module(node) if node.op == "call_module" else None
    if isinstance(module, Thermometer):
        return module.width
    rows = table_rows(node)
    return max(1, (rows - 1).bit_length()) if rows else 0


def _results(output: Any) -> Iterator[Any]:
    """Yield the tensors that a model returns, through tuples, lists and mappings."""
    parts = output.values() if isinstance(output, Mapping) else output
    if isinstance(output, tuple | list | Mapping):
        for part in parts:
            yield from _results(part)
    else:
        yield output
