"""Reader of programs of `torch.export`, which have operators in place of layers."""

from __future__ import annotations

import contextlib
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from chop.errors import ExportError
from chop.export.onnx import program_as_onnx, rounding_operators
from chop.export.onnx_import.reader import from_onnx
from chop.export.onnx_package import onnx_package
from chop.export.root_tensors import ROOT, restore_root_names
from chop.ir.graph import MaseGraph

FAILURES = (
    *(RuntimeError, ValueError, KeyError, TypeError, AttributeError, OSError, EOFError),
    *(AssertionError, zipfile.BadZipFile),
)
"""Errors of torch for a file that is no program, or that another version wrote."""


def from_exported_program(program: torch.export.ExportedProgram | str | Path) -> MaseGraph:
    """Return a program of `torch.export`, or of a file `.pt2`, as a graph.

    Operators with parameters become layers: the program is translated to ONNX, and that is read by
    `from_onnx`. Names of layers and inputs and the dynamic sizes of the program stay. One output is
    a tensor, several are a dict. `torch.export.load` reads files with pickle, which can run code:
    give only files that you trust.
    """
    loaded = program if isinstance(program, torch.export.ExportedProgram) else _loaded(program)
    onnx = onnx_package("onnx")
    onnx_package("onnxscript")
    with _root_tensors_moved(loaded):
        proto = program_as_onnx(loaded, "from_exported_program", rounding_operators())
    restore_root_names(proto, ROOT)
    names = [value.name for value in proto.graph.input]
    with tempfile.TemporaryDirectory(prefix="mase-program-") as folder:
        file = Path(folder, "program.onnx")
        onnx.save_model(proto, file)
        return from_onnx(file, inputs=_example(loaded, names))


def _loaded(path: Any) -> torch.export.ExportedProgram:
    """Return the program of a file."""
    if not isinstance(path, str | Path) or not Path(path).is_file():
        raise ExportError(
            f"from_exported_program: expected a program of torch.export or its file, got {path!r}."
        )
    try:
        return torch.export.load(path)
    except FAILURES as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ExportError(
            f"{path}: torch.export.load of torch {torch.__version__} cannot read it: {reason}"
        ) from error


@contextlib.contextmanager
def _root_tensors_moved(program: torch.export.ExportedProgram) -> Iterator[None]:
    """Rename the tensors at the root of a program inside the context, see `root_tensors`."""
    specs = [s for s in program.graph_signature.input_specs if s.target and "." not in s.target]
    places: list[dict[str, Any]] = [program.state_dict, program.constants]

    def rename(spec: Any, name: str) -> None:
        for place in places:
            if spec.target in place:
                place[name] = place.pop(spec.target)
        spec.target = name

    for spec in specs:
        rename(spec, f"{ROOT}.{spec.target}")
    try:
        yield
    finally:
        for spec in specs:
            rename(spec, str(spec.target).removeprefix(f"{ROOT}."))


def _example(program: torch.export.ExportedProgram, names: list[str]) -> dict[str, Tensor] | None:
    """Return the example inputs of a program by name; None if they do not fit."""
    leaves = _pytree.tree_leaves(program.example_inputs or ())
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return dict(zip(names, tensors, strict=True)) if len(names) == len(tensors) else None
