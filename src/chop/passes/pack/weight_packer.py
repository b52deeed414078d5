"""Replacement of layers by packed ones, and the bytes of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chop.ir.ops import op_of_module
from chop.ir.reclass import reclassed
from chop.kernels import (
    PackedTensor,
    QEmbeddingPacked,
    QExpertsPacked,
    QLinearInt8,
    QLinearPacked,
    pack,
)
from chop.kernels.formats import DEFAULT_GROUP_SIZE, ROW_INTEGERS, check_group_size, pack_format
from chop.kernels.layers import PACKED_LAYERS
from chop.nn.modules.lora import LoRALinear, adapted_layer, is_packed
from chop.nn.modules.masked import WEIGHT, Masked
from chop.nn.modules.transposed import as_linear, is_transposed_linear
from chop.nn.quantized.call_operands import is_bypassed
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.stored_scale import with_stored_scale
from chop.passes.pack.packed_form import KeepError, mx_form, packed_integers, stored_tensors

KEPT = "kept"


@dataclass(frozen=True)
class PackWeightsArgs:
    """`format` is mxint8, mxint4, mxfp8, mxfp4, int4 or int8_group (integers with a float32 scale
    for each group), int8 (a scale for each output) or int8_dynamic (the same, and activations are
    rounded too, row by row). `skip` are modules, by path or by the start of it, to leave as they
    are. `format` may also spell the format with its groups: mxint4/16, int4/64, int8/channel.
    """

    format: str = "mxint8"
    group_size: int = DEFAULT_GROUP_SIZE
    embeddings: bool = True
    skip: tuple[str, ...] = ()
    show_table: bool = False

    def __post_init__(self) -> None:
        name, size = pack_format(self.format, self.group_size, "format")
        object.__setattr__(self, "format", name)
        object.__setattr__(self, "group_size", size)
        check_group_size(self.group_size, "group_size")

    def skips(self, path: str) -> bool:
        """Whether the module at `path` stays as it is."""
        return any(path == s or path.startswith(f"{s}.") for s in self.skip)


@dataclass(frozen=True)
class MemoryRecord:
    """The bytes of one module's own tensors before and after; `share` of all bytes after."""

    module: str
    kind: str
    elements: int
    before: int
    after: int
    packed: str
    reason: str
    share: float = 0.0


class _Packed(NamedTuple):
    """A packed weight and the layer it was made from."""

    layer: nn.Module
    form: str
    group_size: int
    result: PackedTensor

    def is_of(self, layer: Any, form: str, group_size: int) -> bool:
        """Whether `layer` has the same parameter, and the same values: masks may differ."""
        own = self.layer._parameters.get(WEIGHT)  # None where the weight is computed
        is_shared = own is not None and own is layer._parameters.get(WEIGHT)
        if not is_shared or (form, group_size) != (self.form, self.group_size):
            return False
        return torch.equal(layer.weight, self.layer.weight)  # type: ignore[arg-type]


def _own_tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def by_expert(packed: PackedTensor, experts: int) -> PackedTensor:
    """The matrices of `experts` that lie one below the other, as a tensor of three dimensions."""
    codes, scales = (
        part.view(experts, -1, part.shape[-1]) for part in (packed.codes, packed.scales)
    )
    return PackedTensor(codes, scales, packed.format, packed.group_size, packed.columns)


class WeightPacker:
    """Packs one module after another; a weight or a tensor seen before is not counted twice.

    `read` are the modules, by id, whose weights something else reads too.
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
        """Pack the module at `target`, or note why not."""
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
        kind = type(old).__name__
        self.facts.append((target, kind, elements, before, form, reason))

    def records(self) -> list[MemoryRecord]:
        """One record per module, and one for the tensors that nodes read directly."""
        made = []
        for target, kind, elements, before, form, reason in self.facts:
            module = self.model.get_submodule(target)
            after = self._bytes(_own_tensors(module), self.counted)
            made.append(MemoryRecord(target, kind, elements, before, after, form, reason))
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        for name, tensor in named:
            size = self._bytes([tensor], self.counted)
            if size:
                reason = self.reason_for_rest
                record = MemoryRecord(name, "tensor", tensor.numel(), size, size, KEPT, reason)
                made.append(record)
        return [r for r in made if r.before or r.after]

    @staticmethod
    def _bytes(tensors: list[Tensor], seen: set[int]) -> int:
        fresh = {id(t): t for t in tensors if id(t) not in seen}
        seen.update(fresh)
        return sum(t.nbytes for t in fresh.values())

    def _pack(self, old: nn.Module, target: str) -> tuple[nn.Module, str]:
        if isinstance(old, PACKED_LAYERS):
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
        """The packed layer for a linear one."""
        if isinstance(old, LoRALinear):
            return self._adapted_linear(old)
        if isinstance(old, QuantizedModule):
            return self._quantised_linear(old)
        if _plain_class(old) is not nn.Linear:
            raise KeepError(f"{type(old).__name__} may compute otherwise than Linear")
        if self.args.format in ROW_INTEGERS:
            dynamic = ROW_INTEGERS[self.args.format]
            return QLinearInt8.from_linear(old, quantize_input=dynamic)
        weight = self._weight(old, self.args.format, None)
        return QLinearPacked(weight, old.bias, dtype=old.weight.dtype)

    def _adapted_linear(self, old: LoRALinear) -> nn.Module:
        """The same adapter beside a packed layer: it trains on while the bytes stay."""
        if is_packed(old.base_layer):
            raise KeepError("its base layer is packed already")
        made = reclassed(old, type(old))
        made.base_layer = self._make(old.base_layer)
        return made

    def _quantised_linear(self, old: Any) -> nn.Module:
        formats: dict[str, Quantizer] = old.quantizers
        weight = self._quantised_weight(old)
        bias = None
        if old.bias is not None:
            bias = with_stored_scale(old, "bias", formats["bias"])(old.bias.detach())
        kept: dict[str, Quantizer] = {
            role: formats[role]
            for role in ("data_in", "data_out")
            if role in formats and not formats[role].is_bypass
        }
        stored = stored_tensors(old, tuple(kept))
        return QLinearPacked(weight, bias, kept, old.weight.dtype, stored)

    def _quantised_weight(self, old: Any) -> PackedTensor:
        form = old.quantizers[WEIGHT]
        if form.is_bypass:
            raise KeepError("its config leaves the weight as it is")
        if form.scaled is not None:
            return packed_integers(old.weight, with_stored_scale(old, WEIGHT, form))
        return self._weight(old, *mx_form(form))

    def experts(self, old: Any) -> nn.Module:
        """The packed layer for the experts of a mixture."""
        if not isinstance(old, QuantizedModule):
            if self.args.format in ROW_INTEGERS:
                raise KeepError(f"{self.args.format} has no experts")
            return QExpertsPacked(by_expert(self._weight(old, self.args.format, None), old.experts))
        if not old.quantizers["data_out"].is_bypass:
            raise KeepError("no packed experts round their results")
        layer: Any = old
        weight = by_expert(self._quantised_weight(layer), layer.experts)
        form = layer.quantizers["data_in"]
        kept = {} if form.is_bypass else {"data_in": form}
        return QExpertsPacked(weight, kept, stored_tensors(old, tuple(kept)))

    def embedding(self, old: Any) -> nn.Module:
        """The packed layer for an embedding."""
        if not self.args.embeddings:
            raise KeepError("embeddings = false")
        is_quantised = isinstance(old, QuantizedModule)
        kind = old.float_class if is_quantised else type(old)
        if kind is not nn.Embedding:
            raise KeepError(f"{type(old).__name__} may compute otherwise than Embedding")
        if old.max_norm is not None:
            raise KeepError("max_norm rewrites the table at each call")
        if is_quantised:
            return self._quantised_embedding(old)
        if self.args.format in ROW_INTEGERS:
            raise KeepError(f"{self.args.format} has no embedding")
        packed = self._weight(old, self.args.format, None)
        return QEmbeddingPacked(packed, old.weight.dtype)

    def _quantised_embedding(self, old: Any) -> nn.Module:
        others = [q for role, q in old.quantizers.items() if role != WEIGHT]
        if not is_bypassed(others):
            raise KeepError("no packed embedding rounds its results")
        return QEmbeddingPacked(self._quantised_weight(old), old.weight.dtype)

    def _weight(self, layer: Any, form: str, group_size: int | None) -> PackedTensor:
        group = group_size or self.args.group_size
        known = next((w for w in self.packed_weights if w.is_of(layer, form, group)), None)
        if known is not None:
            return known.result
        packed = pack(layer.weight.detach(), form, group)
        self.packed_weights.append(_Packed(layer, form, group, packed))
        return packed


def _plain_class(layer: nn.Module) -> type[nn.Module]:
    """The class of a layer, without its mask."""
    return layer.plain_class if isinstance(layer, Masked) else type(layer)


Maker = Callable[[WeightPacker, Any], nn.Module]
MAKERS: dict[str, Maker] = {
    "linear": WeightPacker.linear,
    "experts": WeightPacker.experts,
    "embedding": WeightPacker.embedding,
}
"""The layers that have a packed form, by their op."""
