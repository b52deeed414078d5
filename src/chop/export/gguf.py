"""Models as GGUF files, which llama.cpp runs, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from chop.arguments import NEW_FILE, an, takes
from chop.errors import ExportError
from chop.export.gguf_families import Family, family_of, rows_of
from chop.export.gguf_file import GGUFTensor, write_gguf
from chop.export.gguf_tokenizer import tokenizer_metadata
from chop.export.gguf_types import (
    BLOCK_TYPES,
    FLOAT_TYPES,
    TYPES,
    GGUFType,
    blocks_of,
    type_named,
)
from chop.export.report import ExportReport, TensorRecord
from chop.export.weights import Weight, check_activations, weights_of
from chop.ir.graph import MaseGraph

Fallback = Literal["float", "nearest"] | None
FALLBACKS = (None, "float", "nearest")
GRAPH = an(MaseGraph, "a MaseGraph")


@dataclass(frozen=True)
class _Placed:
    """A tensor with the type it is written in."""

    name: str
    source: str
    weight: Weight
    kind: GGUFType
    is_exact: bool
    note: str

    def record(self) -> TensorRecord:
        count = self.weight.values.numel()
        return TensorRecord(
            self.name,
            self.source,
            self.weight.text,
            self.kind.name,
            count,
            self.kind.size(count),
            self.is_exact,
            self.note,
        )


@takes(ExportError, mg=GRAPH, path=NEW_FILE)
def to_gguf(
    mg: MaseGraph,
    path: str | Path,
    format: str = "Q8_0",
    *,
    tokenizer: Any = None,
    fallback: Fallback = None,
) -> ExportReport:
    """Write a model of the families Llama, Qwen 2, Qwen 3 and GPT-2, and say what was written.

    Weights without a format of their own are rounded to `format`: Q8_0, Q4_0, Q4_1, MXFP4, F16,
    BF16 or F32, or the spelling of a format with such a type (mxfp4, int8/32). Weights that have
    one are written in the smallest type that holds their values exactly; where none but F32 does,
    that is an error, unless `fallback` is "float" (their values in the smallest exact type) or
    "nearest" (rounded again to `format`). `tokenizer` is a folder with `tokenizer.json` or a fast
    tokenizer of transformers.
    """
    format = type_named(format, "to_gguf")
    _check(fallback)
    config = getattr(mg.model, "config", None)
    family = family_of(config, "to_gguf")
    dropped = check_activations(mg, "gguf", fallback)
    placed = [_place(t, w, s, format, fallback) for t, s, w in _tensors(mg, family, config)]
    metadata = _metadata(family, config, _file_type(placed), tokenizer)
    tensors = [GGUFTensor(p.name, tuple(p.weight.values.shape), p.kind, _data(p)) for p in placed]
    write_gguf(Path(path), metadata, tensors)
    return ExportReport("gguf", Path(path), [p.record() for p in placed], dropped)


def _check(fallback: Any) -> None:
    if fallback not in FALLBACKS:
        raise ExportError(f"to_gguf: fallback is {fallback!r}. Allowed: None, 'float', 'nearest'.")


def _tensors(mg: MaseGraph, family: Family, config: Any) -> list[tuple[str, str, Weight]]:
    found = []
    weights = weights_of(mg)
    head, table = _head(family), _table(family)
    for name, weight in weights.items():
        target = family.target(name)
        if family.is_ignored(name) or _is_extra(name, weights):
            continue
        if target is None:
            raise ExportError(
                f"to_gguf: tensor '{name}' has no place in a {family.architecture} file."
            )
        if name == head and table in weights and _same(weight, weights[table]):
            continue  # llama.cpp takes the table where the head is missing
        found.append((target, name, weight))
    _check_complete(found, family, config)
    return [(t, n, _arranged(w, n, family, config)) for t, n, w in found]


def _head(family: Family) -> str:
    return next(f"{k}.weight" for k, v in family.names.items() if v == "output")


def _table(family: Family) -> str:
    return next(f"{k}.weight" for k, v in family.names.items() if v == "token_embd")


def _is_extra(name: str, weights: Mapping[str, Weight]) -> bool:
    """Whether `name` is beside a weight: its mask, its stored scale."""
    stem, _, leaf = name.rpartition("_")
    return leaf in ("mask", "scale", "point") or (stem in weights and leaf == "mask")


def _same(a: Weight, b: Weight) -> bool:
    return a.values.shape == b.values.shape and torch.equal(a.values, b.values)


def _check_complete(found: list[tuple[str, str, Weight]], family: Family, config: Any) -> None:
    """Refuse a graph that lacks a layer of its config, or has one of another size."""
    layers = family.metadata(config)["block_count"]
    there = {name for name, _, _ in found}
    wanted = ["token_embd.weight", "output_norm.weight"]
    wanted += [f"blk.{i}.attn_output.weight" for i in range(layers)]
    missing = [name for name in wanted if name not in there]
    if missing:
        raise ExportError(f"to_gguf: the graph has no tensor for '{missing[0]}'.")
    told = family.metadata(config)
    for name, source, weight in found:
        size = told["feed_forward_length"]
        if name.endswith("ffn_up.weight") and size not in weight.values.shape:
            raise ExportError(
                f"to_gguf: '{source}' has shape {list(weight.values.shape)}, and the config a "
                f"feed-forward size of {size}: llama.cpp takes one size for all layers."
            )


def _arranged(weight: Weight, name: str, family: Family, config: Any) -> Weight:
    """The weight with its rows as the target has them."""
    values = _arranged_rows(weight.values, weight, name, family, config)
    steps = weight.steps()
    if steps is not None:
        steps = _arranged_rows(steps, weight, name, family, config)
    return _Arranged(values, weight.format, weight.scale, own_steps=steps)


def _arranged_rows(rows: Tensor, weight: Weight, name: str, family: Family, config: Any) -> Tensor:
    is_turned = family.is_turned(name) and rows.dim() == 2 and not weight.is_linear
    plain = rows_of(rows).t() if is_turned else rows_of(rows)
    return family.arranged(name, plain.contiguous(), config)


@dataclass(frozen=True)
class _Arranged(Weight):
    """A weight whose steps were arranged with it."""

    own_steps: Tensor | None = None

    def steps(self) -> Tensor | None:
        return self.own_steps


def _place(target: str, weight: Weight, source: str, format: str, fallback: Fallback) -> _Placed:
    """The type a tensor is written in."""
    if weight.values.dim() == 1:  # llama.cpp adds and multiplies vectors in F32
        return _Placed(target, source, weight, TYPES["F32"], True, "")
    if weight.format is None:
        return _rounded(target, weight, source, format, "")
    for name in BLOCK_TYPES:
        if _exact_bytes(weight, TYPES[name]) is not None:
            return _Placed(target, source, weight, TYPES[name], True, "")
    if fallback == "float":
        kinds = (TYPES[name] for name in FLOAT_TYPES)
        kind = next(k for k in kinds if _exact_bytes(weight, k) is not None)
        return _Placed(target, source, weight, kind, True, "dequantised")
    if fallback == "nearest":
        return _rounded(target, weight, source, format, "rounded again")
    raise ExportError(
        f"to_gguf: '{source}' is in {weight.text}, whose values no GGUF type holds exactly (blocks "
        f"of 32 along rows, scales in float16). Nearest: {_nearest_type(weight)}. Give "
        'fallback="float" for its values as floats, or fallback="nearest" to round again.'
    )


def _nearest_type(weight: Weight) -> str:
    bits = weight.format.bits if weight.format is not None else 32
    return "Q4_0" if bits <= 4.5 else "Q8_0" if bits <= 8.5 else "F16"


def _rounded(target: str, weight: Weight, source: str, format: str, note: str) -> _Placed:
    kind = TYPES[format]
    if blocks_of(weight.values.numpy(), kind) is None:
        note = f"rows of {weight.values.shape[-1]} are not blocks of {kind.block}"
        kind = TYPES["F16"]
    is_exact = _exact_bytes(weight, kind) is not None if kind.block == 1 else False
    return _Placed(target, source, weight, kind, is_exact, note)


def _exact_bytes(weight: Weight, kind: GGUFType) -> Any:
    """The bytes of a weight that `kind` holds exactly, else None."""
    values, steps = weight.values.numpy(), weight.steps()
    blocks = blocks_of(values, kind)
    if blocks is None:
        return None
    by_block = None if steps is None else blocks_of(steps.contiguous().numpy(), kind)
    return kind.exact(blocks, by_block)


def _data(placed: _Placed) -> Any:
    def data() -> np.ndarray:
        exact: np.ndarray | None = None
        if placed.is_exact:
            exact = _exact_bytes(placed.weight, placed.kind)
        if exact is not None:
            return exact
        blocks = blocks_of(placed.weight.values.numpy(), placed.kind)
        assert blocks is not None, f"{placed.name}: rows do not divide"
        rounded: np.ndarray = placed.kind.nearest(blocks)
        return rounded

    return data


def _file_type(placed: list[_Placed]) -> int:
    """The type of most of the bytes."""
    sizes: dict[str, int] = {}
    for each in placed:
        sizes[each.kind.name] = sizes.get(each.kind.name, 0) + each.weight.values.numel()
    return TYPES[max(sizes, key=sizes.__getitem__)].file_type


def _metadata(family: Family, config: Any, file_type: int, tokenizer: Any) -> dict[str, Any]:
    told = family.metadata(config)
    own = {f"{family.architecture}.{key}": value for key, value in told.items()}
    return {
        "general.architecture": family.architecture,
        "general.name": Path(getattr(config, "_name_or_path", "")).name or family.architecture,
        "general.file_type": file_type,
        "general.quantization_version": 2,
        **own,
        **tokenizer_metadata(tokenizer, config.vocab_size),
    }
