"""Nodes of a file brought into the form of layers: constants folded, patterns made one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from chop.export.onnx_import.budget import Budget
from chop.export.onnx_import.call import OPERATORS, OWN, Call, known_operators
from chop.export.onnx_import.file import BITS, MAIN, Constant, Node, OnnxFile
from chop.export.onnx_import.quantised import DOMAINS, Grid, bounds_of, check_rounding, quant_bounds
from chop.export.onnx_import.values import Host
from chop.export.rounding import Steps
from chop.files import shown

PROBLEMS = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    MemoryError,
)
"""What torch and Python raise where the numbers of a file make no sense."""


def run_node(call: Call, file: OnnxFile, budget: Budget) -> dict[str, Any]:
    """Return the outputs of a node; what goes wrong is an error that names file and node."""
    try:
        with budget:
            made = outputs_of(call)
        if call.scope.is_folding:
            budget.keep(*(value for value in made.values() if isinstance(value, Tensor)))
        return made
    except PROBLEMS as error:
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise file.fail(f"{call.node}: {words.rstrip('.')[:300]}.", error) from error


def outputs_of(call: Call) -> dict[str, Any]:
    """The outputs of a node by name."""
    node = call.node
    made = OPERATORS[node.domain, node.operator](call)
    results = made if isinstance(made, tuple) else (made,)
    return {name: value for name, value in zip(node.outputs, results, strict=False) if name}


class Folded:
    """The nodes that are left when what is constant has been computed.

    `constants` are the tensors of the file and those computed; `grids` say which are quantised,
    `origins` which are another one or its transpose.
    """

    is_folding = True

    def __init__(self, file: OnnxFile) -> None:
        self.file = file
        self.constants: dict[str, Constant] = dict(file.constants)
        self.numbers: dict[str, Host | None] = {}
        self.grids: dict[str, Grid] = {}
        self.origins: dict[str, tuple[str, bool]] = {}
        self._kinds: dict[str, str] = {}
        self.nodes: list[Node] = []
        self.budget = Budget(file.size)
        for node in file.nodes:
            for part in self._parts(node):
                self._check(part)
                self._take(part)

    def _parts(self, node: Node) -> list[Node]:
        if node.domain != MAIN or node.operator not in ("QLinearConv", "QLinearMatMul"):
            return [node]
        if len(node.inputs) < 8:
            raise self.file.fail(f"{node}: {len(node.inputs)} inputs. Allowed: 8 or 9.")
        return _unfused(node)

    def _check(self, node: Node) -> None:
        if (node.domain, node.operator) not in OPERATORS:
            raise self.file.fail(f"{node}: not a known operator. Known: {known_operators()}.")

    def _take(self, node: Node) -> None:
        if any(name and name not in self.constants for name in node.inputs):
            self.nodes.append(node)
            return
        made = run_node(Call(node, {}, self), self.file, self.budget)
        if not all(isinstance(value, Tensor) for value in made.values()):
            raise self.file.fail(f"{node}: a constant that is no tensor.")
        for name, value in made.items():
            kind = self._kinds.get(name, _kind(value))
            self.constants[name] = Constant(value.contiguous(), kind)
        self._trace_origin(node)

    def _trace_origin(self, node: Node) -> None:
        if node.operator == "Identity":
            self.origins[node.outputs[0]] = self.origin(node.inputs[0])
            self._keep_kind(node)
        given = self.constants[node.inputs[0]].values if node.inputs else None
        is_matrix = given is not None and given.dim() == 2
        is_transpose = node.operator == "Transpose" and is_matrix
        if is_transpose and node.attributes.get("perm", [1, 0]) == [1, 0]:
            base, is_turned = self.origin(node.inputs[0])
            self.origins[node.outputs[0]] = base, not is_turned

    def _keep_kind(self, node: Node) -> None:
        given = self.constants[node.inputs[0]]
        self.constants[node.outputs[0]] = given

    def origin(self, name: str) -> tuple[str, bool]:
        """The constant that `name` comes from, and whether it is the transpose."""
        return self.origins.get(name, (name, False))

    # -- what running nodes asks of a scope ------------------------------------------------

    def kind_of(self, number: int) -> str:
        """The name of a type."""
        return self.file.kind_of(number, "a type")

    def is_fixed(self, name: str) -> bool:
        """All is constant here."""
        return True

    def note_grid(self, name: str, grid: Grid) -> None:
        """Remember what a constant is a multiple of."""
        self.grids[name] = grid

    def note_kind(self, name: str, kind: str) -> None:
        """Remember the type of a constant."""
        self._kinds[name] = kind

    def attached(self, name: str) -> Tensor:
        """The constant itself."""
        return self.constants[name].values

    def matrix(self, name: str, *, turned: bool) -> tuple[nn.Parameter, str]:
        """No layers are made of constants alone."""
        raise ValueError(f"the layer of {shown(name)} has an input that is constant")

    def layer(self, key: tuple[Any, ...], hint: str, make: Callable[[], nn.Module]) -> Any:
        """A layer for this one call."""
        return make()


def _kind(value: Tensor) -> str:
    names = {torch.float32: "FLOAT", torch.float64: "DOUBLE"}
    return names.get(value.dtype, str(value.dtype).removeprefix("torch.").upper())


def _unfused(node: Node) -> list[Node]:
    """An operator on codes: the float one between `DequantizeLinear` and `QuantizeLinear`."""
    base, given = node.outputs[0], node.inputs
    made = []
    floats = []
    for i, place in enumerate((0, 3)):
        name = f"{base}:operand_{i}"
        axis = {"axis": 0 if node.operator == "QLinearConv" else 1}
        parts = (*given[place : place + 3],)
        made.append(_beside(node, "DequantizeLinear", parts, name, axis if i else {}))
        floats.append(name)
    if len(given) > 8 and given[8]:
        made.append(_beside(node, "Mul", (given[1], given[4]), f"{base}:bias_scale"))
        parts = (given[8], f"{base}:bias_scale")
        made.append(_beside(node, "DequantizeLinear", parts, f"{base}:bias", {"axis": 0}))
        floats.append(f"{base}:bias")
    core = node.operator.removeprefix("QLinear")
    made.append(_beside(node, core, tuple(floats), f"{base}:float", node.attributes))
    last = (f"{base}:float", given[6], given[7])
    return [*made, _beside(node, "QuantizeLinear", last, base)]


def _beside(
    node: Node,
    name: str,
    inputs: tuple[str, ...],
    output: str,
    attributes: dict[str, Any] | None = None,
) -> Node:
    return replace(
        node, operator=name, inputs=inputs, outputs=(output,), attributes=dict(attributes or {})
    )


class Fused:
    """The nodes with patterns made one: roundings of activations, linear layers."""

    def __init__(self, folded: Folded) -> None:
        self.folded = folded
        self.nodes = list(folded.nodes)
        self._index()
        self.nodes = [self._rewritten(node, self._rounding) for node in self.nodes]
        self._index()
        self.nodes = [self._rewritten(node, self._layer) for node in self.nodes]
        self.nodes = self._needed()

    def _index(self) -> None:
        outputs = self.folded.file.outputs
        self.maker = {name: node for node in self.nodes for name in node.outputs}
        self.uses = Counter(name for node in self.nodes for name in node.inputs)
        self.uses.update(outputs)

    def _rewritten(self, node: Node, rewrite: Callable[[Node], Node]) -> Node:
        try:
            return rewrite(node)
        except PROBLEMS as error:
            raise self.folded.file.fail(f"{node}: {error}.", error) from error

    def _needed(self) -> list[Node]:
        """The nodes on which an output depends."""
        wanted, kept = set(self.folded.file.outputs), []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                kept.append(node)
                wanted.update(node.inputs)
        return kept[::-1]

    def _constant(self, name: str) -> Tensor | None:
        found = self.folded.constants.get(name)
        return None if found is None else found.values

    # -- roundings -------------------------------------------------------------------------

    def _rounding(self, node: Node) -> Node:
        if node.domain == MAIN and node.operator == "DequantizeLinear":
            return self._quantise_dequantise(node)
        is_quant = node.domain in DOMAINS and node.operator in ("Quant", "IntQuant")
        return self._quant(node) if is_quant else node

    def _quantise_dequantise(self, node: Node) -> Node:
        """`DequantizeLinear` of `QuantizeLinear` at the same scale."""
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

    def _same_settings(self, before: Node, node: Node) -> bool:
        pairs = list(zip(before.inputs[1:], node.inputs[1:], strict=False))
        if len(node.inputs) != len(before.inputs):
            return False
        for a, b in pairs:
            one, other = self._constant(a), self._constant(b)
            if one is None or other is None or not torch.equal(one, other):
                return False
        return bool(before.attributes.get("axis", 1) == node.attributes.get("axis", 1))

    def _clamped(
        self, name: str, scale: Tensor, zero: int, low: int, high: int
    ) -> tuple[str, int, int]:
        """The value before bounds that whole numbers make, and those bounds."""
        found = {"Max": low, "Min": high}
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
            found[kind] = int(whole.reshape(-1)[0]) + zero
            source = node.inputs[0]
        bottom, top = found["Max"], found["Min"]
        return (source, bottom, top) if low <= bottom < top <= high else (name, low, high)

    def _quant(self, node: Node) -> Node:
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

    def _rounds(self, node: Node, source: str, steps: Steps) -> Node:
        return Node("Round", OWN, 1, node.name, (source,), (node.outputs[0],), {"steps": steps})

    # -- linear layers ---------------------------------------------------------------------

    def _layer(self, node: Node) -> Node:
        if node.domain != MAIN:
            return node
        if node.operator == "Gemm":
            return self._gemm(node)
        if node.operator == "MatMul" and self._is_matrix(node.inputs[1]):
            return self._linear(node, node.inputs[0], node.inputs[1], "", True)
        return self._sum(node) if node.operator == "Add" else node

    def _is_matrix(self, name: str) -> bool:
        found = self._constant(name)
        return found is not None and found.dim() == 2 and found.is_floating_point()

    def _gemm(self, node: Node) -> Node:
        plain = all(node.attributes.get(k, d) == d for k, d in (("alpha", 1.0), ("transA", 0)))
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        turned = not node.attributes.get("transB", 0)
        matrix = self._constant(node.inputs[1])
        if not plain or matrix is None or matrix.dim() != 2:
            return node
        fits = not bias or (node.attributes.get("beta", 1.0) == 1.0)
        fits = fits and (not bias or self._is_bias(bias, matrix.shape[1 if turned else 0]))
        return self._linear(node, node.inputs[0], node.inputs[1], bias, turned) if fits else node

    def _is_bias(self, name: str, size: int) -> bool:
        found = self._constant(name)
        return found is not None and tuple(found.shape) == (size,)

    def _sum(self, node: Node) -> Node:
        """The product with a matrix, and a bias."""
        for source, bias in (node.inputs, node.inputs[::-1]):
            before = self.maker.get(source)
            if before is None or before.operator != "MatMul" or self.uses[source] != 1:
                continue
            matrix = self._constant(before.inputs[1])
            if matrix is None or not self._is_matrix(before.inputs[1]):
                continue
            if self._is_bias(bias, matrix.shape[1]):
                return self._linear(node, before.inputs[0], before.inputs[1], bias, True)
        return node

    def _linear(self, node: Node, x: str, weight: str, bias: str, turned: bool) -> Node:
        inputs = (x, weight, bias) if bias else (x, weight)
        return Node("Linear", OWN, 1, node.name, inputs, node.outputs, {"turned": turned})


def _values(scale: Tensor) -> tuple[float, ...]:
    return tuple(scale.double().reshape(-1).tolist())
