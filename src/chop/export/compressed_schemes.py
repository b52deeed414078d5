"""Weights in the layouts of compressed-tensors: schemes, packed words and float codes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chop.export.exported_weights import Weight
from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.bits import pack_bits, unpack_bits
from chop.nn.quantizers.codes import Coded, Powers, Tiles, encode

FLOAT_BITS = (4, 6, 8)
"""Bits of float elements."""
COMPUTES_IN_BFLOAT16 = ("mxfp", "nvfp4")
"""Starts of the formats whose weights compressed-tensors unpacks to bfloat16."""


@dataclass(frozen=True)
class Scheme:
    """Encoding of weights: the fields of `QuantizationArgs` of compressed-tensors."""

    format: str
    num_bits: int
    type: str
    strategy: str
    group_size: int | None = None
    scale_dtype: str | None = None
    block_structure: tuple[int, int] | None = None

    @property
    def is_in_bfloat16(self) -> bool:
        """True if the target computes in bfloat16."""
        return self.format.startswith(COMPUTES_IN_BFLOAT16)

    def record(self, targets: list[str]) -> dict[str, Any]:
        """Return the group of `config_groups` for layers with this scheme."""
        fields = dataclasses.asdict(self)
        weights = {k: v for k, v in fields.items() if k != "format" and v is not None}
        named = {**weights, "symmetric": True, "dynamic": False}
        return {"targets": targets, "weights": named, "format": self.format}


def quantization_config(schemes: Mapping[str, Scheme], linear: list[str]) -> dict[str, Any]:
    """Return the section of `config.json`; `linear` are all linear layers."""
    groups: dict[Scheme, list[str]] = {}
    for name, scheme in schemes.items():
        groups.setdefault(scheme, []).append(name)
    formats = {scheme.format for scheme in groups}
    return {
        "quant_method": "compressed-tensors",
        "format": _one_format(formats),
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{i}": scheme.record(names) for i, (scheme, names) in enumerate(groups.items())
        },
        "ignore": [name for name in linear if name not in schemes],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _one_format(formats: set[str]) -> str:
    """Return the format of a whole model; without quantised weights it is dense."""
    if len(formats) > 1:
        return "mixed-precision"
    return next(iter(formats), "dense")


def coded_weight(
    weight: Weight, layout: str, *, is_fixed: bool = False
) -> tuple[Scheme, dict[str, Tensor]] | None:
    """Return the scheme that stores a weight exactly, and its tensors; None if there is none.

    Integers have the narrowest bits and the coarsest scales that hold their values, or with
    `is_fixed` those of the format.
    """
    form = weight.format
    kind = None if form is None else form.compressed_type
    if form is None or kind is None:
        return _integers(weight, layout, is_fixed=is_fixed)
    if form.blocks is None:
        assert form.float_dtype is not None, f"{form} has no dtype of torch"
        data = weight.values.float().to(form.float_dtype)
        scheme = Scheme(kind, 8, "float", "tensor")
        return scheme, {"weight": data, "weight_scale": torch.ones(1)}
    return _blocks(weight, form, kind)


def _blocks(weight: Weight, form: Quantizer, kind: str) -> tuple[Scheme, dict[str, Tensor]] | None:
    """Return the scheme and the tensors of floats whose blocks share a scale."""
    values, blocks = weight.values, form.blocks
    assert blocks is not None, f"{form} has no blocks"
    tiles = weight.scale if isinstance(weight.scale, Tiles) else None
    coded = encode(values, form, tiles)
    size = form.group_columns
    if coded is None or (size is not None and values.shape[-1] % size):
        return None
    rows, bits = values.shape[0], form.code_bits
    if "pack" in kind:
        tensors = {"weight_packed": coded.codes.reshape(rows, -1)}
    else:
        tensors = {"weight": coded.codes.view(torch.float8_e4m3fn).reshape(values.shape)}
    if size is None:
        high, wide = blocks.tile
        scheme = Scheme(kind, bits, "float", "block", block_structure=(high, wide))
        across = -(-values.shape[1] // wide)
        return scheme, {**tensors, "weight_scale": _scale_tensors(coded, -(-rows // high), across)}
    return _grouped(coded, kind, size, tensors)


def _grouped(
    coded: Coded, kind: str, size: int, tensors: dict[str, Tensor]
) -> tuple[Scheme, dict[str, Tensor]]:
    """Return the scheme and the tensors of floats in groups along a row."""
    rows, scale = coded.shape[0], coded.scale
    if isinstance(scale, Powers):
        scheme = Scheme(kind, coded.bits, "float", "group", size, "torch.uint8")
        return scheme, {**tensors, "weight_scale": scale.codes.reshape(rows, -1)}
    assert isinstance(scale, Tiles), "groups have scales"
    stored, whole = scale.levels()
    assert whole is not None, "groups of floats have a tensor scale"
    dtype = torch.float8_e4m3fn
    scheme = Scheme(kind, coded.bits, "float", "tensor_group", size, str(dtype))
    # the target divides by its global scale
    scales = {"weight_scale": stored.to(dtype).reshape(rows, -1)}
    return scheme, {**tensors, **scales, "weight_global_scale": (1 / whole).reshape(1)}


def _scale_tensors(coded: Coded, down: int, across: int) -> Tensor:
    """Return the scale of each tile as a matrix."""
    assert isinstance(coded.scale, Tiles), "tiles have scales"
    return coded.scale.levels()[0].reshape(down, across)


def _integers(
    weight: Weight, layout: str, *, is_fixed: bool
) -> tuple[Scheme, dict[str, Tensor]] | None:
    steps, values = weight.steps(), weight.values.float()
    if steps is None or weight.format is None or weight.format.bits > 9:
        return None
    whole = torch.where(steps == 0, 0.0, values / steps).round()
    if not torch.equal(whole * steps, values) or whole.abs().max() > 128 or whole.max() > 127:
        return None
    scales = _scales(steps, weight, is_fixed=is_fixed)
    if scales is None:
        return None
    strategy, group, scale = scales
    fits = weight.format.code_bits <= 4 if is_fixed else whole.min() >= -8 and whole.max() <= 7
    bits = 4 if fits and layout == "packed" else 8
    if layout == "naive":
        scheme = Scheme("naive-quantized", 8, "int", strategy, group)
        return scheme, {"weight": whole.to(torch.int8), "weight_scale": scale}
    scheme = Scheme("pack-quantized", bits, "int", strategy, group)
    return scheme, {
        "weight_packed": pack_words(whole.to(torch.int16), bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor(values.shape),
    }


def _scales(
    steps: Tensor, weight: Weight, *, is_fixed: bool
) -> tuple[str, int | None, Tensor] | None:
    """Return the coarsest strategy to share the steps, its group size, and the scales."""
    form = weight.format
    assert form is not None, "integers have a format"
    is_by_row = form.scaled is not None and form.scaled.granularity == "channel"
    has_groups = is_fixed and form.group_columns is not None
    if (steps == steps[0, 0]).all() and not has_groups and not (is_fixed and is_by_row):
        return "tensor", None, steps[0, :1].clone()
    if (steps == steps[:, :1]).all() and not has_groups:
        return "channel", None, steps[:, :1].clone()
    size = getattr(weight.format, "group_size", None) or getattr(weight.format, "block_size", None)
    if not isinstance(size, int) or size < 1 or steps.shape[-1] % size:
        return None
    groups = steps.reshape(steps.shape[0], -1, size)
    return ("group", size, groups[..., 0].clone()) if (groups == groups[..., :1]).all() else None


def pack_words(whole: Tensor, bits: int) -> Tensor:
    """Pack signed integers of `bits` bits (4 or 8), offset to be positive, into 32-bit words."""
    offset = (whole + 2 ** (bits - 1)).to(torch.uint8)
    padded = nn.functional.pad(offset, (0, -offset.shape[-1] % (32 // bits)))
    words: Tensor = pack_bits(padded, bits).view(torch.int32)
    return words.reshape(whole.shape[0], -1)


def unpack_words(words: Tensor, bits: int, columns: int) -> Tensor:
    """Return the signed integers in 32-bit words."""
    data = words.contiguous().view(torch.uint8).reshape(-1)
    count = words.numel() * (32 // bits)
    offset = unpack_bits(data, bits, count).reshape(words.shape[0], -1)[:, :columns]
    integers: Tensor = offset.to(torch.int16) - 2 ** (bits - 1)
    return integers
