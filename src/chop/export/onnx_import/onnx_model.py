"""Module of torch that runs the nodes of a file; MaseGraph captures it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from chop.export.onnx_import.budget import Budget
from chop.export.onnx_import.call import Call
from chop.export.onnx_import.host_values import ArangeValue, as_tensor, host_of, is_host
from chop.export.onnx_import.onnx_file import TYPES, OnnxNode, Subgraph
from chop.export.onnx_import.quantised import Grid
from chop.export.onnx_import.rewrites import PROBLEMS, Folded, Fused, outputs_of, run_node
from chop.files import shown
from chop.ir.store.vocabulary import is_input_name, is_path_part

DEEPEST = 24
"""Maximum depth of nested modules."""
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
MOST_STEPS = 1 << 12
"""Limit on the nodes that the graphs of `Loop` and `If` run: a few bytes can ask for any number."""


class OnnxModel(nn.Module):
    """Nodes of a file; the first run, in `build`, creates the layers."""

    is_folding = False

    def __init__(self, folded: Folded) -> None:
        super().__init__()
        self.folded: Folded = folded
        self.budget = Budget(folded.file.size)
        self.nodes: list[OnnxNode] = Fused(folded, folded.nodes, folded.file.outputs).nodes
        self._steps = 0
        self.constants = folded.constants
        # read before the capture, while tensors still have values
        self.numbers = {name: host_of(c.values) for name, c in self.constants.items()}
        # the first dimension is the batch, which no size of an image depends on
        self.has_open_sizes = any(
            isinstance(s, str) for i in folded.file.inputs for s in i.sizes[1:]
        )
        self.names = input_names([i.name for i in folded.file.inputs])
        self.outputs = list(folded.file.outputs)
        self.renamed: dict[str, str] = {}
        self._layers: dict[tuple[Any, ...], str] = {}
        self._attached: dict[str, str] = {}
        self._matrices: dict[tuple[str, bool], nn.Parameter] = {}
        self._sources: dict[int, tuple[str, bool]] = {}
        self._is_building = False
        self._fixed: set[str] = set()
        for node in _with_inner(self.nodes):
            if node.operator == "Shape" or all(self.is_fixed(n) for n in node.reads if n):
                self._fixed.update(node.outputs)
        self._last_use: dict[int, list[str]] = {}
        last = {name: place for place, node in enumerate(self.nodes) for name in node.reads}
        for name, place in last.items():
            if name not in self.outputs:
                self._last_use.setdefault(place, []).append(name)

    def build(self, inputs: dict[str, Tensor]) -> Any:
        """Run once, create the layers, and return the outputs."""
        self._is_building = True
        try:
            with torch.no_grad():
                return self.run(inputs)
        finally:
            self._is_building = False

    def run(self, inputs: dict[str, Any]) -> Any:
        """Return the output, or several outputs by name."""
        values = {self.names[name]: value for name, value in inputs.items()}
        self._check_sizes(values)
        self._steps = 0
        file = self.folded.file
        for place, node in enumerate(self.nodes):
            call = Call(node, values, self)
            values |= run_node(call, file, self.budget) if self._is_building else outputs_of(call)
            for name in self._last_use.get(place, ()):
                values.pop(name, None)
        results = {name: self._result(name, values) for name in self.outputs}
        return results if len(results) > 1 else next(iter(results.values()))

    def _result(self, name: str, values: dict[str, Any]) -> Any:
        """Return an output in the type of the file; numbers become tensors."""
        value = self.attached(name) if name in self.constants else values[name]
        value = as_tensor(value) if isinstance(value, ArangeValue) or is_host(value) else value
        kind = TYPES.get(self.folded.file.output_kinds[name])
        if kind is None or not isinstance(value, Tensor) or value.dtype == kind:
            return value
        is_whole = kind in WHOLE and value.dtype in WHOLE
        return value.to(kind) if is_whole else value  # sizes and counts are int64 inside

    def _check_sizes(self, values: dict[str, Any]) -> None:
        """Raise if an input has not the sizes of the file; a capture records them as guards."""
        for value in self.folded.file.inputs:
            shape = values[value.name].shape
            for place, size in enumerate(value.sizes):
                if isinstance(size, int) and shape[place] != size:
                    raise self.folded.file.fail(
                        f"input {shown(value.name)} has size {shape[place]} in dimension "
                        f"{place}. Allowed: {size}."
                    )

    def grid_of(self, parameter: nn.Parameter) -> Grid | None:
        """Return the grid of the values of a parameter."""
        base, is_turned = self._sources.get(id(parameter), ("", False))
        grid = self.folded.grids.get(base)
        return grid.turned() if grid is not None and is_turned else grid

    # the methods of `Scope`, see there

    def kind_of(self, number: int) -> str:
        return self.folded.kind_of(number)

    def is_fixed(self, name: str) -> bool:
        return name in self.constants or name in self._fixed

    def note_grid(self, name: str, grid: Grid) -> None:
        """Do nothing: only folding stores grids."""

    def kind(self, name: str) -> str | None:
        return self.folded.kind(name)

    def attached(self, name: str) -> Tensor:
        """Return a constant as a parameter if the file has it as floats, otherwise as a buffer."""
        if name not in self._attached:
            base, _ = self.folded.origin(name)
            path = self._free_path(base)
            owner, leaf = self._owner(path)
            is_own = base in self.folded.stored or base in self.folded.grids
            if is_own and self.constants[base].values.is_floating_point():
                owner.register_parameter(leaf, self.matrix(name, turned=False)[0])
            else:
                owner.register_buffer(leaf, self.constants[name].values)
            self._attached[name] = path
        attribute: Any = self
        for part in self._attached[name].split("."):
            attribute = getattr(attribute, part)
        return attribute  # type: ignore[no-any-return]

    def matrix(self, name: str, *, turned: bool) -> tuple[nn.Parameter, str]:
        base, is_turned = self.folded.origin(name)
        key = base, is_turned != turned
        if key not in self._matrices:
            values = self.constants[base].values
            if values.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
                raise ValueError(f"{shown(name)} is {values.dtype}, and no float")
            parameter = nn.Parameter(values.t().contiguous() if key[1] else values)
            self._matrices[key] = parameter
            self._sources[id(parameter)] = key
        return self._matrices[key], base

    def layer(self, key: tuple[Any, ...], hint: str, make: Callable[[], nn.Module]) -> Any:
        if key not in self._layers:
            weight = hint.removesuffix("_DequantizeLinear_Output")  # as onnxruntime names them
            path = self._free_path(re.sub(r"\.(weight|bias|kernel|gamma|scale|\d+)$", "", weight))
            owner, leaf = self._owner(path)
            owner.add_module(leaf, make().eval())
            self._layers[key] = path
        return self.get_submodule(self._layers[key])

    def run_graph(self, graph: Subgraph, values: dict[str, Any]) -> list[Any]:
        for node in graph.nodes:
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise ValueError(f"its graphs run more than {MOST_STEPS} nodes")
            try:
                values |= outputs_of(Call(node, values, self))
            except PROBLEMS as error:
                raise ValueError(f"{node}: {error}") from error
        return [self._value(name, values) for name in graph.outputs]

    def _value(self, name: str, values: dict[str, Any]) -> Any:
        if name not in self.constants:
            return values[name]
        number = self.numbers[name]
        is_whole = not self.constants[name].values.is_floating_point()
        return number if is_whole and number is not None else self.attached(name)

    def _free_path(self, name: str) -> str:
        """Return an unused path that resembles the name."""
        parts = [_part(p) for p in name.split(".") if p]
        parts = parts if 0 < len(parts) <= DEEPEST else ["_".join(parts)[:200] or "constant"]
        path = ".".join(parts)
        if not self._is_free(parts):
            flat, number = _part("_".join(parts)[:200]), 1
            while hasattr(self, f"{flat}_{number}"):
                number += 1
            path = f"{flat}_{number}"
        if path != name:
            self.renamed[name] = path
        return path

    def _is_free(self, parts: list[str]) -> bool:
        owner: Any = self
        for part in parts[:-1]:
            if not hasattr(owner, part):
                return True
            owner = getattr(owner, part)
            if type(owner) is not nn.Module:
                return False
        return not hasattr(owner, parts[-1])

    def _owner(self, path: str) -> tuple[nn.Module, str]:
        owner: nn.Module = self
        *parts, leaf = path.split(".")
        for part in parts:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        return owner, leaf


def _with_inner(nodes: Iterable[OnnxNode]) -> Iterator[OnnxNode]:
    """Yield nodes, each after the nodes of its graphs."""
    for node in nodes:
        for graph in (a for a in node.attributes.values() if isinstance(a, Subgraph)):
            yield from _with_inner(graph.nodes)
        yield node


def _part(part: str) -> str:
    word = re.sub(r"\W+", "_", part, flags=re.ASCII)[:100] or "_"
    is_valid = is_path_part(word) and not hasattr(OnnxModel, word)
    return word if is_valid else f"{word.strip('_') or 'x'}_"


def input_names(names: list[str]) -> dict[str, str]:
    """Return the names by valid names of Python arguments."""
    valid: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:100] or "x"
        plain = plain if is_input_name(plain) else f"input_{plain}"
        while plain in valid:
            plain += "_"
        valid[plain] = name
    return valid


def build_model(folded: Folded) -> OnnxModel:
    """Return the model, with a forward whose arguments are the inputs of the file."""
    names = input_names([i.name for i in folded.file.inputs])

    def forward(self: OnnxModel, *args: Any, **kwargs: Any) -> Any:
        return self.run({**dict(zip(names, args, strict=False)), **kwargs})

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, kind) for n in ("self", *names)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    cls = type("OnnxModel", (OnnxModel,), {"forward": forward, "__module__": __name__})
    model: OnnxModel = cls(folded)
    return model.eval()
