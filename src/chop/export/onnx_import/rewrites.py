"""Nodes of a file brought into the form of layers: constants folded, patterns made one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from chop.export.activation_rounding import Steps
from chop.export.onnx_import.budget import Budget
from chop.export.onnx_import.call import OPERATORS, OWN, Call, known_operators
from chop.export.onnx_import.gradients import gradient_nodes, is_gradient
from chop.export.onnx_import.host_values import Host
from chop.export.onnx_import.onnx_file import (
    BITS,
    MAIN,
    OnnxConstant,
    OnnxFile,
    OnnxNode,
    Subgraph,
    renamed_graph,
)
from chop.export.onnx_import.quantised import DOMAINS, Grid, bounds_of, check_rounding, quant_bounds
from chop.export.onnx_import.value_kinds import in_range, result_kind
from chop.files import shown

PROBLEMS = (
    *(RuntimeError, TypeError, ValueError, IndexError, KeyError),
    *(AttributeError, ArithmeticError, AssertionError, MemoryError),
)
"""Errors of torch and Python on invalid numbers of a file."""


UNFUSED = {"QLinearConv": 8, "QLinearMatMul": 8}
"""Operators on codes that are read as several nodes, and the fewest inputs that they have."""
NOT_FOLDED = ("If", "Loop", "SequenceEmpty", "SequenceConstruct", "SequenceInsert")
"""Operators that stay nodes if all inputs are constants."""


def run_node(call: Call, file: OnnxFile, budget: Budget) -> dict[str, Any]:
    """Return the outputs of a node; errors name file and node."""
    try:
        with budget:
            outputs = outputs_of(call)
        if call.scope.is_folding:
            budget.keep(*(value for value in outputs.values() if isinstance(value, Tensor)))
        return outputs
    except PROBLEMS as error:
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise file.fail(f"{call.node}: {words.rstrip('.')[:300]}.", error) from error


def outputs_of(call: Call) -> dict[str, Any]:
    """Return the outputs of a node by name."""
    node = call.node
    result = OPERATORS[node.domain, node.operator](call)
    kind = call.scope.kind(node.outputs[0])
    results = result if isinstance(result, tuple) else (in_range(result, kind, node.operator),)
    return {name: value for name, value in zip(node.outputs, results, strict=False) if name}


class Folded:
    """Nodes of a file after its constants are computed.

    `constants` are the tensors of the file, which `stored` names, and the computed ones. `grids`
    has the grids of quantised ones, `origins` the origin of copies and transposes.
    """

    is_folding = True
    has_open_sizes = False

    def __init__(self, file: OnnxFile) -> None:
        self.file = file
        self.constants: dict[str, OnnxConstant] = dict(file.constants)
        self.stored = set(file.constants)
        self.numbers: dict[str, Host | None] = {}
        self.grids: dict[str, Grid] = {}
        self.origins: dict[str, tuple[str, bool]] = {}
        self._kinds: dict[str, str | None] = {i.name: i.kind for i in file.inputs}
        self.nodes: list[OnnxNode] = []
        self.budget = Budget(file.size)
        self._names = {*file.constants, *(i.name for i in file.inputs)}
        self._names.update(name for node in file.nodes for name in node.outputs)
        for node in file.nodes:
            self._add(node)

    def _add(self, node: OnnxNode) -> None:
        parts = [node]
        if node.domain == MAIN and node.operator in UNFUSED:
            if len(node.inputs) < UNFUSED[node.operator]:
                raise self.file.fail(f"{node}: {len(node.inputs)} inputs. Allowed: 8 or 9.")
            parts = _unfused(node)
        elif is_gradient(node):
            parts = self._derivatives(node)
        for part in parts:
            if (part.domain, part.operator) not in OPERATORS:
                raise self.file.fail(f"{part}: not a known operator. Known: {known_operators()}.")
            self._kinds[part.outputs[0]] = result_kind(part, self.kind, self.kind_of)
            if part.domain == MAIN and part.operator in NOT_FOLDED:
                self._add_control(part)
            elif any(name and name not in self.constants for name in part.inputs):
                self.nodes.append(part)
            else:
                self._fold(part)

    def _derivatives(self, node: OnnxNode) -> list[OnnxNode]:
        """Return nodes that compute a gradient."""
        try:
            return gradient_nodes(node, self.nodes)
        except ValueError as error:
            raise self.file.fail(f"{node}: {error}.", error) from error

    def _add_control(self, node: OnnxNode) -> None:
        """Add a node with graphs; of an `If` with a constant condition, the nodes of the branch."""
        condition = self.constants.get(node.inputs[0]) if node.operator == "If" else None
        if condition is None or condition.values.numel() != 1:
            graphs = {k: v for k, v in node.attributes.items() if isinstance(v, Subgraph)}
            folded = {k: self._folded_graph(v) for k, v in graphs.items()}
            outer = tuple(dict.fromkeys(name for g in folded.values() for name in g.outer))
            attributes = {**node.attributes, **folded}
            self.nodes.append(replace(node, attributes=attributes, outer=outer))
            return
        branch = node.attributes.get("then_branch" if bool(condition.values) else "else_branch")
        if not isinstance(branch, Subgraph) or len(branch.outputs) < len(node.outputs):
            raise self.file.fail(f"{node}: no graph with {len(node.outputs)} outputs.")
        graph = self._entered(branch)
        for each in graph.nodes:
            self._add(each)
        for source, name in zip(graph.outputs, node.outputs, strict=False):
            parts: Any = {"inputs": (source,), "outputs": (name,), "attributes": {}, "outer": ()}
            self._add(replace(node, operator="Identity", **parts))

    def _folded_graph(self, graph: Subgraph) -> Subgraph:
        """Return a graph inside a node with its constants computed."""
        around, self.nodes = self.nodes, []
        graph = self._entered(graph)
        for node in graph.nodes:
            self._add(node)
        nodes, self.nodes = tuple(self.nodes), around
        return replace(graph, nodes=nodes, constants={})

    def _entered(self, graph: Subgraph) -> Subgraph:
        """Return a graph whose values have names of their own, with its constants stored."""
        new = renamed_graph(graph, self._names)
        self._names.update(new.own)
        self.constants.update(new.constants)
        self.stored.update(new.constants)
        return new

    def _fold(self, node: OnnxNode) -> None:
        outputs = run_node(Call(node, {}, self), self.file, self.budget)
        if not all(isinstance(value, Tensor) for value in outputs.values()):
            raise self.file.fail(f"{node}: a constant that is no tensor.")
        dtypes = {torch.float32: "FLOAT", torch.float64: "DOUBLE"}
        for name, value in outputs.items():
            kind = dtypes.get(value.dtype, str(value.dtype).removeprefix("torch.").upper())
            self.constants[name] = OnnxConstant(value.contiguous(), self._kinds.get(name) or kind)
        if node.operator == "Identity":
            self.origins[node.outputs[0]] = self.origin(node.inputs[0])
            self.constants[node.outputs[0]] = self.constants[node.inputs[0]]
        is_swap = node.operator == "Transpose" and node.attributes.get("perm", [1, 0]) == [1, 0]
        if is_swap and self.constants[node.inputs[0]].values.dim() == 2:
            base, is_turned = self.origin(node.inputs[0])
            self.origins[node.outputs[0]] = base, not is_turned

    def origin(self, name: str) -> tuple[str, bool]:
        """Return the constant that `name` comes from, and whether it is the transpose."""
        return self.origins.get(name, (name, False))

    # the methods of `Scope`, see there

    def kind_of(self, number: int) -> str:
        return self.file.kind_of(number, "a type")

    def is_fixed(self, name: str) -> bool:
        return True

    def note_grid(self, name: str, grid: Grid) -> None:
        self.grids[name] = grid

    def kind(self, name: str) -> str | None:
        constant = self.constants.get(name)
        return self._kinds.get(name) if constant is None else constant.kind

    def attached(self, name: str) -> Tensor:
        return self.constants[name].values

    def matrix(self, name: str, *, turned: bool) -> tuple[nn.Parameter, str]:
        raise ValueError(f"the layer of {shown(name)} has an input that is constant")

    def layer(self, key: tuple[Any, ...], hint: str, make: Callable[[], nn.Module]) -> Any:
        return make()

    def run_graph(self, graph: Subgraph, values: dict[str, Any]) -> list[Any]:
        raise AssertionError("nodes with graphs are not folded")


def _unfused(node: OnnxNode) -> list[OnnxNode]:
    """Return an operator on codes as the float one between dequantisation and quantisation."""
    base, inputs = node.outputs[0], node.inputs
    nodes: list[OnnxNode] = []

    def add(operator: str, names: tuple[str, ...], output: str, attributes: Any) -> str:
        parts: Any = {"inputs": names, "outputs": (output,), "attributes": dict(attributes)}
        nodes.append(replace(node, operator=operator, **parts))
        return output

    axis = {"axis": 0 if node.operator == "QLinearConv" else 1}
    floats = [
        add("DequantizeLinear", inputs[0:3], f"{base}:operand_0", {}),
        add("DequantizeLinear", inputs[3:6], f"{base}:operand_1", axis),
    ]
    if len(inputs) > 8 and inputs[8]:
        scale = add("Mul", (inputs[1], inputs[4]), f"{base}:bias_scale", {})
        names = (inputs[8], scale)
        floats.append(add("DequantizeLinear", names, f"{base}:bias", {"axis": 0}))
    core = node.operator.removeprefix("QLinear")
    result = add(core, tuple(floats), f"{base}:float", node.attributes)
    add("QuantizeLinear", (result, inputs[6], inputs[7]), base, {})
    return nodes


class Fused:
    """Nodes after patterns are fused: roundings of activations, linear layers."""

    def __init__(self, folded: Folded, nodes: Sequence[OnnxNode], outputs: Sequence[str]) -> None:
        self.folded, self.outputs = folded, outputs
        self.nodes = list(nodes)
        self._index()
        self.nodes = [self._rewritten(node, self._rounding) for node in self.nodes]
        self._index()
        self.nodes = [self._rewritten(node, self._layer) for node in self.nodes]
        needed, used = set(outputs), []
        for node in reversed(self.nodes):  # drop nodes without a path to an output
            if needed.intersection(node.outputs):
                used.append(self._with_graphs(node))
                needed.update(node.reads)
        self.nodes = used[::-1]

    def _with_graphs(self, node: OnnxNode) -> OnnxNode:
        """Return the node with the patterns in its graphs fused."""
        graphs = {
            key: replace(graph, nodes=tuple(Fused(self.folded, graph.nodes, graph.outputs).nodes))
            for key, graph in node.attributes.items()
            if isinstance(graph, Subgraph)
        }
        return replace(node, attributes={**node.attributes, **graphs}) if graphs else node

    def _index(self) -> None:
        self.maker = {name: node for node in self.nodes for name in node.outputs}
        self.uses = Counter(name for node in self.nodes for name in node.reads)
        self.uses.update(self.outputs)

    def _rewritten(self, node: OnnxNode, rewrite: Callable[[OnnxNode], OnnxNode]) -> OnnxNode:
        try:
            return rewrite(node)
        except PROBLEMS as error:
            raise self.folded.file.fail(f"{node}: {error}.", error) from error

    def _constant(self, name: str) -> Tensor | None:
        constant = self.folded.constants.get(name)
        return None if constant is None else constant.values

    def _rounding(self, node: OnnxNode) -> OnnxNode:
        if node.domain == MAIN and node.operator == "DequantizeLinear":
            return self._quantise_dequantise(node)
        is_quant = node.domain in DOMAINS and node.operator in ("Quant", "IntQuant")
        return self._quant(node) if is_quant else node

    def _quantise_dequantise(self, node: OnnxNode) -> OnnxNode:
        """Fuse `DequantizeLinear` of `QuantizeLinear` with the same scale."""
        before = self.maker.get(node.inputs[0])
        if before is None or before.operator != "QuantizeLinear" or len(before.inputs) < 3:
            return node
        if before.attributes.get("block_size") or not self._same_settings(before, node):
            return node
        scale, zero = self._constant(before.inputs[1]), self._constant(before.inputs[2])
        kind = self.folded.constants[before.inputs[2]].kind if zero is not None else ""
        if scale is None or zero is None or BITS.get(kind, 32) > 16:
            return node
        first = int(zero.reshape(-1)[0])
        if not bool((zero == first).all()) or scale.dim() > 1 or not bool((scale > 0).all()):
            return node
        low, high = bounds_of(kind)
        source, low, high = self._clamped(before.inputs[0], scale, first, low, high)
        axis = before.attributes.get("axis", 1)
        steps = Steps(_values(scale), first, low, high, axis)
        return self._rounds(node, source, steps)

    def _same_settings(self, before: OnnxNode, node: OnnxNode) -> bool:
        if len(node.inputs) != len(before.inputs):
            return False
        for a, b in zip(before.inputs[1:], node.inputs[1:], strict=True):
            one, other = self._constant(a), self._constant(b)
            if one is None or other is None or not torch.equal(one, other):
                return False
        return bool(before.attributes.get("axis", 1) == node.attributes.get("axis", 1))

    def _clamped(
        self, name: str, scale: Tensor, zero: int, low: int, high: int
    ) -> tuple[str, int, int]:
        """Return the value before a clamp to multiples of the scale, and the bounds."""
        bounds = {"Max": low, "Min": high}
        source = name
        for kind in ("Min", "Max"):
            node = self.maker.get(source)
            if node is None or node.operator != kind or len(node.inputs) != 2:
                return name, low, high
            bound = self._constant(node.inputs[1])
            if bound is None or bound.shape not in (scale.shape, torch.Size([])):
                return name, low, high
            whole = torch.round(bound / scale)
            if not torch.equal(whole.reshape(-1), whole.reshape(-1)[:1].expand(whole.numel())):
                return name, low, high
            if not torch.equal(scale * whole, bound.expand_as(scale * whole)):
                return name, low, high
            bounds[kind] = int(whole.reshape(-1)[0]) + zero
            source = node.inputs[0]
        bottom, top = bounds["Max"], bounds["Min"]
        return (source, bottom, top) if low <= bottom < top <= high else (name, low, high)

    def _quant(self, node: OnnxNode) -> OnnxNode:
        scale, zero, bits = (self._constant(name) for name in node.inputs[1:4])
        if scale is None or zero is None or bits is None or zero.numel() != 1:
            return node
        check_rounding(Call(node, {}, self.folded))
        signs = (bool(node.attributes.get(k, d)) for k, d in (("signed", 1), ("narrow", 0)))
        low, high = quant_bounds(float(bits.reshape(-1)[0]), *signs)
        wide = [d for d, size in enumerate(scale.shape) if size > 1]
        if len(wide) > 1 or float(zero) != int(zero) or not bool((scale > 0).all()):
            return node
        axis = wide[0] - scale.dim() if wide else -1
        steps = Steps(_values(scale.reshape(-1)), int(zero), low, high, axis)
        return self._rounds(node, node.inputs[0], steps)

    def _rounds(self, node: OnnxNode, source: str, steps: Steps) -> OnnxNode:
        return OnnxNode("Round", OWN, 1, node.name, (source,), (node.outputs[0],), {"steps": steps})

    def _layer(self, node: OnnxNode) -> OnnxNode:
        if node.domain != MAIN:
            return node
        if node.operator == "Gemm":
            return self._gemm(node)
        if node.operator == "MatMul" and self._is_matrix(node.inputs[1]):
            return self._linear(node, node.inputs[0], node.inputs[1], "", True)
        return self._sum(node) if node.operator == "Add" else node

    def _is_matrix(self, name: str) -> bool:
        values = self._constant(name)
        return values is not None and values.dim() == 2 and values.is_floating_point()

    def _gemm(self, node: OnnxNode) -> OnnxNode:
        plain = all(node.attributes.get(k, d) == d for k, d in (("alpha", 1.0), ("transA", 0)))
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        turned = not node.attributes.get("transB", 0)
        matrix = self._constant(node.inputs[1])
        if not plain or matrix is None or matrix.dim() != 2:
            return node
        is_scaled = node.attributes.get("beta", 1.0) != 1.0
        if bias and (is_scaled or not self._is_bias(bias, matrix.shape[1 if turned else 0])):
            return node
        return self._linear(node, node.inputs[0], node.inputs[1], bias, turned)

    def _is_bias(self, name: str, size: int) -> bool:
        values = self._constant(name)
        return values is not None and tuple(values.shape) == (size,)

    def _sum(self, node: OnnxNode) -> OnnxNode:
        """Fuse a convolution, or the product with a matrix, and the addition of a bias."""
        for source, bias in (node.inputs, node.inputs[::-1]):
            before = self.maker.get(source)
            if before is None or self.uses[source] != 1:
                continue
            if before.operator == "Conv" and before.domain == MAIN:
                return self._convolution(node, before, bias)
            if before.operator != "MatMul":
                continue
            matrix = self._constant(before.inputs[1])
            if matrix is None or not self._is_matrix(before.inputs[1]):
                continue
            if self._has_rank(before.inputs[0]):  # a row is added to rows
                bias = self._vector(bias, [(1, matrix.shape[1])]) or bias
            if self._is_bias(bias, matrix.shape[1]):
                return self._linear(node, before.inputs[0], before.inputs[1], bias, True)
        return node

    def _has_rank(self, name: str) -> bool:
        """Return whether a value is known to have two dimensions or more."""
        maker = self.maker.get(name)
        if maker is None or maker.domain != MAIN:
            return False
        shape = self._constant(maker.inputs[1]) if maker.operator == "Reshape" else None
        return maker.operator in ("Flatten", "Gemm") or (shape is not None and shape.numel() > 1)

    def _vector(self, name: str, sizes: Sequence[tuple[int, ...]]) -> str:
        """Return the name of a constant of one of `sizes` as a vector; "" for another value."""
        constant = self.folded.constants.get(name)
        if constant is None or tuple(constant.values.shape) not in sizes:
            return ""
        vector = f"{name}:vector"
        self.folded.constants[vector] = replace(constant, values=constant.values.reshape(-1))
        self.folded.stored.add(vector)
        return vector

    def _convolution(self, node: OnnxNode, before: OnnxNode, added: str) -> OnnxNode:
        """Return a convolution with `added` as its bias; `node` if that is no number per channel.

        The bias of a convolution is a vector; the constant of the sum has sizes of 1 behind it.
        """
        weight = self._constant(before.inputs[1])
        has_bias = len(before.inputs) > 2 and before.inputs[2]
        if has_bias or weight is None or not weight.is_floating_point():
            return node
        per_channel = (len(weight), *[1] * (weight.dim() - 2))
        bias = self._vector(added, [per_channel, (1, *per_channel)])
        inputs = (*before.inputs[:2], bias)
        return replace(before, inputs=inputs, outputs=node.outputs) if bias else node

    def _linear(self, node: OnnxNode, x: str, weight: str, bias: str, turned: bool) -> OnnxNode:
        inputs = (x, weight, bias) if bias else (x, weight)
        return OnnxNode("Linear", OWN, 1, node.name, inputs, node.outputs, {"turned": turned})


def _values(scale: Tensor) -> tuple[float, ...]:
    return tuple(scale.double().reshape(-1).tolist())
