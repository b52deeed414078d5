"""Writer of compressed-tensors folders, which transformers and vLLM load."""

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
from chop.export.export_report import ExportReport, TensorRecord
from chop.export.exported_weights import Weight, as_in, check_activations, weights_of
from chop.export.hf_folders import config_of, differ, empty_model, names_to_write, write_folder
from chop.ir.graph import MaseGraph
from chop.nn.quantizers import MXFP
from chop.nn.quantizers.bits import pack_bits, unpack_bits
from chop.nn.quantizers.codes import Powers, encode

Fallback = Literal["float"] | None
GRAPH = an(MaseGraph, "a MaseGraph")
MX_BLOCK = 32


@dataclass(frozen=True)
class Scheme:
    """Encoding of weights: the fields of `QuantizationArgs` of compressed-tensors."""

    format: str
    num_bits: int
    type: str
    strategy: str
    group_size: int | None = None
    scale_dtype: str | None = None

    def record(self, targets: list[str]) -> dict[str, Any]:
        """Return the group of `config_groups` for layers with this scheme."""
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
    """Write a model of transformers as a folder of compressed-tensors, and return a report.

    Linear layers in integer formats (`integer`, `scale_integer`, `mxint`, `block_fp`) of at most 8
    bits become int4 or int8, packed into words, or int8 with `layout="naive"`. `mxfp` in blocks of
    32 becomes mxfp4 or mxfp8, and `fp8` e4m3 float8. Other formats, and other quantised layers,
    raise ExportError, or with `fallback="float"` are written as their values.
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
    settings = {**config.to_dict(), "architectures": [type(mg.model).__name__]}
    if is_untied:
        settings["tie_word_embeddings"] = False
    is_mx = any(scheme.format.startswith("mx") for scheme in schemes.values())
    settings["dtype"] = "bfloat16" if is_mx else "float32"
    if is_mx:
        report.dropped.append("compressed-tensors computes layers in mxfp in bfloat16")
    if schemes:
        settings["quantization_config"] = _quantization_config(schemes, linear)
    write_folder(Path(path), settings, tensors)
    return report


def _written(
    mg: MaseGraph, empty: Any, layout: str, fallback: Fallback, report: ExportReport
) -> tuple[dict[str, Tensor], dict[str, Scheme], bool]:
    """Return all tensors, the schemes of layers, and whether shared parameters differ."""
    weights = weights_of(mg)
    values = {name: weight.values for name, weight in weights.items()}
    is_untied = differ(empty, values)
    sources, notes = names_to_write(empty, weights, is_untied=is_untied)
    report.dropped += notes
    tensors: dict[str, Tensor] = {}
    schemes: dict[str, Scheme] = {}
    for name, source in sources.items():
        weight = weights[source]
        module = name.removesuffix(".weight")
        coded = None
        if weight.format is not None and weight.values.dim() > 1:
            is_linear = name != module and isinstance(empty.get_submodule(module), nn.Linear)
            coded = _coded(weight, layout) if is_linear else None
            if coded is None and fallback is None:
                raise ExportError(_refusal(name, weight, is_linear))
        if coded is None:
            parts = {name: as_in(empty, name, weight).float()}
            written, note = "float32", "" if weight.format is None else "dequantised"
        else:
            schemes[module] = scheme = coded[0]
            parts = {f"{module}.{key}": value for key, value in coded[1].items()}
            written, note = f"{scheme.format} {scheme.num_bits} bits", ""
        tensors |= parts
        count, size = weight.values.numel(), sum(t.nbytes for t in parts.values())
        record = TensorRecord(name, name, weight.text, written, count, size, True, note)
        report.records.append(record)
    return tensors, schemes, is_untied


def _refusal(name: str, weight: Weight, is_linear: bool) -> str:
    why = "compressed-tensors has formats for linear layers alone"
    if is_linear:
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


def _coded(weight: Weight, layout: str) -> tuple[Scheme, dict[str, Tensor]] | None:
    """Return the scheme that stores a weight exactly, and its tensors; None if there is none."""
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
    settings = ("float", "group", MX_BLOCK, "torch.uint8")
    if form.element == "e2m1":
        packed = coded.codes.reshape(values.shape[0], -1)
        tensors = {"weight_packed": packed, "weight_scale": scales}
        return Scheme("mxfp4-pack-quantized", 4, *settings), tensors
    if form.element == "e4m3":
        data = coded.codes.view(torch.float8_e4m3fn).reshape(values.shape)
        return Scheme("mxfp8-quantized", 8, *settings), {"weight": data, "weight_scale": scales}
    return None


def _integers(weight: Weight, layout: str) -> tuple[Scheme, dict[str, Tensor]] | None:
    steps, values = weight.steps(), weight.values.float()
    if steps is None or weight.format is None or weight.format.bits > 9:
        return None
    whole = torch.where(steps == 0, 0.0, values / steps).round()
    if not torch.equal(whole * steps, values) or whole.abs().max() > 128 or whole.max() > 127:
        return None
    scales = _scales(steps, weight)
    if scales is None:
        return None
    strategy, group, scale = scales
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
    """Return the coarsest strategy to share the steps, its group size, and the scales."""
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
