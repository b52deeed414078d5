"""Replacement of layers by packed ones, and the bytes of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.ir.ops import op_of_module
from chop.ir.reclass import reclassed
from chop.kernels import (
    GROUP_SIZES,
    PackedTensor,
    QEmbeddingPacked,
    QExpertsPacked,
    QLinearInt8,
    QLinearPacked,
    pack,
    unpack,
)
from chop.kernels.layers import PACKED_LAYERS
from chop.kernels.ops import pack_integers
from chop.kernels.packed_formats import (
    DEFAULT_GROUP_SIZE,
    ROW_INTEGERS,
    check_group_size,
    coded_format,
    has_codes_alone,
    pack_format,
    packed_format,
)
from chop.kernels.reference import spread
from chop.nn.modules.coded import CodedLinear
from chop.nn.modules.lora import LoRALinear, adapted_layer, is_packed
from chop.nn.modules.masked import WEIGHT, Masked
from chop.nn.modules.transposed import as_linear, is_transposed_linear
from chop.nn.quantized.call_operands import is_bypassed
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Quantizer, ScaleInteger
from chop.nn.quantizers.stored_scale import ScaledInteger, with_stored_scale
from chop.passes.pack.coded_layers import coded_linear, rounded_to_codes

KEPT = "kept"


@dataclass(frozen=True)
class PackWeightsArgs:
    """Settings of `pack_weights_transform_pass`.

    `format`: mxint8, mxint4, mxfp8, mxfp4, int4 or int8_group (integers with a float32 scale per
    group), int8 (a scale per output) or int8_dynamic (the same, with activations rounded too, row
    by row). It may include the groups: mxint4/16, int4/64, int8/channel. Other block formats of at
    most 8 bits (mxint3, mxfp6, nvfp4, fp8_block) store the codes of linear layers, which are
    decoded at each call. `skip`: modules to leave unchanged, by path or the start of it.
    """

    format: str = "mxint8"
    group_size: int = DEFAULT_GROUP_SIZE
    embeddings: bool = True
    skip: tuple[str, ...] = ()
    show_table: bool = False

    def __post_init__(self) -> None:
        coded = coded_format(self.format, "format")
        if coded is not None:
            object.__setattr__(self, "format", str(coded))
            return
        name, size = pack_format(self.format, self.group_size, "format")
        object.__setattr__(self, "format", name)
        object.__setattr__(self, "group_size", size)
        check_group_size(self.group_size, "group_size")

    def skips(self, path: str) -> bool:
        """Return True if the module at `path` stays unchanged."""
        return any(path == s or path.startswith(f"{s}.") for s in self.skip)


@dataclass(frozen=True)
class MemoryRecord:
    """Bytes of one module's own tensors before and after; `share` of all bytes after."""

    module: str
    kind: str
    elements: int
    before: int
    after: int
    packed: str
    reason: str
    share: float = 0.0


class _Packed(NamedTuple):
    """A packed weight and its original layer."""

    layer: nn.Module
    form: str
    group_size: int
    result: PackedTensor

    def is_of(self, layer: Any, form: str, group_size: int) -> bool:
        """Return True if `layer` has the same parameter and values; masks may differ."""
        own = self.layer._parameters.get(WEIGHT)  # None where the weight is computed
        is_shared = own is not None and own is layer._parameters.get(WEIGHT)
        if not is_shared or (form, group_size) != (self.form, self.group_size):
            return False
        return torch.equal(layer.weight, self.layer.weight)  # type: ignore[arg-type]


def _own_tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def by_expert(packed: PackedTensor, experts: int) -> PackedTensor:
    """Return the stacked matrices of `experts` as a tensor of three dimensions."""
    codes, scales = (
        part.view(experts, -1, part.shape[-1]) for part in (packed.codes, packed.scales)
    )
    return PackedTensor(codes, scales, packed.format, packed.group_size, packed.columns)


class WeightPacker:
    """Packing of one module after another; shared weights and tensors are counted once.

    `read`: ids of the modules whose weights other nodes read too.
    """

    reason_for_rest = "read by the graph itself, not by a layer"

    def __init__(self, model: nn.Module, args: PackWeightsArgs, read: set[int]) -> None:
        self.model, self.args, self.read = model, args, read
        self.seen: set[int] = set()
        self.counted: set[int] = set()
        self.packed_weights: list[_Packed] = []
        self.packed_modules: dict[int, tuple[nn.Module, nn.Module]] = {}  # with the old one: its id
        self.facts: list[tuple[str, str, int, int, str, str]] = []

    def visit(self, target: str) -> None:
        """Pack the module at `target`, or record the reason for keeping it."""
        old = self.model.get_submodule(target)
        before = self._bytes(_own_tensors(old), self.seen)
        elements = sum(t.numel() for t in old.parameters())
        try:
            new, form = self._pack(old, target)
            reason = ""
        except KeepError as kept:
            new, form, reason = old, KEPT, str(kept)
        if new is not old:
            parent, _, name = target.rpartition(".")
            setattr(self.model.get_submodule(parent), name, new)
        self.facts.append((target, type(old).__name__, elements, before, form, reason))

    def records(self) -> list[MemoryRecord]:
        """Return one record per module, and one for each tensor that nodes read directly."""
        records = []
        for target, kind, elements, before, form, reason in self.facts:
            after = self._bytes(_own_tensors(self.model.get_submodule(target)), self.counted)
            records.append(MemoryRecord(target, kind, elements, before, after, form, reason))
        for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            size = self._bytes([tensor], self.counted)
            if size:
                rest = (tensor.numel(), size, size, KEPT, self.reason_for_rest)
                records.append(MemoryRecord(name, "tensor", *rest))
        return [r for r in records if r.before or r.after]

    @staticmethod
    def _bytes(tensors: list[Tensor], counted: set[int]) -> int:
        fresh = {id(t): t for t in tensors if id(t) not in counted}
        counted.update(fresh)
        return sum(t.nbytes for t in fresh.values())

    def _pack(self, old: nn.Module, target: str) -> tuple[nn.Module, str]:
        if isinstance(old, (*PACKED_LAYERS, CodedLinear)):
            return old, getattr(old, "format", "int8")
        if not any(True for _ in old.parameters()):
            raise KeepError("has no parameters")
        if self.args.skips(target):
            raise KeepError("in skip")
        if id(old) not in self.packed_modules:
            self.packed_modules[id(old)] = (old, self._make(old))
        _, new = self.packed_modules[id(old)]
        return new, getattr(adapted_layer(new), "format", self.args.format)

    def _make(self, old: nn.Module) -> nn.Module:
        old = as_linear(old) if is_transposed_linear(old) else old
        if id(old) in self.read:
            raise KeepError("the graph itself reads its weight")
        op = op_of_module(old)
        maker = MAKERS.get(op.name if op else "")
        if maker is None:
            raise KeepError(f"no packed layer for {type(old).__name__}")
        if old._forward_hooks or old._forward_pre_hooks:
            raise KeepError("has hooks")
        new = maker(self, old)
        new.train(old.training)
        return new

    def linear(self, old: Any) -> nn.Module:
        """Return the packed layer for a linear one."""
        if isinstance(old, LoRALinear):
            return self._adapted_linear(old)
        if isinstance(old, QuantizedModule):
            return self._quantised_linear(old)
        if (old.plain_class if isinstance(old, Masked) else type(old)) is not nn.Linear:
            raise KeepError(f"{type(old).__name__} may compute otherwise than Linear")
        if self.args.format in ROW_INTEGERS:
            dynamic = ROW_INTEGERS[self.args.format]
            return QLinearInt8.from_linear(old, quantize_input=dynamic)
        form = coded_format(self.args.format, "format")
        if form is not None:
            return _or_keep(rounded_to_codes(old, form), form)
        return QLinearPacked(self._weight(old), old.bias, dtype=old.weight.dtype)

    def _adapted_linear(self, old: LoRALinear) -> nn.Module:
        """Return a copy with the same adapter and a packed base layer."""
        if is_packed(old.base_layer):
            raise KeepError("its base layer is packed already")
        copy = reclassed(old, type(old))
        copy.base_layer = self._make(old.base_layer)
        return copy

    def _quantised_linear(self, old: Any) -> nn.Module:
        formats: dict[str, Quantizer] = old.quantizers
        if has_codes_alone(formats[WEIGHT]):
            return _or_keep(coded_linear(old), formats[WEIGHT])
        weight = self._quantised_weight(old)
        bias = None
        if old.bias is not None:
            bias = with_stored_scale(old, "bias", formats["bias"])(old.bias.detach())
        applied: dict[str, Quantizer] = {
            role: formats[role]
            for role in ("data_in", "data_out")
            if role in formats and not formats[role].is_bypass
        }
        stored = stored_tensors(old, tuple(applied))
        return QLinearPacked(weight, bias, applied, old.weight.dtype, stored)

    def _quantised_weight(self, old: Any) -> PackedTensor:
        form = old.quantizers[WEIGHT]
        if form.is_bypass:
            raise KeepError("its config leaves the weight as it is")
        if form.scaled is not None:
            return packed_integers(old.weight, with_stored_scale(old, WEIGHT, form))
        return self._weight(old, *mx_form(form))

    @property
    def _has_kernel(self) -> bool:
        """True if the format has kernels for all layers, not for linear ones alone."""
        return packed_format(self.args.format) is not None

    def experts(self, old: Any) -> nn.Module:
        """Return the packed layer for the experts of a mixture."""
        if not isinstance(old, QuantizedModule):
            if not self._has_kernel:
                raise KeepError(f"{self.args.format} has no experts")
            return QExpertsPacked(by_expert(self._weight(old), old.experts))
        if not old.quantizers["data_out"].is_bypass:
            raise KeepError("no packed experts round their results")
        layer: Any = old
        weight = by_expert(self._quantised_weight(layer), layer.experts)
        form = layer.quantizers["data_in"]
        applied = {} if form.is_bypass else {"data_in": form}
        return QExpertsPacked(weight, applied, stored_tensors(old, tuple(applied)))

    def embedding(self, old: Any) -> nn.Module:
        """Return the packed layer for an embedding."""
        if not self.args.embeddings:
            raise KeepError("embeddings = false")
        is_quantised = isinstance(old, QuantizedModule)
        kind = old.float_class if is_quantised else type(old)
        if kind is not nn.Embedding:
            raise KeepError(f"{type(old).__name__} may compute otherwise than Embedding")
        if old.max_norm is not None:
            raise KeepError("max_norm rewrites the table at each call")
        if is_quantised:
            if not is_bypassed([q for role, q in old.quantizers.items() if role != WEIGHT]):
                raise KeepError("no packed embedding rounds its results")
            return QEmbeddingPacked(self._quantised_weight(old), old.weight.dtype)
        if not self._has_kernel:
            raise KeepError(f"{self.args.format} has no embedding")
        return QEmbeddingPacked(self._weight(old), old.weight.dtype)

    def _weight(
        self, layer: Any, form: str | None = None, group_size: int | None = None
    ) -> PackedTensor:
        """Return the packed weight; layers that share it share the result."""
        form, group = form or self.args.format, group_size or self.args.group_size
        for packed in self.packed_weights:
            if packed.is_of(layer, form, group):
                return packed.result
        result = pack(layer.weight.detach(), form, group)
        self.packed_weights.append(_Packed(layer, form, group, result))
        return result


Maker = Callable[[WeightPacker, Any], nn.Module]
MAKERS: dict[str, Maker] = {
    "linear": WeightPacker.linear,
    "experts": WeightPacker.experts,
    "embedding": WeightPacker.embedding,
}
"""Functions that make the packed layer, by op."""


class KeepError(Exception):
    """Reason why a module is not packed."""


def _or_keep(layer: nn.Module | None, form: Quantizer) -> nn.Module:
    """Return `layer`; raise if the weight has no codes."""
    if layer is None:
        raise KeepError(f"values of the weight have no codes in {form}")
    return layer


def mx_form(quantizer: Quantizer) -> tuple[str, int]:
    """Return the MX format and group size with exactly the values of `quantizer`."""
    layout, size = quantizer.packed_layout, quantizer.group_columns
    if layout is not None and size in GROUP_SIZES and not layout.has_real_scales:
        return layout.name, size
    raise KeepError(f"no packed format holds weights in {quantizer}")


def packed_integers(weight: Tensor, quantizer: ScaleInteger | ScaledInteger) -> PackedTensor:
    """Return `weight` in its format as integers and scales, bit for bit.

    Scales may be measured, given or stored, also negative; a zero point is subtracted.
    """
    weight = weight.detach()
    if weight.dtype == torch.float64:
        raise KeepError("no packed format holds float64")
    values = quantizer(weight)
    rows = values.float().reshape(-1, weight.shape[-1])
    form = quantizer.format if isinstance(quantizer, ScaledInteger) else quantizer
    scales = quantizer.scales_of(weight.float()).expand(weight.shape).reshape(rows.shape)
    group = _kernel_group(form, weight)
    per_group = scales[:, ::group]
    whole = (rows / spread(per_group, group, rows.shape[1])).round()
    lead = weight.shape[:-1]
    try:
        packed = pack_integers(
            whole.reshape(weight.shape), per_group.reshape(*lead, per_group.shape[1]), group
        )
    except ConfigError as error:
        raise KeepError(f"no packed format holds weights in {form}") from error
    if not torch.equal(unpack(packed, values.dtype), values):
        raise KeepError(f"weights in {form} are no integers times one scale for each group")
    return packed


def _kernel_group(form: ScaleInteger, weight: Tensor) -> int:
    """Return the columns per scale, as the kernels need them: a power of two, at least 16."""
    columns = weight.shape[-1]
    if form.granularity == "channel" and form.axis % weight.dim() == weight.dim() - 1:
        raise KeepError("has a scale for each input, and packed weights have them for each output")
    size = form.group_size if form.granularity == "group" else columns
    if size >= columns:
        return max(GROUP_SIZES[0], 1 << (columns - 1).bit_length())
    if size % GROUP_SIZES[0]:
        raise KeepError(f"groups of {size} are no multiple of {GROUP_SIZES[0]}")
    return size & -size


def stored_tensors(layer: Any, roles: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the scales and zero points that `layer` stores for the operands `roles`."""
    names = [f"{role}_{part}" for role in roles for part in ("scale", "zero_point")]
    values = {name: getattr(layer, name, None) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}
