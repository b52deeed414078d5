"""Lowering of a graph for exporters: parameters as values, activation formats as one operator."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._pytree import tree_map_only

from chop.arguments import MAPPING, NONE, an, takes
from chop.errors import ExportError
from chop.export.activation_rounding import Rounding, exportable
from chop.ir.graph import MaseGraph
from chop.ir.reclass import reclassed
from chop.kernels.layers import PACKED_LAYERS, QEmbeddingPacked, QLinearInt8, unpacked_weight
from chop.nn.modules.coded import CodedLinear
from chop.nn.modules.semi_structured import SemiStructuredLinear
from chop.nn.quantized.call_operands import DATA_OUT
from chop.nn.quantized.functional import call_quantizers, is_quantized_function
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Bypass, Quantizer

GRAPH = an(MaseGraph, "a MaseGraph")


class ExportableGraph:
    """Lowered copy of a graph (`graph`), and the formats that were `dropped`."""

    def __init__(self, graph: MaseGraph, target: str, fallback: str | None) -> None:
        self.target, self.fallback = target, fallback
        self.dropped: list[str] = []
        self.graph = copy.deepcopy(graph)
        for path, module in list(self.graph.model.named_modules()):
            if isinstance(module, QuantizedModule):
                self._quantised(path, module)
            elif isinstance(module, (*PACKED_LAYERS, CodedLinear, SemiStructuredLinear)):
                self._put(path, self._unpacked(path, module))
        for node in list(self.graph.fx_graph.nodes):
            if node.op == "call_function" and is_quantized_function(node.target):
                self._function(node)
        self.graph.recompile()

    def _format(self, form: Quantizer, where: str, stored: Tensor | None = None) -> Rounding:
        rounding = exportable(form, stored)
        if rounding is not None:
            return rounding
        if self.fallback is None:
            raise ExportError(
                f"to_{self.target}: {where}: {form} has no operator there. Nearest: "
                "integer or scale_integer of the same width, rounded to nearest even. "
                'Give fallback="float" to leave these values as they are.'
            )
        self.dropped.append(f"not rounded in the target: {where}: {form}")
        return Bypass()

    def _quantised(self, path: str, module: QuantizedModule) -> None:
        values = {name: stored.values for name, stored in module.stored_values().items()}
        if is_parametrized(module):  # its weight would be recomputed without rounding
            module = reclassed(module, type(module).__bases__[0])
            del module._modules["parametrizations"]
            self._put(path, module)
        scales = {r: getattr(module, f"{r}_scale", None) for r in module.quantizers}
        formats: Any = {
            role: self._format(form, f"module '{path}', {role}", scales[role])
            if role.startswith("data_")
            else form
            for role, form in module.quantizers.items()
        }
        module.quantizers = formats
        for name, value in values.items():
            place, _, leaf = name.rpartition(".")
            parameter = nn.Parameter(value.clone(), requires_grad=False)
            module.get_submodule(place)._parameters[leaf] = parameter
        module.held = list(module.op.compute.names_of(module))  # type: ignore[union-attr]

    def _unpacked(self, path: str, module: Any) -> nn.Module:
        if isinstance(module, QEmbeddingPacked):
            table = nn.Embedding(module.num_embeddings, module.embedding_dim, device="meta")
            table.weight = nn.Parameter(unpacked_weight(module), requires_grad=False)
            return table
        if isinstance(module, QLinearInt8) and module.quantize_input:
            where = f"module '{path}': inputs in int8, scaled row by row"
            if self.fallback is None:
                raise ExportError(f'to_{self.target}: {where}. Give fallback="float".')
            self.dropped.append(f"not rounded in the target: {where}")
        is_float = isinstance(module, CodedLinear | SemiStructuredLinear)
        weight = module.float_weight() if is_float else unpacked_weight(module)
        layer = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
        layer.weight = nn.Parameter(weight, requires_grad=False)
        if module.bias is not None:
            layer.bias = nn.Parameter(module.bias.detach(), requires_grad=False)
        formats = getattr(module, "quantizers", {})
        roles = {r: formats.get(r, Bypass()) for r in ("data_in", DATA_OUT)}
        roundings = {r: self._format(q, f"module '{path}', {r}") for r, q in roles.items()}
        is_plain = all(q.is_bypass for q in roundings.values())
        return layer.eval() if is_plain else _Rounded(layer.eval(), roundings)

    def _put(self, path: str, layer: nn.Module) -> None:
        owner, _, leaf = path.rpartition(".")
        setattr(self.graph.model.get_submodule(owner), leaf, layer)

    def _step(self, form: Rounding) -> str:
        """Add a module that rounds, and return its name."""
        model = self.graph.model
        name = f"rounding_{sum(isinstance(m, _RoundingStep) for m in model.children())}"
        model.add_module(name, _RoundingStep(form))
        return name

    def _function(self, node: fx.Node) -> None:
        """Replace a quantised function by the plain one, with rounding of operands and result."""
        compute = node.target.op.compute  # type: ignore[union-attr]
        formats = call_quantizers(node.target, node.kwargs.get("config"))
        args, kwargs = list(node.args), {k: v for k, v in node.kwargs.items() if k != "config"}
        graph = self.graph.fx_graph
        for operand in compute.operands:
            place: Any = args if operand.position < len(args) else kwargs
            key: Any = operand.position if place is args else operand.argument
            where = f"node '{node.name}', {operand.role}"
            form = self._format(formats[operand.role], where)
            if (place is args or key in kwargs) and not form.is_bypass:
                with graph.inserting_before(node):
                    place[key] = graph.call_module(self._step(form), (place[key],))
        node.target, node.args, node.kwargs = compute.function, tuple(args), kwargs
        form = self._format(formats[DATA_OUT], f"node '{node.name}', {DATA_OUT}")
        if not form.is_bypass:
            with graph.inserting_after(node):
                rounded = graph.call_module(self._step(form), (node,))
            node.replace_all_uses_with(rounded, delete_user_cb=lambda user: user is not rounded)


class _RoundingStep(nn.Module):
    """Module that rounds floating-point tensors and returns other values unchanged."""

    def __init__(self, form: Rounding) -> None:
        super().__init__()
        self.form = form

    def forward(self, value: Any) -> Any:
        is_operand = isinstance(value, Tensor) and value.is_floating_point()
        return self.form(value) if is_operand else value


class _Rounded(nn.Module):
    """Layer with rounding of its input and its result."""

    def __init__(self, layer: nn.Module, formats: Mapping[str, Rounding]) -> None:
        super().__init__()
        self.layer, self.formats = layer, dict(formats)

    def forward(self, x: Tensor) -> Tensor:
        return self.formats[DATA_OUT](self.layer(self.formats["data_in"](x)))


def example_of(mg: MaseGraph, inputs: Mapping[str, Any] | None, target: str) -> dict[str, Any]:
    """Return the example inputs of an export."""
    example = dict(inputs if inputs is not None else mg.dummy_in or {})
    if not example:
        raise ExportError(f"to_{target}: the graph has no example inputs. Give inputs=….")
    named = {name: example[name] for name in mg.model.input_names if name in example}
    return tree_map_only(Tensor, _own_copy, named)  # type: ignore[no-any-return]


def _own_copy(tensor: Tensor) -> Tensor:
    """Return a dense copy: torch.export guards the storage that views share."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def dynamic_sizes(mg: MaseGraph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dynamic sizes of the inputs, as `torch.export` expects them."""
    table = mg.open_sizes()
    dynamic: dict[str, Any] = {}
    for name, value in inputs.items():
        free = [i for i, kind in enumerate(table.get(name, ())) if kind != "pinned"]
        sizes = dict.fromkeys(free, torch.export.Dim.AUTO)
        dynamic[name] = sizes if isinstance(value, Tensor) else None
    return dynamic


@takes(ExportError, mg=GRAPH, inputs=MAPPING | NONE)
def to_exported_program(
    mg: MaseGraph, inputs: Mapping[str, Any] | None = None, *, fallback: str | None = None
) -> torch.export.ExportedProgram:
    """Return the graph by `torch.export`, with the dynamic sizes of the graph.

    Weights are the values that layers compute with. Activation formats are calls of
    `torch.ops.mase.round_to_steps`, or plain arithmetic.
    """
    return export_lowered(ExportableGraph(mg, "exported_program", fallback).graph, inputs)


def export_lowered(
    graph: MaseGraph, inputs: Mapping[str, Any] | None, *, is_dynamic: bool = True
) -> torch.export.ExportedProgram:
    """Export a lowered graph by `torch.export`."""
    example = example_of(graph, inputs, "exported_program")
    model = graph.model.eval()
    sizes = dynamic_sizes(graph, example) if is_dynamic else None
    with torch.no_grad():
        return torch.export.export(model, (), example, dynamic_shapes=sizes, strict=False)
