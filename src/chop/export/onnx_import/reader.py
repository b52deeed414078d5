"""Graphs from ONNX and QONNX files."""

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
    control_operators,
    elementwise_operators,
    layer_operators,
    movement_operators,
    quantised,
    reduction_operators,
    resize_operators,
)
from chop.export.onnx_import.onnx_file import TYPES, OnnxFile
from chop.export.onnx_import.onnx_formats import apply_formats
from chop.export.onnx_import.onnx_model import OnnxModel, build_model
from chop.export.onnx_import.rewrites import PROBLEMS, Folded
from chop.files import parse_json, shown
from chop.ir.graph import MaseGraph
from chop.log import get_logger

logger = get_logger(__name__)

TRIED = ((2, 8), (2, 16), (1, 1), (2, 32), (2, 64), (1, 224), (4, 4), (1, 512))
"""Sizes of the first and of other dimensions to try if a file leaves them open."""
LARGEST_INPUT = 1 << 25
"""Limit on the elements of all generated inputs."""


@takes(ExportError, path=PATH, inputs=MAPPING | NONE, constants=MAPPING | NONE)
def from_onnx(
    path: str | Path,
    *,
    inputs: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> MaseGraph:
    """Return the model of an ONNX file as a graph.

    Operators with constants of the file become layers of torch (linear, convolution, norms,
    embedding, LSTM), others functions. `DequantizeLinear` and `Quant` become formats: `integer`,
    `scale_integer` with stored scales, `fp8`, `mxint` or `mxfp`, with the same values for weights.
    A rounding of an activation becomes the format of its operand, or plain arithmetic if no format
    fits. One output is a tensor, several are a dict. `inputs` are example inputs by name; by
    default they are generated from the sizes in the file. `constants` are inputs that never change,
    by name: a number of samples per second, or a condition of `If`.
    """
    file = OnnxFile(path)
    file.fix(constants or {})
    model, example = _build(file, Folded(file), inputs)
    renamed = {source: name for name, source in model.names.items() if source != name}
    _log_names(logging.WARNING, "inputs", renamed, file)  # callers use their names
    _log_names(logging.INFO, "weights and layers", model.renamed, file)
    try:
        graph = MaseGraph(model, dummy_in=example)
        graph.original = None
        apply_formats(graph, model)
    except PROBLEMS as error:
        line = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:300]
        raise file.fail(f"cannot be captured: {line}.", error) from error
    return graph


@takes(ExportError, path=PATH, inputs=MAPPING | NONE)
def from_qonnx(path: str | Path, *, inputs: Mapping[str, Any] | None = None) -> MaseGraph:
    """Return the model of a QONNX file as a graph; `Quant` of any width becomes a format.

    It is `integer` if the scale is one power of two, otherwise `scale_integer` of 2 to 16 bits.
    """
    return from_onnx(path, inputs=inputs)


def _log_names(level: int, what: str, names: Mapping[str, str], file: OnnxFile) -> None:
    """Log the names that are invalid in Python."""
    if names:
        pairs = ", ".join(f"{shown(a)} is now {shown(b)}" for a, b in [*names.items()][:4])
        logger.log(level, "%s: %d %s have new names: %s.", file.path, len(names), what, pairs)


def _build(
    file: OnnxFile, folded: Folded, inputs: Mapping[str, Any] | None
) -> tuple[OnnxModel, dict[str, Tensor]]:
    """Return the model with its layers, and the inputs of its first run."""
    problem: ChopError | None = None
    is_open = any(isinstance(s, str) for i in file.inputs for s in i.sizes)
    for sizes in _size_options(file, is_open) if inputs is None else [{}]:
        model = build_model(folded)
        try:
            example = _example(file, model, sizes, inputs)
            model.build(example)
        except ExportError as error:
            problem = problem or error
            continue
        return model, example
    assert problem is not None, "sizes were tried"
    if is_open and inputs is None:
        raise ExportError(
            f"{problem} Its inputs have open sizes: give inputs=… that it takes."
        ) from problem
    raise problem


def _size_options(file: OnnxFile, is_open: bool) -> Iterator[dict[str, list[int]]]:
    """Yield sizes of the inputs to try: those that the writer stored come first."""
    stored = _stored_sizes(file)
    if stored is not None:
        yield stored
    for first, other in TRIED if is_open else TRIED[:1]:
        yield {
            i.name: [
                s if isinstance(s, int) else other if d else first for d, s in enumerate(i.sizes)
            ]
            for i in file.inputs
        }


def _stored_sizes(file: OnnxFile) -> dict[str, list[int]] | None:
    """Return the sizes that the writer stored in the file, if they are valid."""
    if SIZES not in file.metadata:
        return None
    stored = parse_json(file.metadata[SIZES], f"{file.path}: {SIZES}", ExportError)
    ranks = {i.name: len(i.sizes) for i in file.inputs}
    if not isinstance(stored, dict) or stored.keys() != ranks.keys():
        return None
    for name, sizes in stored.items():
        is_valid = isinstance(sizes, list) and all(type(s) is int and s >= 0 for s in sizes)
        if not is_valid or len(sizes) != ranks[name]:
            return None
    return stored


def _example(
    file: OnnxFile,
    model: OnnxModel,
    sizes: Mapping[str, list[int]],
    inputs: Mapping[str, Any] | None,
) -> dict[str, Tensor]:
    """Return inputs to run the model on: ones for integers, otherwise seeded random numbers."""
    generator = torch.Generator().manual_seed(0)
    example: dict[str, Tensor] = {}
    by_name = {i.name: i for i in file.inputs}
    for name, source in model.names.items():
        if inputs is not None:
            tensor = inputs.get(name, inputs.get(source))
            if not isinstance(tensor, Tensor):
                names = ", ".join(model.names)
                raise file.fail(f"inputs: no tensor '{name}'. Its inputs: {names}.")
            example[name] = tensor
            continue
        shape, kind = sizes[source], TYPES[by_name[source].kind]
        count = math.prod(shape) + sum(t.numel() for t in example.values())
        if count > LARGEST_INPUT:
            raise file.fail(f"input {shown(source)} has {count} elements. Give inputs=….")
        if kind.is_floating_point:
            example[name] = torch.randn(shape, generator=generator).to(kind)
        else:
            example[name] = torch.ones(shape, dtype=kind)
    return example
