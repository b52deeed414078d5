"""What a graph computes with: the values of its parameters, and the formats they are in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chop.errors import ExportError
from chop.ir.graph import MaseGraph
from chop.ir.store.packed import HasFormats
from chop.kernels.formats import PACKED_FORMATS
from chop.kernels.layers import PACKED_LAYERS, QLinearInt8, QLinearPacked, unpacked_weight
from chop.nn.modules.coded import CodedLinear
from chop.nn.modules.lora import LoRALinear
from chop.nn.modules.masked import Masked
from chop.nn.modules.semi_structured import SemiStructuredLinear
from chop.nn.modules.transposed import is_transposed_linear
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Quantizer, ScaleInteger
from chop.nn.quantizers.codes import Floats, encode, powers_of, spread

INT8 = ScaleInteger(8, granularity="channel", scale="stored")


@dataclass(frozen=True)
class Weight:
    """A parameter as its layer computes with it; `format` is None where it is a plain float.

    `is_linear`: it is the matrix of a linear layer, (outputs, inputs). Models like GPT-2 keep some
    as (inputs, outputs); once such a layer is quantised it is an ordinary one.
    """

    values: Tensor
    format: Quantizer | None = None
    scale: Floats | None = None
    is_linear: bool = False

    @property
    def text(self) -> str:
        """The format in words."""
        return "float" if self.format is None else str(self.format)

    def steps(self) -> Tensor | None:
        """The step of which every value is a multiple, shaped as the values; None without one."""
        form, values = self.format, self.values.float()
        if form is None:
            return None
        if form.scaled is not None and self.scale is not None:
            return spread(self.scale, values.shape).float().expand_as(values)
        step = form.integer_step()
        if step is None or form.blocks is None:
            return None if step is None else torch.full_like(values, step)
        coded = encode(values, form)  # with shared exponents as small as they can be
        return None if coded is None else powers_of(coded) * step


def weights_of(graph: MaseGraph) -> dict[str, Weight]:
    """Every parameter and buffer by the name it has in the model."""
    found: dict[str, Weight] = {}
    for path, module in graph.model.named_modules():
        prefix = f"{path}." if path else ""
        for name, weight in _own_weights(module, path):
            found.setdefault(f"{prefix}{name}", weight)
    return found


def _own_weights(module: nn.Module, path: str) -> Iterator[tuple[str, Weight]]:
    """What the layer itself reads."""
    if isinstance(module, LoRALinear):
        raise ExportError(
            f"module '{path}': has an adapter beside its weight. "
            "Run fuse_lora_weights_transform_pass first."
        )
    if isinstance(module, (*PACKED_LAYERS, SemiStructuredLinear)):
        yield "weight", _packed(module)
        bias = module._parameters.get("bias")
        if bias is not None:
            yield "bias", Weight(bias.detach())
        return
    told = module.stored_values() if isinstance(module, HasFormats) else {}
    for name, stored in told.items():
        is_linear = isinstance(module, nn.Linear | CodedLinear)
        yield name, Weight(stored.values, stored.format, stored.scale, is_linear)
    if isinstance(module, Masked):
        module.write_zeros()
    tensors = [*module._parameters.items(), *module._buffers.items()]
    for name, tensor in tensors:
        if tensor is not None and name not in told:
            yield name, Weight(tensor.detach(), is_linear=isinstance(module, nn.Linear))


def as_in(model: nn.Module, name: str, weight: Weight) -> Tensor:
    """The values as the model of transformers keeps them under `name`."""
    owner = model.get_submodule(name.rpartition(".")[0])
    turns = is_transposed_linear(owner) and weight.values.dim() == 2 and weight.is_linear
    return weight.values.t() if turns else weight.values


def _packed(layer: nn.Module) -> Weight:
    if isinstance(layer, SemiStructuredLinear):
        return Weight(layer.float_weight(), is_linear=True)
    values = unpacked_weight(layer).detach()
    if isinstance(layer, QLinearInt8):
        return Weight(values, INT8, Floats(layer.scales.detach(), 0), True)
    row = PACKED_FORMATS[layer.format]  # type: ignore[index]
    form = row.quantizer(layer.group_size)  # type: ignore[arg-type]
    return Weight(values, form, None, isinstance(layer, QLinearPacked))


def quantized_activations(graph: MaseGraph) -> list[str]:
    """Where values that flow through the graph are rounded, in words."""
    found = []
    for path, module in graph.model.named_modules():
        formats = getattr(module, "quantizers", None)
        if isinstance(module, (QuantizedModule, *PACKED_LAYERS)):
            rounded = _rounded_roles(formats or {})
            if rounded:
                found.append(f"module '{path}': {rounded}")
        if isinstance(module, QLinearInt8) and module.quantize_input:
            found.append(f"module '{path}': data_in int8")
    for node in graph.nodes:
        if node.op == "call_function" and "config" in node.kwargs and _is_quantized(node.target):
            found.append(f"node '{node.name}': {node.target.__name__}")
    return found


def _rounded_roles(formats: dict[str, Quantizer]) -> str:
    roles = {r: q for r, q in formats.items() if r.startswith("data_")}
    return ", ".join(f"{r} {q}" for r, q in roles.items() if not q.is_bypass)


def _is_quantized(target: object) -> bool:
    return getattr(target, "__module__", "") == "chop.nn.quantized.functional"


def check_activations(graph: MaseGraph, target: str, fallback: str | None) -> list[str]:
    """What of the activations is dropped; refused unless `fallback` allows it."""
    found = quantized_activations(graph)
    if found and fallback is None:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise ExportError(
            f"to_{target}: {found[0]}{more}: the target computes activations in its own way. "
            'Quantise weights alone (data_in_width = "NA"), or give fallback="float".'
        )
    return [f"not rounded in the target: {each}" for each in found]
