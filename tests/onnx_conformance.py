"""The conformance tests of ONNX itself, run through `from_onnx`.

The package `onnx` has model tests (files with inputs and outputs) and node tests (generated). A
case passes if the graph of its file computes the outputs within the tolerance of the test. Some
inputs of node tests are parameters, such as `axes`: the same operators have them as constants in
files of models. If a file is refused because a size depends on such an input, it is read again with
the small integer inputs as constants; `how` says so.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from chop.errors import ChopError
from chop.export import from_onnx
from chop.export.onnx_import.call import OPERATORS
from chop.export.onnx_import.onnx_file import MAIN, OnnxFile
from chop.export.onnx_import.onnx_model import build_model
from chop.export.onnx_import.rewrites import Folded

MODEL_KINDS = ("simple", "pytorch-converted", "pytorch-operator", "light")
MOST_PARAMETERS = 1024
"""Most elements of an input that is read as a constant."""
TOLERANCES = {"light": (2e-3, 1e-4)}
"""Relative and absolute tolerance of large models, whose sums run in another order."""


@dataclass(frozen=True)
class Case:
    """Test of ONNX: a file in bytes, and pairs of inputs and outputs by name."""

    name: str
    kind: str
    model: onnx.ModelProto
    data: tuple[tuple[dict[str, Any], list[Any]], ...]
    rtol: float
    atol: float

    @property
    def operators(self) -> set[str]:
        """Operators of the file, with the domain unless it is ONNX itself."""
        nodes = self.model.graph.node
        return {f"{n.domain}:{n.op_type}" if n.domain else n.op_type for n in nodes}

    @property
    def is_listed(self) -> bool:
        """True if the reader has all operators of the file."""
        known = {n for d, n in OPERATORS if d == MAIN} | {"QLinearConv", "QLinearMatMul"}
        return self.operators <= known


@functools.cache
def _node_tests() -> list[Any]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(""))


def node_cases() -> Iterator[Case]:
    """Yield the generated tests of single operators."""
    for test in _node_tests():
        names = [i.name for i in test.model.graph.input]
        data = [
            (dict(zip(names, inputs, strict=False)), list(outputs))
            for inputs, outputs in test.data_sets
        ]
        yield Case(test.name, "node", test.model, tuple(data), test.rtol, test.atol)


def model_cases() -> Iterator[Case]:
    """Yield the tests with a file in the package."""
    for kind in MODEL_KINDS:
        for test in load_model_tests(kind=kind):
            folder = Path(test.model_dir)
            if not (folder / "model.onnx").is_file():
                continue
            model = onnx.load(folder / "model.onnx")
            data = tuple(_stored(each, model) for each in sorted(folder.glob("test_data_set_*")))
            rtol, atol = TOLERANCES.get(kind, (test.rtol, test.atol))
            yield Case(test.name, kind, model, data, rtol, atol)


def cases(kind: str, only: Sequence[str] | None = None) -> Iterator[Case]:
    """Yield the cases of `node` or `model`, or those with one of these operators or names."""
    for case in node_cases() if kind == "node" else model_cases():
        if only is None or case.name in only or case.operators.intersection(only):
            yield case


def _stored(folder: Path, model: onnx.ModelProto) -> tuple[dict[str, Any], list[Any]]:
    values = []
    for what, ends in (("input", model.graph.input), ("output", model.graph.output)):
        files = sorted(folder.glob(f"{what}_*.pb"), key=lambda f: int(f.stem.split("_")[1]))
        values.append([_loaded(file, end) for file, end in zip(files, ends, strict=False)])
    names = [i.name for i in model.graph.input]
    return dict(zip(names, values[0], strict=False)), values[1]


def _loaded(file: Path, end: Any) -> Any:
    data = file.read_bytes()
    if end.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


_SAME_BITS = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
}
_WIDER = {
    "uint16": np.int32,
    "uint32": np.int64,
    "uint64": np.int64,
    "int4": np.int8,
    "uint4": np.uint8,
}


def _as_torch(value: Any) -> torch.Tensor:
    """Return an array, or a tensor of a file, in the type that the reader has for it."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    array = np.asarray(value)
    if array.dtype.name in _SAME_BITS:
        bits, kind = _SAME_BITS[array.dtype.name]
        return torch.from_numpy(np.ascontiguousarray(array).view(bits).copy()).view(kind)
    array = array.astype(_WIDER.get(array.dtype.name, array.dtype))
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape).copy())


def outcome(case: Case, *, is_captured: bool = True) -> str:
    """Return the reason why a case fails, or nothing if it passes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(case.model, path)
        try:
            return _judged(case, path, is_captured)
        except ChopError as error:
            return str(error).removeprefix(f"{path}: ")
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            return f"{type(error).__name__}: {error}"


def _judged(case: Case, path: Path, is_captured: bool) -> str:
    for inputs, outputs in case.data:
        try:
            given = {name: _as_torch(value) for name, value in inputs.items()}
        except (TypeError, ValueError) as error:
            return f"an input is no tensor that torch has ({error})"
        found = _run(path, given, is_captured)
        values = list(found.values()) if isinstance(found, dict) else [found]
        problem = _difference(values, outputs, case)
        if problem:
            return problem
    return ""


def _run(path: Path, given: Mapping[str, torch.Tensor], is_captured: bool) -> Any:
    """Return the outputs; parameters among the inputs are constants if they must be."""
    try:
        return _run_with(path, given, {}, is_captured)
    except ChopError:
        kinds = (torch.int64, torch.int32, torch.bool)
        small = {n: t for n, t in given.items() if t.numel() <= MOST_PARAMETERS}
        fixed = {n: t for n, t in small.items() if t.dtype in kinds or t.dim() == 0}
        first = next(iter(given), None)
        for constants in (fixed, {n: t for n, t in small.items() if n != first}):
            if not constants:
                continue
            with contextlib.suppress(ChopError):
                rest = {n: t for n, t in given.items() if n not in constants}
                return _run_with(path, rest, constants, is_captured)
        raise


def _run_with(
    path: Path,
    given: Mapping[str, torch.Tensor],
    constants: Mapping[str, torch.Tensor],
    is_captured: bool,
) -> Any:
    if is_captured:
        graph = from_onnx(path, inputs=given, constants=constants)
        with torch.no_grad():
            return graph.model(*given.values())
    file = OnnxFile(path)
    file.fix(constants)
    model = build_model(Folded(file))
    return model.build(dict(zip(model.names, given.values(), strict=True)))


def _difference(found: Sequence[Any], expected: Sequence[Any], case: Case) -> str:
    if len(found) != len(expected):
        return f"{len(found)} outputs instead of {len(expected)}"
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, list):
            problem = _difference(list(ours), theirs, case)
            if problem:
                return problem
            continue
        if not isinstance(ours, torch.Tensor):
            ours = torch.as_tensor(ours)
        wanted = _as_torch(theirs)
        if ours.shape != wanted.shape:
            return f"shape {list(ours.shape)} instead of {list(wanted.shape)}"
        if ours.dtype != wanted.dtype:
            return f"dtype {ours.dtype} instead of {wanted.dtype}"
        a, b = ours.detach().double(), wanted.double()
        if not torch.allclose(a, b, rtol=case.rtol, atol=case.atol, equal_nan=True):
            return f"values differ by {float((a - b).abs().max()):.2g}"
    return ""
