"""Content of an ONNX file, checked before anything runs: files may be damaged or forged."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.errors import ExportError
from chop.export.onnx_import.onnx_functions import all_nodes, expanded_nodes
from chop.export.onnx_package import onnx_package
from chop.files import check_stored, shown, stored_bytes

LARGEST_FILE = (1 << 31) - 1
"""Limit on the bytes of a file, of protocol buffers; tensors may be in other files."""
MOST_NODES = 1 << 16
"""Limit on the nodes of a graph with its functions inlined."""
SHARED_BYTES = 1 << 24
"""Bytes that initialisers may read of external files beyond twice the size of these."""
UNKNOWN = -1
"""Number that some programs write for an open size."""
MAIN = ""
"""Domain of ONNX itself."""
OPSETS = (6, 28)
"""Supported opsets of ONNX, first and last."""
BITS = {"INT4": 4, "UINT4": 4, "INT8": 8, "UINT8": 8, "INT16": 16, "UINT16": 16, "INT32": 32}
TYPES: dict[str, torch.dtype] = {
    "FLOAT": torch.float32,
    "DOUBLE": torch.float64,
    "FLOAT16": torch.float16,
    "BFLOAT16": torch.bfloat16,
    "INT64": torch.int64,
    "INT32": torch.int32,
    "INT16": torch.int16,
    "INT8": torch.int8,
    "INT4": torch.int8,
    "UINT8": torch.uint8,
    "UINT4": torch.uint8,
    "UINT16": torch.int32,
    "UINT32": torch.int64,
    "UINT64": torch.int64,
    "BOOL": torch.bool,
    "FLOAT8E4M3FN": torch.float8_e4m3fn,
    "FLOAT8E5M2": torch.float8_e5m2,
}
"""Type of torch for each type of ONNX; a wider one if torch lacks it."""


@dataclass(frozen=True)
class OnnxConstant:
    """Tensor of a file, and the name of its type in ONNX."""

    values: Tensor
    kind: str


@dataclass(frozen=True)
class OnnxNode:
    """Call of an operator; `version` is the opset of its domain.

    `outer` are the values of the graph around it that its own graphs use (`If`, `Loop`).
    """

    operator: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outer: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of all values that the node needs: its inputs, and those of its graphs."""
        return (*self.inputs, *self.outer)

    def __str__(self) -> str:
        operator, place = _word(self.operator), _word(self.domain or "ai.onnx")
        return f"node {shown(self.name)} ({operator} of {place}, opset {self.version})"


@dataclass(frozen=True)
class Subgraph:
    """Graph inside a node: a branch of `If`, the body of `Loop`."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    constants: dict[str, OnnxConstant]

    @property
    def own(self) -> set[str]:
        """Names of the values that the graph makes."""
        results = (name for node in self.nodes for name in node.outputs if name)
        return {*self.inputs, *self.constants, *results}

    @property
    def outer(self) -> tuple[str, ...]:
        """Names of the values around it that it uses."""
        own = self.own
        used = [n for node in self.nodes for n in node.reads if n] + list(self.outputs)
        return tuple(dict.fromkeys(n for n in used if n not in own))


def renamed_graph(graph: Subgraph, used: set[str]) -> Subgraph:
    """Return a graph none of whose values has a name in `used`."""
    own = graph.own
    new: dict[str, str] = {}
    for name in sorted(own & used):
        number = 1
        while f"{name}_{number}" in used or f"{name}_{number}" in own:
            number += 1
        new[name] = f"{name}_{number}"

    def rename(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(new.get(name, name) for name in names)

    nodes = [_renamed_node(node, new) for node in graph.nodes] if new else graph.nodes
    constants = {new.get(name, name): value for name, value in graph.constants.items()}
    return Subgraph(rename(graph.inputs), rename(graph.outputs), tuple(nodes), constants)


def _renamed_node(node: OnnxNode, new: Mapping[str, str]) -> OnnxNode:
    """Return a node that reads and makes values by their new names."""

    def rename(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(new.get(name, name) for name in names)

    attributes = dict(node.attributes)
    for key, graph in attributes.items():
        if isinstance(graph, Subgraph):
            inside = {a: b for a, b in new.items() if a not in graph.own}
            nodes = tuple(_renamed_node(each, inside) for each in graph.nodes)
            outputs = tuple(inside.get(name, name) for name in graph.outputs)
            attributes[key] = replace(graph, nodes=nodes, outputs=outputs)
    inputs, outputs, outer = (rename(n) for n in (node.inputs, node.outputs, node.outer))
    return replace(node, inputs=inputs, outputs=outputs, attributes=attributes, outer=outer)


def _word(name: str) -> str:
    """Return a name for a message, quoted unless it is a plain word."""
    return name if re.fullmatch(r"[\w.:-]{1,80}", name, re.ASCII) else shown(name)


@dataclass(frozen=True)
class Input:
    """Input with its type, and its sizes as numbers or as names."""

    name: str
    kind: str
    sizes: tuple[int | str, ...]


class OnnxFile:
    """Graph of a file: inputs, outputs, nodes in execution order, constants, metadata."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._onnx = onnx_package("onnx")
        self._external_sizes: dict[Path, int] = {}
        self._external_read = 0
        proto = self._parsed()
        self.versions = {o.domain: int(o.version) for o in proto.opset_import}
        self.metadata = {p.key: p.value for p in proto.metadata_props}
        self._check_version()
        graph = self._inlined(proto).graph
        self.constants = {t.name: self._constant(t) for t in self._initializers(graph)}
        self.inputs = [self._input(i) for i in graph.input if i.name not in self.constants]
        count = sum(1 for _ in all_nodes(graph.node))
        if count > MOST_NODES:
            raise self.fail(f"{count} nodes. Allowed: {MOST_NODES}.")
        self.nodes = [self.node(n, i) for i, n in enumerate(graph.node)]
        kinds = self._onnx.TensorProto.DataType
        self.output_kinds = {o.name: kinds.Name(o.type.tensor_type.elem_type) for o in graph.output}
        self.outputs = [o.name for o in graph.output]
        self._check_order()

    def fix(self, values: Mapping[str, Any]) -> None:
        """Make inputs constants of the file: those of `values`, by name."""
        by_name = {i.name: i for i in self.inputs}
        for name, value in values.items():
            if name not in by_name:
                raise self.fail(f"constants: no input {shown(name)}. Its inputs: {list(by_name)}.")
            declared = by_name.pop(name)
            try:
                tensor = torch.as_tensor(value).to(TYPES[declared.kind])
            except (TypeError, ValueError, RuntimeError) as error:
                raise self.fail(f"constants: {shown(name)} is no tensor ({error}).") from error
            sizes = [s if isinstance(s, int) else None for s in declared.sizes]
            fits = len(sizes) == tensor.dim() and all(
                s in (None, size) for s, size in zip(sizes, tensor.shape, strict=True)
            )
            if not fits:
                raise self.fail(
                    f"constants: {shown(name)} has shape {list(tensor.shape)}. "
                    f"Allowed: {shown(list(declared.sizes))}."
                )
            self.constants[name] = OnnxConstant(tensor, declared.kind)
        self.inputs = list(by_name.values())

    def fail(self, problem: str, cause: BaseException | None = None) -> ExportError:
        """Return an error that names the file."""
        error = ExportError(f"{self.path}: {problem}")
        error.__cause__ = cause
        return error

    def _parsed(self) -> Any:
        if not self.path.is_file():
            raise self.fail("no such file.")
        try:
            size = self.path.stat().st_size
            if size > LARGEST_FILE:
                raise self.fail(f"{size} bytes. Allowed: at most {LARGEST_FILE}.")
            check_stored(self.path, ExportError)
            data = self.path.read_bytes()
        except OSError as error:
            raise self.fail(f"cannot be read ({error.strerror}).", error) from error
        proto = self._onnx.ModelProto()
        decode_error = onnx_package("google.protobuf.message").DecodeError
        try:
            proto.ParseFromString(data)
        except (decode_error, RuntimeError, ValueError) as error:
            raise self.fail(f"not an ONNX file ({error}).", error) from error
        if not proto.HasField("graph") or not proto.opset_import:
            raise self.fail("not an ONNX file: it has no graph or no opset.")
        return proto

    def _check_version(self) -> None:
        low, high = OPSETS
        version = self.versions.get(MAIN, self.versions.get("ai.onnx"))
        if version is None or not low <= version <= high:
            raise self.fail(f"opset {version} of ONNX. Allowed: {low} to {high}.")
        self.versions[MAIN] = version

    def _inlined(self, proto: Any) -> Any:
        """Return the model with its functions inlined."""
        if not proto.functions:
            return proto
        count = expanded_nodes(proto)
        if count is None or count > MOST_NODES:
            text = "call themselves" if count is None else f"make {count} nodes"
            raise self.fail(f"its functions {text}. Allowed: up to {MOST_NODES} nodes, no cycle.")
        try:
            return onnx_package("onnx.inliner").inline_local_functions(proto)
        except (RuntimeError, ValueError) as error:
            raise self.fail(f"its functions cannot be inlined ({error}).", error) from error

    def _initializers(self, graph: Any) -> Iterator[Any]:
        if len(graph.sparse_initializer):
            raise self.fail("a sparse initialiser. Allowed: dense ones.")
        names = set()
        for tensor in graph.initializer:
            if not tensor.name or tensor.name in names:
                raise self.fail(f"initialiser {shown(tensor.name)}: no name, or there twice.")
            names.add(tensor.name)
            yield tensor

    def kind_of(self, number: int, where: str) -> str:
        """Return the name of a type by its number."""
        names = {v: k for k, v in self._onnx.TensorProto.DataType.items()}
        kind = str(names.get(number, number))
        if kind not in TYPES:
            raise self.fail(f"{where}: type {kind}. Allowed: {', '.join(TYPES)}.")
        return kind

    def _constant(self, tensor: Any) -> OnnxConstant:
        where = f"initialiser {shown(tensor.name)}"
        kind = self.kind_of(tensor.data_type, where)
        count = math.prod(tensor.dims)
        if any(d < 0 for d in tensor.dims) or count > 1 << 40:
            raise self.fail(f"{where}: shape {shown(list(tensor.dims))}.")
        if tensor.data_location == self._onnx.TensorProto.EXTERNAL:
            loaded = self._onnx.TensorProto(
                name=tensor.name, dims=tensor.dims, data_type=tensor.data_type
            )
            loaded.raw_data = self._external(tensor, _nbytes(count, kind), where)
            tensor = loaded
        self._check_length(tensor, count, kind, where)
        try:
            return OnnxConstant(_as_torch(self._onnx.numpy_helper.to_array(tensor), kind), kind)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise self.fail(f"{where}: {error}.", error) from error

    def _check_length(self, tensor: Any, count: int, kind: str, where: str) -> None:
        """Raise if the data do not fill the shape, before memory is allocated."""
        needed = _nbytes(count, kind)
        if tensor.HasField("raw_data"):
            if len(tensor.raw_data) != needed:
                raise self.fail(
                    f"{where}: {len(tensor.raw_data)} bytes for shape {list(tensor.dims)}, "
                    f"expected {needed}."
                )
            return
        fields = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
        numbers = sum(len(getattr(tensor, name)) for name in fields)
        expected = -(-count // 2) if kind in ("INT4", "UINT4") else count
        if numbers not in (expected, count):
            raise self.fail(
                f"{where}: {numbers} numbers for shape {list(tensor.dims)}, expected {expected}."
            )

    def _external(self, tensor: Any, needed: int, where: str) -> bytes:
        """Return the bytes of a tensor in another file of the same folder, never of elsewhere."""
        fields = {e.key: e.value for e in tensor.external_data}
        location = fields.get("location", "")
        parts = PurePosixPath(location).parts
        home = self.path.parent.resolve()
        file = (home / location).resolve() if parts and "\0" not in location else home
        if not parts or ".." in parts or parts[0] == "/" or not file.is_relative_to(home):
            raise self.fail(
                f"{where}: its data are in {shown(location)}. Allowed: a file in this folder."
            )
        try:
            offset, length = int(fields.get("offset", 0)), int(fields.get("length", needed))
            if not file.is_file():
                raise self.fail(f"{where}: its file {shown(location)} is missing.")
            if offset < 0 or length != needed or offset + length > file.stat().st_size:
                raise self.fail(
                    f"{where}: bytes {offset} to {offset + length} of {shown(location)}, which has "
                    f"{file.stat().st_size}; it needs {needed}."
                )
            self._count_external(file, needed)
            with file.open("rb") as opened:
                opened.seek(offset)
                return opened.read(length)
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, ExportError):
                raise
            raise self.fail(f"{where}: its data cannot be read ({error}).", error) from error

    def _count_external(self, file: Path, count: int) -> None:
        """Raise if initialisers share the bytes of external files, or these have holes."""
        if file not in self._external_sizes:
            check_stored(file, ExportError)
            self._external_sizes[file] = stored_bytes(file)
        self._external_read += count
        allowed = 2 * sum(self._external_sizes.values()) + SHARED_BYTES
        if self._external_read > allowed:
            raise self.fail(
                f"its initialisers share the bytes of {shown(file.name)}: {self._external_read} "
                f"are read. Allowed: {allowed}."
            )

    @property
    def size(self) -> int:
        """Bytes of the file and of its external files."""
        return self.path.stat().st_size + sum(self._external_sizes.values())

    def node(self, proto: Any, number: int) -> OnnxNode:
        """Return a node with its attributes."""
        domain = MAIN if proto.domain == "ai.onnx" else proto.domain
        name = proto.name or f"{proto.op_type}_{number}"
        attributes = {a.name: self._attribute(a) for a in proto.attribute}
        values = tuple(proto.input), tuple(proto.output)
        version = self.versions.get(domain, 0)
        graphs = [a for a in attributes.values() if isinstance(a, Subgraph)]
        outer = tuple(dict.fromkeys(name for g in graphs for name in g.outer))
        return OnnxNode(proto.op_type, domain, version, name, *values, attributes, outer)

    def _subgraph(self, proto: Any) -> Subgraph:
        """Return a graph inside a node; protocol buffers limit how deep it nests."""
        constants = {t.name: self._constant(t) for t in self._initializers(proto)}
        inputs = tuple(i.name for i in proto.input if i.name not in constants)
        nodes = tuple(self.node(n, i) for i, n in enumerate(proto.node))
        return Subgraph(inputs, tuple(o.name for o in proto.output), nodes, constants)

    def _attribute(self, attribute: Any) -> Any:
        kinds = self._onnx.AttributeProto
        if attribute.type == kinds.TENSOR:
            return self._constant(attribute.t)
        if attribute.type == kinds.GRAPH:
            return self._subgraph(attribute.g)
        readers: dict[Any, Callable[[], Any]] = {
            kinds.FLOAT: lambda: float(attribute.f),
            kinds.INT: lambda: int(attribute.i),
            kinds.STRING: lambda: attribute.s.decode(errors="replace"),
            kinds.FLOATS: lambda: [float(v) for v in attribute.floats],
            kinds.INTS: lambda: [int(v) for v in attribute.ints],
            kinds.STRINGS: lambda: [s.decode(errors="replace") for s in attribute.strings],
        }
        return readers[attribute.type]() if attribute.type in readers else None

    def _input(self, value: Any) -> Input:
        where = f"input {shown(value.name)}"
        if not value.type.HasField("tensor_type"):
            raise self.fail(f"{where}: not a tensor.")
        kind = self.kind_of(value.type.tensor_type.elem_type, where)
        if not value.type.tensor_type.HasField("shape"):
            raise self.fail(f"{where}: its number of dimensions is not given.")
        sizes: list[int | str] = []
        for i, size in enumerate(value.type.tensor_type.shape.dim):
            is_known = size.HasField("dim_value") and size.dim_value != UNKNOWN
            sizes.append(int(size.dim_value) if is_known else size.dim_param or f"{value.name}:{i}")
        if any(isinstance(s, int) and not 0 <= s < 1 << 31 for s in sizes):
            raise self.fail(f"{where}: sizes {shown(sizes)}.")
        return Input(value.name, kind, tuple(sizes))

    def _check_nodes(self, nodes: Iterable[OnnxNode], names: set[str]) -> None:
        """Raise unless each node makes new values of earlier ones; add them to `names`."""
        for node in nodes:
            missing = [name for name in node.inputs if name and name not in names]
            if missing:
                raise self.fail(
                    f"{node}: its input {shown(missing[0])} is made by no node before it."
                )
            for graph in (a for a in node.attributes.values() if isinstance(a, Subgraph)):
                inside = {*names, *graph.inputs, *graph.constants}
                self._check_nodes(graph.nodes, inside)
                missing = [name for name in graph.outputs if name not in inside]
                if missing:
                    raise self.fail(f"{node}: its graph makes no {shown(missing[0])}.")
            outputs = [name for name in node.outputs if name]
            twice = [name for name in outputs if name in names or outputs.count(name) > 1]
            if twice or not outputs:
                raise self.fail(f"{node}: makes {shown(twice or outputs)}, made before or nothing.")
            names.update(outputs)

    def _check_order(self) -> None:
        """Raise unless every value is computed once and before its use: so there is no cycle."""
        names = {*self.constants, *(i.name for i in self.inputs)}
        if len(names) != len(self.constants) + len(self.inputs):
            raise self.fail("an input is there twice.")
        self._check_nodes(self.nodes, names)
        missing = [name for name in self.outputs if name not in names]
        if missing or not self.outputs or len(set(self.outputs)) != len(self.outputs):
            raise self.fail(f"outputs {shown(self.outputs)}: made by no node, or there twice.")


def _nbytes(count: int, kind: str) -> int:
    if kind in ("INT4", "UINT4"):
        return -(-count // 2)
    return count * {"UINT16": 2, "UINT32": 4}.get(kind, TYPES[kind].itemsize)


def _as_torch(array: np.ndarray, kind: str) -> Tensor:
    same_size = {"BFLOAT16": np.int16, "FLOAT8E4M3FN": np.uint8, "FLOAT8E5M2": np.uint8}
    if kind in same_size:
        bits = np.ascontiguousarray(array).view(same_size[kind])
        return torch.from_numpy(bits.copy()).view(TYPES[kind]).reshape(array.shape)
    if kind == "UINT64" and array.size and int(array.max()) >= 1 << 63:
        raise ValueError(f"{int(array.max())}. Allowed: below 2**63")
    integers = (torch.int8, torch.uint8, torch.int32, torch.int64)
    dtype = str(TYPES[kind]).removeprefix("torch.") if TYPES[kind] in integers else array.dtype
    return torch.from_numpy(np.array(array.astype(dtype), copy=True)).reshape(array.shape)
