"""ONNX files of anybody, read with care: what is here was checked before anything runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.errors import ExportError
from chop.export.onnx_package import onnx_package
from chop.files import check_stored, shown, stored_bytes

LARGEST_FILE = (1 << 31) - 1
"""Bytes of a file of protocol buffers; tensors may lie in files beside it."""
MOST_NODES = 1 << 16
"""Nodes of a graph, with those of its functions in their places."""
SHARED_BYTES = 1 << 24
"""Bytes that initialisers may read of files beside this one, beyond twice their size."""
UNKNOWN = -1
"""Some programs write a size that is open as this number."""
MAIN = ""
"""The domain of ONNX itself."""
OPSETS = (7, 28)
"""Versions of ONNX that are read."""
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
    "BOOL": torch.bool,
    "FLOAT8E4M3FN": torch.float8_e4m3fn,
    "FLOAT8E5M2": torch.float8_e5m2,
}
"""What holds the values of a type; torch lacks some, which a wider one holds."""


@dataclass(frozen=True)
class Constant:
    """A tensor of a file, and the name of its type there."""

    values: Tensor
    kind: str


@dataclass(frozen=True)
class Node:
    """A call of an operator; `version` is the opset of its domain."""

    operator: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        operator, place = _word(self.operator), _word(self.domain or "ai.onnx")
        return f"node {shown(self.name)} ({operator} of {place}, opset {self.version})"


def _word(name: str) -> str:
    """Return a name for a message: as it is if it is a plain word."""
    return name if re.fullmatch(r"[\w.:-]{1,80}", name, re.ASCII) else shown(name)


@dataclass(frozen=True)
class Input:
    """An input: its type, and its sizes as numbers or as the names they have."""

    name: str
    kind: str
    sizes: tuple[int | str, ...]


class OnnxFile:
    """The graph of a file: inputs, outputs, nodes in an order that runs, constants, remarks."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._onnx = onnx_package("onnx")
        self._beside: dict[Path, int] = {}
        self._read_beside = 0
        proto = self._parsed()
        self.versions = {o.domain: int(o.version) for o in proto.opset_import}
        self.metadata = {p.key: p.value for p in proto.metadata_props}
        self._check_version()
        graph = self._inlined(proto).graph
        self.constants = {t.name: self._constant(t) for t in self._initializers(graph)}
        self.inputs = [self._input(i) for i in graph.input if i.name not in self.constants]
        if len(graph.node) > MOST_NODES:
            raise self.fail(f"{len(graph.node)} nodes. Allowed: {MOST_NODES}.")
        self.nodes = [self.node(n, i) for i, n in enumerate(graph.node)]
        self.outputs = [o.name for o in graph.output]
        self._check_order()

    def fail(self, problem: str, cause: BaseException | None = None) -> ExportError:
        """An error that names the file, to be raised."""
        made = ExportError(f"{self.path}: {problem}")
        made.__cause__ = cause
        return made

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
        """Return the model without functions of its own."""
        if not proto.functions:
            return proto
        count = expanded_nodes(proto)
        if count is None or count > MOST_NODES:
            told = "call themselves" if count is None else f"make {count} nodes"
            raise self.fail(f"its functions {told}. Allowed: up to {MOST_NODES} nodes, no cycle.")
        try:
            return onnx_package("onnx.inliner").inline_local_functions(proto)
        except (RuntimeError, ValueError) as error:
            raise self.fail(f"its functions cannot be inlined ({error}).", error) from error

    # -- tensors ---------------------------------------------------------------------------

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
        """The name of a type."""
        names = {v: k for k, v in self._onnx.TensorProto.DataType.items()}
        kind = str(names.get(number, number))
        if kind not in TYPES:
            raise self.fail(f"{where}: type {kind}. Allowed: {', '.join(TYPES)}.")
        return kind

    def _constant(self, tensor: Any) -> Constant:
        where = f"initialiser {shown(tensor.name)}"
        kind = self.kind_of(tensor.data_type, where)
        count = math.prod(tensor.dims)
        if any(d < 0 for d in tensor.dims) or count > 1 << 40:
            raise self.fail(f"{where}: shape {shown(list(tensor.dims))}.")
        if tensor.data_location == self._onnx.TensorProto.EXTERNAL:
            held = self._onnx.TensorProto(
                name=tensor.name, dims=tensor.dims, data_type=tensor.data_type
            )
            held.raw_data = self._external(tensor, count, kind, where)
            tensor = held
        self._check_length(tensor, count, kind, where)
        try:
            return Constant(_as_torch(self._onnx.numpy_helper.to_array(tensor), kind), kind)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise self.fail(f"{where}: {error}.", error) from error

    def _check_length(self, tensor: Any, count: int, kind: str, where: str) -> None:
        """Refuse a shape that the data do not fill, before memory is taken for it."""
        needed = _nbytes(count, kind)
        if tensor.HasField("raw_data"):
            if len(tensor.raw_data) != needed:
                raise self.fail(
                    f"{where}: {len(tensor.raw_data)} bytes for shape {list(tensor.dims)}, "
                    f"expected {needed}."
                )
            return
        given = sum(
            len(getattr(tensor, name))
            for name in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
        )
        wanted = -(-count // 2) if kind in ("INT4", "UINT4") else count
        if given not in (wanted, count):
            raise self.fail(
                f"{where}: {given} numbers for shape {list(tensor.dims)}, expected {wanted}."
            )

    def _external(self, tensor: Any, count: int, kind: str, where: str) -> bytes:
        """The bytes of a tensor in a file beside this one, never of one elsewhere."""
        told = {e.key: e.value for e in tensor.external_data}
        location, needed = told.get("location", ""), _nbytes(count, kind)
        parts = PurePosixPath(location).parts
        home = self.path.parent.resolve()
        file = (home / location).resolve() if parts and "\0" not in location else home
        if not parts or ".." in parts or parts[0] == "/" or not file.is_relative_to(home):
            raise self.fail(
                f"{where}: its data are in {shown(location)}. Allowed: a file in this folder."
            )
        try:
            offset, length = int(told.get("offset", 0)), int(told.get("length", needed))
            if not file.is_file():
                raise self.fail(f"{where}: its file {shown(location)} is missing.")
            if offset < 0 or length != needed or offset + length > file.stat().st_size:
                raise self.fail(
                    f"{where}: bytes {offset} to {offset + length} of {shown(location)}, which has "
                    f"{file.stat().st_size}; it needs {needed}."
                )
            self._count_beside(file, needed)
            with file.open("rb") as opened:
                opened.seek(offset)
                return opened.read(length)
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, ExportError):
                raise
            raise self.fail(f"{where}: its data cannot be read ({error}).", error) from error

    def _count_beside(self, file: Path, count: int) -> None:
        """Raise if initialisers share the bytes of files beside this one, or these have holes."""
        if file not in self._beside:
            check_stored(file, ExportError)
            self._beside[file] = stored_bytes(file)
        self._read_beside += count
        allowed = 2 * sum(self._beside.values()) + SHARED_BYTES
        if self._read_beside > allowed:
            raise self.fail(
                f"its initialisers share the bytes of {shown(file.name)}: {self._read_beside} are "
                f"read. Allowed: {allowed}."
            )

    @property
    def size(self) -> int:
        """Bytes of the file and of those beside it that hold its tensors."""
        return self.path.stat().st_size + sum(self._beside.values())

    # -- nodes -----------------------------------------------------------------------------

    def node(self, proto: Any, number: int) -> Node:
        """A node with its attributes read."""
        domain = MAIN if proto.domain == "ai.onnx" else proto.domain
        name = proto.name or f"{proto.op_type}_{number}"
        version = self.versions.get(domain, 0)
        attributes = {a.name: self._attribute(a) for a in proto.attribute}
        return Node(
            proto.op_type,
            domain,
            version,
            name,
            tuple(proto.input),
            tuple(proto.output),
            attributes,
        )

    def _attribute(self, attribute: Any) -> Any:
        kinds = self._onnx.AttributeProto
        if attribute.type == kinds.TENSOR:
            return self._constant(attribute.t)
        readers: dict[Any, Callable[[], Any]] = {
            kinds.FLOAT: lambda: float(attribute.f),
            kinds.INT: lambda: int(attribute.i),
            kinds.STRING: lambda: attribute.s.decode(errors="replace"),
            kinds.FLOATS: lambda: [float(v) for v in attribute.floats],
            kinds.INTS: lambda: [int(v) for v in attribute.ints],
            kinds.STRINGS: lambda: [s.decode(errors="replace") for s in attribute.strings],
        }
        # graphs within a graph: no operator that is known has one
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

    def _check_order(self) -> None:
        """Every value is made once, and before it is used: so there is no cycle."""
        known = {*self.constants, *(i.name for i in self.inputs)}
        if len(known) != len(self.constants) + len(self.inputs):
            raise self.fail("an input is there twice.")
        for node in self.nodes:
            missing = [name for name in node.inputs if name and name not in known]
            if missing:
                raise self.fail(
                    f"{node}: its input {shown(missing[0])} is made by no node before it."
                )
            made = [name for name in node.outputs if name]
            twice = [name for name in made if name in known or made.count(name) > 1]
            if twice or not made:
                raise self.fail(f"{node}: makes {shown(twice or made)}, made before or nothing.")
            known.update(made)
        lacking = [name for name in self.outputs if name not in known]
        if lacking or not self.outputs or len(set(self.outputs)) != len(self.outputs):
            raise self.fail(f"outputs {shown(self.outputs)}: made by no node, or there twice.")


Function = tuple[str, str, str]


def expanded_nodes(proto: Any) -> int | None:
    """Return the number of nodes once functions are in their places; None if one calls itself."""
    functions = {(f.domain, f.name, f.overload): list(_all_nodes(f.node)) for f in proto.functions}
    counts: dict[Function, int] = {}
    waiting = list(functions)
    open_calls: set[Function] = set()
    while waiting:
        key = waiting[-1]
        missing = [c for c in _calls(functions[key]) if c in functions and c not in counts]
        if key in counts or not missing:
            counts.setdefault(key, _total(functions[key], counts))
            open_calls.discard(waiting.pop())
            continue
        open_calls.add(key)
        if open_calls.intersection(missing):
            return None
        waiting += missing
    return _total(list(_all_nodes(proto.graph.node)), counts)


def _calls(nodes: list[Any]) -> list[Function]:
    return [(n.domain, n.op_type, n.overload) for n in nodes]


def _total(nodes: list[Any], counts: dict[Function, int]) -> int:
    return sum(max(1, counts.get(call, 1)) for call in _calls(nodes))


def _all_nodes(nodes: Any) -> Iterator[Any]:
    """Yield nodes, and those of graphs within them."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                waiting += graph.node


def _nbytes(count: int, kind: str) -> int:
    if kind in ("INT4", "UINT4"):
        return -(-count // 2)
    held = {"UINT16": 2, "UINT32": 4}
    return count * held.get(kind, TYPES[kind].itemsize)


def _as_torch(array: np.ndarray, kind: str) -> Tensor:
    same_size = {"BFLOAT16": np.int16, "FLOAT8E4M3FN": np.uint8, "FLOAT8E5M2": np.uint8}
    if kind in same_size:
        bits = np.ascontiguousarray(array).view(same_size[kind])
        return torch.from_numpy(bits.copy()).view(TYPES[kind]).reshape(array.shape)
    wide = {torch.int8: np.int8, torch.uint8: np.uint8, torch.int32: np.int32}
    wide |= {torch.int64: np.int64}
    made = array.astype(wide.get(TYPES[kind], array.dtype))
    return torch.from_numpy(np.array(made, copy=True)).reshape(array.shape)
