"""Writer of compressed-tensors folders, which transformers and vLLM load."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from chop.arguments import NEW_FOLDER, an, takes
from chop.errors import ExportError
from chop.export.cache_scales import SCHEME, cache_scales
from chop.export.checkpoint_names import with_stored_names
from chop.export.compressed_reader import from_compressed_tensors as from_compressed_tensors
from chop.export.compressed_schemes import Scheme, coded_weight, quantization_config
from chop.export.compressed_schemes import pack_words as pack_words
from chop.export.compressed_schemes import unpack_words as unpack_words
from chop.export.expert_weights import expert_matrices, stacked_parts
from chop.export.export_report import ExportReport, TensorRecord
from chop.export.exported_weights import Weight, as_in, check_activations, weights_of
from chop.export.hf_folders import config_of, differ, empty_model, names_to_write, write_folder
from chop.ir.graph import MaseGraph

Fallback = Literal["float"] | None
GRAPH = an(MaseGraph, "a MaseGraph")


@takes(ExportError, mg=GRAPH, path=NEW_FOLDER)
def to_compressed_tensors(
    mg: MaseGraph,
    path: str | Path,
    *,
    layout: Literal["packed", "naive"] = "packed",
    fallback: Fallback = None,
    cache_data: Iterable[Any] | None = None,
) -> ExportReport:
    """Write a model of transformers as a folder of compressed-tensors, and return a report.

    Linear layers in integer formats (`integer`, `scale_integer`, `mxint`, `block_fp`) of at most 8
    bits become int4 or int8, packed into words, or int8 with `layout="naive"`. `mxfp` in blocks of
    32 becomes mxfp4, mxfp6 (E2M3) or mxfp8, `nvfp4` the format of that name, and `fp8` and
    `fp8_block` in E4M3 float8. Other formats, and other quantised layers, raise ExportError, or
    with `fallback="float"` are written as their values.
    `cache_data`: calibration batches; servers then cache keys and values in E4M3, with a scale for
    the keys and one for the values of each layer (`kv_cache_scheme`).
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
    experts = {part.module for parts in stacked_parts(empty).values() for part in parts}
    kinds = {scheme for name, scheme in schemes.items() if name in experts}
    if len(kinds) > 1:
        report.dropped.append("transformers reads one scheme for all experts; these have several")
    if any(kind.format == "nvfp4-pack-quantized" for kind in kinds):
        report.dropped.append("transformers reads no experts in nvfp4; servers do")
    # transformers takes the first group for all experts
    schemes = dict(sorted(schemes.items(), key=lambda item: item[0] not in experts))
    linear += sorted(experts)
    settings = {**config.to_dict(), "architectures": [type(mg.model).__name__]}
    if is_untied:
        settings["tie_word_embeddings"] = False
    is_short = any(scheme.is_in_bfloat16 for scheme in schemes.values())
    settings["dtype"] = "bfloat16" if is_short else "float32"
    if is_short:
        report.dropped.append("compressed-tensors computes layers in mxfp and nvfp4 in bfloat16")
    scales = {} if cache_data is None else cache_scales(mg, cache_data)
    if schemes or scales:
        settings["quantization_config"] = quantization_config(schemes, linear)
    if scales:
        settings["quantization_config"]["kv_cache_scheme"] = dict(SCHEME)
        tensors |= scales
    write_folder(Path(path), settings, with_stored_names(empty, tensors))
    return report


def _written(
    mg: MaseGraph, empty: Any, layout: str, fallback: Fallback, report: ExportReport
) -> tuple[dict[str, Tensor], dict[str, Scheme], bool]:
    """Return all tensors, the schemes of layers, and whether shared parameters differ."""
    weights = weights_of(mg)
    values = {name: weight.values for name, weight in weights.items()}
    is_untied = differ(empty, values)
    stacked = stacked_parts(empty)
    experts = expert_matrices(stacked, weights)
    sources, notes = names_to_write(empty, {*weights, *stacked}, is_untied=is_untied)
    report.dropped += notes
    plain = {
        name: weights[s] for name, s in sources.items() if s in weights and name not in stacked
    }
    tensors: dict[str, Tensor] = {}
    schemes: dict[str, Scheme] = {}
    for name, weight in {**plain, **experts}.items():
        module = name.removesuffix(".weight")
        coded = None
        if weight.format is not None and weight.values.dim() > 1:
            is_linear = name in experts or _is_linear(empty, name)
            coded = coded_weight(weight, layout, is_fixed=name in experts) if is_linear else None
            if coded is None and fallback is None:
                raise ExportError(_refusal(name, weight, is_linear))
        if coded is None:
            values_there = weight.values if name in experts else as_in(empty, name, weight)
            parts = {name: values_there.float()}
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


def _is_linear(model: Any, name: str) -> bool:
    """Return True if `name` is the weight of a linear layer."""
    module = name.removesuffix(".weight")
    return name != module and isinstance(model.get_submodule(module), nn.Linear)


def _refusal(name: str, weight: Weight, is_linear: bool) -> str:
    why = "compressed-tensors has formats for linear layers alone"
    if is_linear:
        why = (
            "compressed-tensors has integers with one scale for a tensor, row or group that "
            "divides the row, mxfp4, mxfp6_e2m3 and mxfp8 in blocks of 32, nvfp4 in blocks of 16, "
            "and float8 e4m3, plain or in tiles. Nearest: "
            f"{'int4' if weight.format is not None and weight.format.bits <= 4.5 else 'int8'}"
        )
    return (
        f"to_compressed_tensors: '{name}' is in {weight.text}: {why}. "
        'Give fallback="float" for its values.'
    )
