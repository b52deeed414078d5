"""ONNX and QONNX files as graphs."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.arguments import MAPPING, NONE, PATH, takes
from chop.errors import ChopError, ExportError
from chop.export.onnx import SIZES
from chop.export.onnx_import import (  # noqa: F401 -- each registers its operators
    elementwise,
    layers,
    movement,
    quantised,
    recurrent,
    reductions,
)
from chop.export.onnx_import.file import TYPES, Input, OnnxFile
from chop.export.onnx_import.formats import apply_formats
from chop.export.onnx_import.model import OnnxModel, made_model
from chop.export.onnx_import.rewrites import PROBLEMS, Folded
from chop.files import parse_json, shown
from chop.ir.graph import MaseGraph
from chop.log import get_logger

logger = get_logger(__name__)

TRIED = ((2, 8), (2, 16), (1, 1), (2, 32), (2, 64), (1, 224), (4, 4))
"""Sizes of the first and of other dimensions that are tried where a file leaves them open."""
LARGEST_INPUT = 1 << 25
"""Elements of all inputs that are made."""


@takes(ExportError, path=PATH, inputs=MAPPING | NONE)
def from_onnx(path: str | Path, *, inputs: Mapping[str, Any] | None = None) -> MaseGraph:
    """The model of an ONNX file as a graph.

    Operators with constants of the file become layers of torch (linear, convolution, norms,
    embedding, LSTM), others functions. What stands behind `DequantizeLinear` or `Quant` is in a
    format: weights with just the file's values, `integer`, `scale_integer` with stored scales,
    `fp8`, `mxint` or `mxfp`; a rounding of an activation is the format of the operand that it is
    of, or plain arithmetic where no format is so. One output is given as a tensor, several as a
    dict. `inputs` are example inputs by name; by default they are made from the sizes in the file.
    """
    file = OnnxFile(path)
    folded = Folded(file)
    model, example = _built(file, folded, inputs)
    _log_names(file, model)
    try:
        graph = MaseGraph(model, dummy_in=example)
        graph.original = None
        apply_formats(graph, model)
    except PROBLEMS as error:
        raise file.fail(f"cannot be captured: {_first_line(error)}.", error) from error
    return graph


@takes(ExportError, path=PATH, inputs=MAPPING | NONE)
def from_qonnx(path: str | Path, *, inputs: Mapping[str, Any] | None = None) -> MaseGraph:
    """The model of a QONNX file as a graph: `Quant` of any width becomes a format.

    `integer` where the scale is one power of two, else `scale_integer` of 2 to 16 bits.
    """
    return from_onnx(path, inputs=inputs)


def _log_names(file: OnnxFile, model: OnnxModel) -> None:
    """Log the names that Python does not have: a warning for inputs, whose names callers use."""
    inputs = {source: name for name, source in model.names.items() if source != name}
    for level, what, names in (
        (logging.WARNING, "inputs", inputs),
        (logging.INFO, "weights and layers", model.renamed),
    ):
        if names:
            pairs = ", ".join(f"{shown(a)} is now {shown(b)}" for a, b in [*names.items()][:4])
            logger.log(level, "%s: %d %s have new names: %s.", file.path, len(names), what, pairs)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:300]


def _built(
    file: OnnxFile, folded: Folded, inputs: Mapping[str, Any] | None
) -> tuple[OnnxModel, dict[str, Tensor]]:
    """The model with its layers, and the inputs it ran on."""
    problem: ChopError | None = None
    for sizes in _offers(file, inputs):
        model = made_model(folded)
        try:
            example = _example(file, model, sizes, inputs)
            model.build(example)
        except ExportError as error:
            problem = problem or error
            continue
        return model, example
    assert problem is not None, "sizes were tried"
    if _is_open(file) and inputs is None:
        raise ExportError(
            f"{problem} Its inputs have open sizes: give inputs=… that it takes."
        ) from problem
    raise problem


def _is_open(file: OnnxFile) -> bool:
    return any(isinstance(s, str) for i in file.inputs for s in i.sizes)


def _offers(file: OnnxFile, inputs: Mapping[str, Any] | None) -> Iterator[dict[str, list[int]]]:
    """Sizes to try."""
    if inputs is not None:
        yield {}
        return
    noted = _noted(file)
    if noted is not None:
        yield noted
    for first, other in TRIED if _is_open(file) else TRIED[:1]:
        yield {i.name: _sizes(i, first, other) for i in file.inputs}


def _sizes(value: Input, first: int, other: int) -> list[int]:
    return [s if isinstance(s, int) else other if d else first for d, s in enumerate(value.sizes)]


def _noted(file: OnnxFile) -> dict[str, list[int]] | None:
    """The sizes that the writer left in the file, where they are what they should be."""
    if SIZES not in file.metadata:
        return None
    told = parse_json(file.metadata[SIZES], f"{file.path}: {SIZES}", ExportError)
    names = {i.name: len(i.sizes) for i in file.inputs}
    for name, sizes in told.items() if isinstance(told, dict) else ():
        is_whole = isinstance(sizes, list) and all(type(s) is int and s >= 0 for s in sizes)
        if not is_whole or len(sizes) != names.get(name):
            return None
    return told if isinstance(told, dict) and told.keys() == names.keys() else None


def _example(
    file: OnnxFile,
    model: OnnxModel,
    sizes: Mapping[str, list[int]],
    inputs: Mapping[str, Any] | None,
) -> dict[str, Tensor]:
    """Inputs to run the model on: ones where they are whole numbers, else drawn with a seed."""
    draw = torch.Generator().manual_seed(0)
    found: dict[str, Tensor] = {}
    by_name = {i.name: i for i in file.inputs}
    for name, source in model.names.items():
        if inputs is not None:
            given = inputs.get(name, inputs.get(source))
            if not isinstance(given, Tensor):
                listed = ", ".join(model.names)
                raise file.fail(f"inputs: no tensor '{name}'. Its inputs: {listed}.")
            found[name] = given
            continue
        shape, kind = sizes[source], TYPES[by_name[source].kind]
        count = math.prod(shape) + sum(t.numel() for t in found.values())
        if count > LARGEST_INPUT:
            raise file.fail(f"input {shown(source)} has {count} elements. Give inputs=….")
        if kind.is_floating_point:
            found[name] = torch.randn(shape, generator=draw).to(kind)
        else:
            found[name] = torch.ones(shape, dtype=kind)
    return found
