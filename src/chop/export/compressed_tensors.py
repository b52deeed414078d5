"""Models as compressed-tensors folders, which transformers and vLLM load, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from chop.arguments import NEW_FOLDER, an, takes
from chop.errors import ExportError
from chop.export.folders import (
    config_of,
    differ,
    empty_model,
    names_to_write,
    write_folder,
)
from chop.export.report import ExportReport, TensorRecord
from chop.export.weights import Weight, as_in, check_activations, weights_of
from chop.ir.graph import MaseGraph
from chop.nn.quantizers import MXFP
from chop.nn.quantizers.bits import pack_bits, unpack_bits
from chop.nn.quantizers.codes import Powers, encode

Fallback = Literal["float"] | None
GRAPH = an(MaseGraph, "a MaseGraph")
MX_BLOCK = 32


@dataclass(frozen=True)
class Scheme:
    """How the weights of layers are written: the fields of the target's `QuantizationArgs`."""

    format: str
    num_bits: int
    type: str
    strategy: str
    group_size: int | None = None
    scale_dtype: str | None = None

    def record(self, targets: list[str]) -> dict[str, Any]:
        """The group of `config_groups` for layers with this scheme."""
        fields = dataclasses.asdict(self)
        weights = {k: v for k, v in fields.items() if k != "format" and v is not None}
        named = {**weights, "symmetric": True, "dynamic": False}
        return {"targets": targets, "weights": named, "format": self.format}


@takes(ExportError, mg=GRAPH, path=NEW_FOLDER)
def to_compressed_tensors(
    mg: MaseGraph,
    path: str | Path,
    *,
    layout: Literal["packed", "naive"] = "packed",
    fallback: Fallback = None,
) -> ExportReport:
    """Write a model of transformers as a folder that `from_pretrained` loads with the package
    compressed-tensors, and say what was written.

    Linear layers in formats of integers (`integer`, `scale_integer`, `mxint`, `block_fp`) of at
    most 8 bits become int4 or int8, packed into words or with `layout="naive"` int8; `mxfp` in
    blocks of 32 becomes mxfp4 or mxfp8, and `fp8` e4m3 float8. Other formats, and layers that are
    not linear, are errors, or with `fallback="float"` written as their values.
    """
    if layout not in ("packed", "naive"):
        raise ExportError(f"to_compressed_tensors: layout is {layout!r}. Allowed: packed, naive.")
    if fallback not in (None, "float"):
        raise ExportError(
            f"to_compressed_tensors: fallback is {fallback!r}. Allowed: None, 'float'."
        )
    config = config_of(mg, "to_compressed_tensors")
    empty = empty_model(mg, config, "to_compressed_tensors")
    report = ExportReport("compressed-tensors", Path(path))
    report.dropped = check_activations(mg, "compressed_tensors", fallback)
    tensors, schemes, is_untied = _written(mg, empty, layout, fallback, report)
    linear = [n for n, m in empty.named_modules() if isinstance(m, nn.Linear)]
    told = {**config.to_dict(), "architectures": [type(mg.model).__name__]}
    if is_untied:
        told["tie_word_embeddings"] = False
    is_mx = any(scheme.format.startswith("mx") for scheme in schemes.values())
    told["dtype"] = "bfloat16" if is_mx else "float32"
    if is_mx:
        report.dropped.append("compressed-tensors computes layers in mxfp in bfloat16")
    if schemes:
        told["quantization_config"] = _quantization_config(schemes, linear)
    write_folder(Path(path), told, tensors)
    return report


def _written(
    mg: MaseGraph, empty: Any, layout: str, fallback: Fallback, report: ExportReport
) -> tuple[dict[str, Tensor], dict[str, Scheme], bool]:
    """All tensors, the schemes of layers, and whether parameters that were shared differ."""
    weights = weights_of(mg)
    values = {name: weight.values for name, weight in weights.items()}
    is_untied = differ(empty, values)
    names = names_to_write(empty, weights, is_untied=is_untied)
    report.dropped += names.unused
    tensors: dict[str, Tensor] = {}
    schemes: dict[str, Scheme] = {}
    for name, source in names.sources.items():
        weight = weights[source]
        module = name.removesuffix(".weight")
        made = None
        if weight.format is not None and weight.values.dim() > 1:
            is_linear = name != module and isinstance(empty.get_submodule(module), nn.Linear)
            made = _coded(weight, layout) if is_linear else None
            if made is None and fallback is None:
                raise ExportError(_refusal(name, weight, is_linear))
        plain = as_in(empty, name, weight).float()
        parts = {name: plain} if made is None else _named(module, made[1])
        if made is not None:
            schemes[module] = made[0]
        tensors |= parts
        report.records.append(_record(name, weight, made, parts))
    return tensors, schemes, is_untied


def _named(module: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{module}.{key}": value for key, value in parts.items()}


def _record(name: str, weight: Weight, made: Any, parts: Mapping[str, Tensor]) -> TensorRecord:
    written = "float32" if made is None else f"{made[0].format} {made[0].num_bits} bits"
    note = "dequantised" if made is None and weight.format is not None else ""
    count, size = weight.values.numel(), sum(t.nbytes for t in parts.values())
    return TensorRecord(name, name, weight.text, written, count, size, True, note)


def _refusal(name: str, weight: Weight, is_linear: bool) -> str:
    if not is_linear:
        why = "compressed-tensors has formats for linear layers alone"
    else:
        why = (
            "compressed-tensors has integers with one scale for a tensor, row or group that "
            "divides the row, mxfp4, mxfp8 in blocks of 32, and float8 e4m3. Nearest: "
            f"{'int4' if weight.format is not None and weight.format.bits <= 4.5 else 'int8'}"
        )
    return (
        f"to_compressed_tensors: '{name}' is in {weight.text}: {why}. "
        'Give fallback="float" for its values.'
    )


def _quantization_config(schemes: Mapping[str, Scheme], linear: list[str]) -> dict[str, Any]:
    groups: dict[Scheme, list[str]] = {}
    for name, scheme in schemes.items():
        groups.setdefault(scheme, []).append(name)
    formats = {scheme.format for scheme in groups}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{i}": scheme.record(names) for i, (scheme, names) in enumerate(groups.items())
        },
        "ignore": [name for name in linear if name not in schemes],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


# -- weights ---------------------------------------------------------------------------------


def _coded(weight: Weight, layout: str) -> tuple[Scheme, dict[str, Tensor]] | None:
    """The scheme that holds a weight exactly, and its tensors; None where there is none."""
    form = weight.format
    if isinstance(form, MXFP):
        return _mx(weight.values, form)
    if form is not None and form.float_dtype is torch.float8_e4m3fn:
        scheme = Scheme("float-quantized", 8, "float", "tensor")
        data = weight.values.float().to(form.float_dtype)
        return scheme, {"weight": data, "weight_scale": torch.ones(1)}
    return _integers(weight, layout)


def _mx(values: Tensor, form: MXFP) -> tuple[Scheme, dict[str, Tensor]] | None:
    coded = encode(values.float(), form)
    fits = form.tile == (1, MX_BLOCK) and form.axis == -1 and values.shape[-1] % MX_BLOCK == 0
    if not fits or coded is None or not isinstance(coded.scale, Powers):
        return None
    scales = coded.scale.codes.reshape(values.shape[0], -1)
    if form.element == "e2m1":
        scheme = Scheme(
            *("mxfp4-pack-quantized", 4, "float", "group", MX_BLOCK), scale_dtype="torch.uint8"
        )
        packed = coded.codes.reshape(values.shape[0], -1)
        return scheme, {"weight_packed": packed, "weight_scale": scales}
    if form.element == "e4m3":
        scheme = Scheme(
            *("mxfp8-quantized", 8, "float", "group", MX_BLOCK), scale_dtype="torch.uint8"
        )
        data = coded.codes.view(torch.float8_e4m3fn).reshape(values.shape)
        return scheme, {"weight": data, "weight_scale": scales}
    return None


def _integers(weight: Weight, layout: str) -> tuple[Scheme, dict[str, Tensor]] | None:
    steps, values = weight.steps(), weight.values.float()
    if steps is None or weight.format is None or weight.format.bits > 9:
        return None
    whole = torch.where(steps == 0, 0.0, values / steps).round()
    if not torch.equal(whole * steps, values) or whole.abs().max() > 128 or whole.max() > 127:
        return None
    found = _scales(steps, weight)
    if found is None:
        return None
    strategy, group, scale = found
    bits = 4 if whole.min() >= -8 and whole.max() <= 7 and layout == "packed" else 8
    if layout == "naive":
        scheme = Scheme("naive-quantized", 8, "int", strategy, group)
        return scheme, {"weight": whole.to(torch.int8), "weight_scale": scale}
    scheme = Scheme("pack-quantized", bits, "int", strategy, group)
    return scheme, {
        "weight_packed": pack_words(whole.to(torch.int16), bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor(values.shape),
    }


def _scales(steps: Tensor, weight: Weight) -> tuple[str, int | None, Tensor] | None:
    """The coarsest way in which steps are shared, and they."""
    if (steps == steps[0, 0]).all():
        return "tensor", None, steps[0, :1].clone()
    if (steps == steps[:, :1]).all():
        return "channel", None, steps[:, :1].clone()
    size = getattr(weight.format, "group_size", None) or getattr(weight.format, "block_size", None)
    if not isinstance(size, int) or size < 1 or steps.shape[-1] % size:
        return None
    groups = steps.reshape(steps.shape[0], -1, size)
    return ("group", size, groups[..., 0].clone()) if (groups == groups[..., :1]).all() else None


def pack_words(whole: Tensor, bits: int) -> Tensor:
    """Signed integers of `bits` bits (4 or 8), moved up to be positive, in words of 32 bits."""
    moved = (whole + 2 ** (bits - 1)).to(torch.uint8)
    missing = -moved.shape[-1] % (32 // bits)
    padded = nn.functional.pad(moved, (0, missing))
    words: Tensor = pack_bits(padded, bits).view(torch.int32)
    return words.reshape(whole.shape[0], -1)


def unpack_words(words: Tensor, bits: int, columns: int) -> Tensor:
    """The signed integers in words of 32 bits."""
    data = words.contiguous().view(torch.uint8).reshape(-1)
    count = words.numel() * (32 // bits)
    moved = unpack_bits(data, bits, count).reshape(words.shape[0], -1)[:, :columns]
    made: Tensor = moved.to(torch.int16) - 2 ** (bits - 1)
    return made
