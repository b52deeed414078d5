"""A file as a module of torch that runs its nodes; MaseGraph captures it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from chop.export.onnx_import.budget import Budget
from chop.export.onnx_import.call import Call
from chop.export.onnx_import.file import Node
from chop.export.onnx_import.quantised import Grid
from chop.export.onnx_import.rewrites import Folded, Fused, outputs_of, run_node
from chop.export.onnx_import.values import host_of
from chop.files import shown
from chop.ir.store.vocabulary import is_input_name, is_path_part

DEEPEST = 24
"""Levels of a name that become modules within modules."""


class OnnxModel(nn.Module):
    """The nodes of a file. The first run, in `build`, makes its layers."""

    is_folding = False

    def __init__(self, folded: Folded) -> None:
        super().__init__()
        self.folded: Folded = folded
        self.budget = Budget(folded.file.size)
        self.nodes: list[Node] = Fused(folded).nodes
        self.constants = folded.constants
        # read before anything is captured, when tensors still tell their values
        self.numbers = {name: host_of(c.values) for name, c in self.constants.items()}
        self.names = input_names([i.name for i in folded.file.inputs])
        self.outputs = list(folded.file.outputs)
        self.renamed: dict[str, str] = {}
        self._layers: dict[tuple[Any, ...], str] = {}
        self._attached: dict[str, str] = {}
        self._matrices: dict[tuple[str, bool], nn.Parameter] = {}
        self._sources: dict[int, tuple[str, bool]] = {}
        self._is_building = False
        self._fixed: set[str] = set()
        for node in self.nodes:
            if node.operator == "Shape" or all(self.is_fixed(n) for n in node.inputs if n):
                self._fixed.update(node.outputs)
        self._last_use = _last_uses(self.nodes, self.outputs)

    def build(self, inputs: dict[str, Tensor]) -> Any:
        """Run once, make the layers, and give the outputs."""
        self._is_building = True
        try:
            with torch.no_grad():
                return self.run(inputs)
        finally:
            self._is_building = False

    def run(self, inputs: dict[str, Any]) -> Any:
        """The output, or several by name."""
        values = {self.names[name]: value for name, value in inputs.items()}
        self._check_sizes(values)
        for place, node in enumerate(self.nodes):
            call = Call(node, values, self)
            building = self._is_building
            values |= self._run_node(call) if building else outputs_of(call)
            for name in self._last_use.get(place, ()):
                values.pop(name, None)
        found = {name: self._result(name, values) for name in self.outputs}
        return found if len(found) > 1 else next(iter(found.values()))

    def _run_node(self, call: Call) -> dict[str, Any]:
        return run_node(call, self.folded.file, self.budget)

    def _check_sizes(self, values: dict[str, Any]) -> None:
        """Hold the sizes that the file fixes; a capture keeps them as guards."""
        for value in self.folded.file.inputs:
            given = values[value.name]
            for place, size in enumerate(value.sizes):
                if isinstance(size, int) and given.shape[place] != size:
                    raise self.folded.file.fail(
                        f"input {shown(value.name)} has size {given.shape[place]} in dimension "
                        f"{place}. Allowed: {size}."
                    )

    def _result(self, name: str, values: dict[str, Any]) -> Any:
        value = self.attached(name) if name in self.constants else values[name]
        return torch.as_tensor(value) if isinstance(value, int | float) else value

    def grid_of(self, parameter: nn.Parameter) -> Grid | None:
        """What the values of a parameter are multiples of."""
        base, is_turned = self._sources.get(id(parameter), ("", False))
        grid = self.folded.grids.get(base)
        return grid.turned() if grid is not None and is_turned else grid

    # -- what running nodes asks of a scope ------------------------------------------------

    def kind_of(self, number: int) -> str:
        """The name of a type."""
        return self.folded.kind_of(number)

    def is_fixed(self, name: str) -> bool:
        """Whether a value is made of constants and sizes alone."""
        return name in self.constants or name in self._fixed

    def note_grid(self, name: str, grid: Grid) -> None:
        """Nothing is noted while the model runs."""

    def note_kind(self, name: str, kind: str) -> None:
        """Nothing is noted while the model runs."""

    def attached(self, name: str) -> Tensor:
        """A constant as a parameter, where it is a tensor of floats of the file, or a buffer."""
        if name not in self._attached:
            base, _ = self.folded.origin(name)
            path = self._free_path(base)
            owner, leaf = self._owner(path)
            if self._is_parameter(base):
                owner.register_parameter(leaf, self.matrix(name, turned=False)[0])
            else:
                owner.register_buffer(leaf, self.constants[name].values)
            self._attached[name] = path
        found: Any = self
        for part in self._attached[name].split("."):
            found = getattr(found, part)
        return found  # type: ignore[no-any-return]

    def _is_parameter(self, base: str) -> bool:
        is_own = base in self.folded.file.constants or base in self.folded.grids
        return is_own and self.constants[base].values.is_floating_point()

    def matrix(self, name: str, *, turned: bool) -> tuple[nn.Parameter, str]:
        """A constant, or its transpose, as a parameter, and the name of what it came from."""
        base, is_turned = self.folded.origin(name)
        key = base, is_turned != turned
        if key not in self._matrices:
            values = self.constants[base].values
            if values.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
                raise ValueError(f"{shown(name)} is {values.dtype}, and no float")
            made = nn.Parameter(values.t().contiguous() if key[1] else values)
            self._matrices[key] = made
            self._sources[id(made)] = key
        return self._matrices[key], base

    def layer(self, key: tuple[Any, ...], hint: str, make: Callable[[], nn.Module]) -> Any:
        """The layer of this key, made where there is none yet."""
        if key not in self._layers:
            path = self._free_path(_layer_name(hint))
            owner, leaf = self._owner(path)
            owner.add_module(leaf, make().eval())
            self._layers[key] = path
        return self.get_submodule(self._layers[key])

    # -- places ----------------------------------------------------------------------------

    def _free_path(self, name: str) -> str:
        """Return a path that is not taken, as like the name as paths can be."""
        path = self._path_like(name)
        if path != name:
            self.renamed[name] = path
        return path

    def _path_like(self, name: str) -> str:
        parts = [_part(p) for p in name.split(".") if p]
        parts = parts if 0 < len(parts) <= DEEPEST else ["_".join(parts)[:200] or "constant"]
        if self._is_free(parts):
            return ".".join(parts)
        flat, number = _part("_".join(parts)[:200]), 1
        while hasattr(self, f"{flat}_{number}"):
            number += 1
        return f"{flat}_{number}"

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


def _layer_name(weight: str) -> str:
    """The name of a layer by that of its weight."""
    plain = weight.removesuffix("_DequantizeLinear_Output")  # as onnxruntime names them
    return re.sub(r"\.(weight|bias|kernel|gamma|scale|\d+)$", "", plain)


def _part(part: str) -> str:
    made = re.sub(r"\W+", "_", part, flags=re.ASCII)[:100] or "_"
    is_kept = is_path_part(made) and not hasattr(OnnxModel, made)
    return made if is_kept else f"{made.strip('_') or 'x'}_"


def _last_uses(nodes: list[Node], outputs: list[str]) -> dict[int, list[str]]:
    """After which node a value is not needed any more."""
    last = {name: place for place, node in enumerate(nodes) for name in node.inputs}
    found: dict[int, list[str]] = {}
    for name, place in last.items():
        if name not in outputs:
            found.setdefault(place, []).append(name)
    return found


def input_names(names: list[str]) -> dict[str, str]:
    """Names that a Python function can have for its arguments, and whose they are."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:100] or "x"
        plain = plain if is_input_name(plain) else f"input_{plain}"
        while plain in found:
            plain += "_"
        found[plain] = name
    return found


def made_model(folded: Folded) -> OnnxModel:
    """The model, with a forward that has the inputs of the file by name."""
    names = input_names([i.name for i in folded.file.inputs])

    def forward(self: OnnxModel, *args: Any, **kwargs: Any) -> Any:
        return self.run({**dict(zip(names, args, strict=False)), **kwargs})

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    listed = [inspect.Parameter(n, kind) for n in ("self", *names)]
    forward.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
    cls = type("OnnxModel", (OnnxModel,), {"forward": forward, "__module__": __name__})
    made: OnnxModel = cls(folded)
    return made.eval()
