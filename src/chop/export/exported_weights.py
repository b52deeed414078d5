"""Parameters of a graph: the values that it computes with, and their formats."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import ExportError
from chop.ir.graph import MaseGraph
from chop.ir.store.packed_tensors import HasFormats
from chop.kernels.layers import PACKED_LAYERS, QLinearInt8, QLinearPacked, unpacked_weight
from chop.kernels.packed_formats import packed_format
from chop.kernels.reference import real_scales
from chop.nn.modules.coded import CodedLinear
from chop.nn.modules.lora import LoRALinear
from chop.nn.modules.masked import Masked
from chop.nn.modules.semi_structured import SemiStructuredLinear
from chop.nn.modules.transposed import is_transposed_linear
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Quantizer, ScaleInteger
from chop.nn.quantizers.codes import Floats, Tiles, encode, powers_of, spread

INT8 = ScaleInteger(8, granularity="channel", scale="stored")


@dataclass(frozen=True)
class Weight:
    """Parameter as its layer computes with it; `format` is None for a plain float.

    `is_linear`: the matrix of a linear layer, (outputs, inputs). Models like GPT-2 store some as
    (inputs, outputs) until the layer is quantised. `offset`: what is added to integers times their
    scales, or None.
    """

    values: Tensor
    format: Quantizer | None = None
    scale: Floats | Tiles | None = None
    is_linear: bool = False
    offset: Floats | None = None

    @property
    def text(self) -> str:
        """Format as text."""
        if self.offset is not None:
            return f"{self.format} with offsets"
        return "float" if self.format is None else str(self.format)

    def rows(self, first: int, last: int | None) -> Weight:
        """Return some rows of a matrix, with their scales; None for tiles that they would cut."""
        values = self.values[first:last]
        scale, offset = (
            _scale_rows(s, self.values, first, last) for s in (self.scale, self.offset)
        )
        assert not isinstance(offset, Tiles), "offsets are floats"
        return Weight(values, self.format, scale, self.is_linear, offset)

    def offsets(self) -> Tensor | None:
        """Return the offset of every value, expanded to their shape, or None."""
        if self.offset is None:
            return None
        return spread(self.offset, self.values.shape).float().expand_as(self.values)

    def steps(self) -> Tensor | None:
        """Return the step that divides every value, expanded to their shape, or None."""
        form, values = self.format, self.values.float()
        if form is None:
            return None
        if form.scaled is not None and isinstance(self.scale, Floats):
            return spread(self.scale, values.shape).float().expand_as(values)
        step = form.integer_step()
        if step is None or form.blocks is None:
            return None if step is None else torch.full_like(values, step)
        coded = encode(values, form)  # with the smallest shared exponents
        return None if coded is None else powers_of(coded) * step


def _scale_rows(
    scale: Floats | Tiles | None, values: Tensor, first: int, last: int | None
) -> Floats | Tiles | None:
    """Return the scales of the rows `first` to `last` of a matrix."""
    if isinstance(scale, Floats):
        is_by_row = scale.axis == 0 or (scale.group_size is not None and scale.values.dim() > 1)
        return dataclasses.replace(scale, values=scale.values[first:last]) if is_by_row else scale
    if scale is None:
        return None
    high, wide = (
        size if size != -1 else n for size, n in zip(scale.tile, values.shape, strict=True)
    )
    end = values.shape[0] if last is None else last
    if first % high or (end % high and end != values.shape[0]):
        return None
    across = -(-values.shape[1] // wide)
    head = 4 if scale.has_levels else 0  # the tensor's scale, a float32
    tiles = scale.values[head + first // high * across : head + -(-end // high) * across]
    return dataclasses.replace(scale, values=torch.cat([scale.values[:head], tiles]))


Load = Callable[[], Weight]
"""Function that returns a weight; a packed one is unpacked at each call."""


def weights_of(graph: MaseGraph) -> dict[str, Weight]:
    """Return every parameter and buffer by its name in the model."""
    return {name: load() for name, load in weight_loaders(graph).items()}


def weight_loaders(graph: MaseGraph) -> dict[str, Load]:
    """Return a function for every parameter and buffer, so that one is unpacked at a time."""
    loaders: dict[str, Load] = {}
    for path, module in graph.model.named_modules():
        prefix = f"{path}." if path else ""
        for name, load in _own_weights(module, path):
            loaders.setdefault(f"{prefix}{name}", load)
    return loaders


def _loaded(*parts: Any, **named: Any) -> Load:
    """Return a function that returns this weight."""
    weight = Weight(*parts, **named)
    return lambda: weight


def _own_weights(module: nn.Module, path: str) -> Iterator[tuple[str, Load]]:
    """Yield the weights of the layer itself, without those of its children."""
    if isinstance(module, LoRALinear):
        raise ExportError(
            f"module '{path}': has an adapter beside its weight. "
            "Run fuse_lora_weights_transform_pass first."
        )
    if isinstance(module, (*PACKED_LAYERS, SemiStructuredLinear)):
        yield "weight", functools.partial(_packed, module)
        bias = module._parameters.get("bias")
        if bias is not None:
            yield "bias", _loaded(bias.detach())
        return
    formatted = module.stored_values() if isinstance(module, HasFormats) else {}
    for name, stored in formatted.items():
        is_linear = isinstance(module, nn.Linear | CodedLinear)
        yield name, _loaded(stored.values, stored.format, stored.scale, is_linear)
    if isinstance(module, Masked):
        module.write_zeros()
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None and name not in formatted:
            yield name, _loaded(tensor.detach(), is_linear=isinstance(module, nn.Linear))


def as_in(model: nn.Module, name: str, weight: Weight) -> Tensor:
    """Return the values in the orientation of the model of transformers."""
    owner = model.get_submodule(name.rpartition(".")[0])
    turns = is_transposed_linear(owner) and weight.values.dim() == 2 and weight.is_linear
    return weight.values.t() if turns else weight.values


def _packed(layer: nn.Module) -> Weight:
    if isinstance(layer, SemiStructuredLinear):
        return Weight(layer.float_weight(), is_linear=True)
    values = unpacked_weight(layer).detach()
    if isinstance(layer, QLinearInt8):
        return Weight(values, INT8, Floats(layer.scales.detach(), 0), True)
    packed: Any = layer.weight
    row = packed_format(packed.format)
    assert row is not None, f"no packed format '{packed.format}'"
    form, is_linear = row.quantizer(packed.group_size), isinstance(layer, QLinearPacked)
    if not row.has_real_scales:
        return Weight(values, form, None, is_linear)
    form = dataclasses.replace(form, scale="stored", narrow=False)  # type: ignore[call-arg]
    scale, offset = real_scales(packed.scales), packed.offsets
    group = packed.group_size
    added = None if offset is None else Floats(offset.detach().float(), None, group)
    return Weight(values, form, Floats(scale, None, group), is_linear, added)


def quantized_activations(graph: MaseGraph) -> list[str]:
    """Return a description of each place where the graph rounds activations."""
    places = []
    for path, module in graph.model.named_modules():
        formats = getattr(module, "quantizers", None)
        if isinstance(module, (QuantizedModule, *PACKED_LAYERS)):
            roles = {r: q for r, q in (formats or {}).items() if r.startswith("data_")}
            rounded = ", ".join(f"{r} {q}" for r, q in roles.items() if not q.is_bypass)
            if rounded:
                places.append(f"module '{path}': {rounded}")
        if isinstance(module, QLinearInt8) and module.quantize_input:
            places.append(f"module '{path}': data_in int8")
    for node in quantized_calls(graph):
        if "config" in node.kwargs:
            places.append(f"node '{node.name}': {node.target.__name__}")  # type: ignore[union-attr]
    return places


def quantized_calls(graph: MaseGraph) -> list[fx.Node]:
    """Return the nodes that call a quantised function."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    functions = "chop.nn.quantized.functional"
    return [n for n in calls if getattr(n.target, "__module__", "") == functions]


def check_activations(graph: MaseGraph, target: str, fallback: str | None) -> list[str]:
    """Return notes on the dropped roundings of activations; raise unless `fallback` allows it."""
    places = quantized_activations(graph)
    if places and fallback is None:
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        raise ExportError(
            f"to_{target}: {places[0]}{more}: the target computes activations in its own way. "
            'Quantise weights alone (data_in_width = "NA"), or give fallback="float".'
        )
    return [f"not rounded in the target: {each}" for each in places]
