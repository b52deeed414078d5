"""Writer of GGUF files, which llama.cpp runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from chop.arguments import NEW_FILE, an, takes
from chop.errors import ExportError
from chop.export.export_report import ExportReport, TensorRecord
from chop.export.exported_weights import Weight, check_activations, weights_of
from chop.export.gguf_families import GGUFFamily, family_of, rows_of
from chop.export.gguf_file import GGUFTensor, write_gguf
from chop.export.gguf_tokenizer import tokenizer_metadata
from chop.export.gguf_types import (
    BLOCK_TYPES,
    FLOAT_TYPES,
    TYPES,
    GGUFType,
    blocks_of,
    offset_bytes,
    type_named,
)
from chop.ir.graph import MaseGraph

Fallback = Literal["float", "nearest"] | None
GRAPH = an(MaseGraph, "a MaseGraph")


@dataclass(frozen=True)
class _Placed:
    """Tensor with its type in the file."""

    name: str
    source: str
    weight: Weight
    kind: GGUFType
    is_exact: bool
    note: str

    def record(self) -> TensorRecord:
        count, kind = self.weight.values.numel(), self.kind
        parts = (self.name, self.source, self.weight.text, kind.name, count, kind.size(count))
        return TensorRecord(*parts, self.is_exact, self.note)

    def data(self) -> np.ndarray:
        exact: np.ndarray | None = None
        if self.is_exact:
            exact = _exact_bytes(self.weight, self.kind)
        if exact is not None:
            return exact
        blocks = blocks_of(self.weight.values.numpy(), self.kind)
        assert blocks is not None, f"{self.name}: rows do not divide"
        rounded: np.ndarray = self.kind.nearest(blocks)
        return rounded


@takes(ExportError, mg=GRAPH, path=NEW_FILE)
def to_gguf(
    mg: MaseGraph,
    path: str | Path,
    format: str = "Q8_0",
    *,
    tokenizer: Any = None,
    fallback: Fallback = None,
) -> ExportReport:
    """Write a model of the families Llama, Qwen 2, Qwen 3 and GPT-2, and return a report.

    Weights without a format are rounded to `format`: Q8_0, Q4_0, Q4_1, MXFP4, F16, BF16 or F32, or
    the spelling of a format with such a type (mxfp4, int8/32). Weights with a format are written in
    the smallest block type that stores their values exactly. If there is none, ExportError is
    raised, unless `fallback` is "float" (values in the smallest exact float type) or "nearest"
    (rounded again to `format`). `tokenizer` is a folder with `tokenizer.json` or a fast tokenizer
    of transformers.
    """
    format = type_named(format, "to_gguf")
    if fallback not in (None, "float", "nearest"):
        raise ExportError(f"to_gguf: fallback is {fallback!r}. Allowed: None, 'float', 'nearest'.")
    config: Any = getattr(mg.model, "config", None)
    family = family_of(config, "to_gguf")
    dropped = check_activations(mg, "gguf", fallback)
    placed = [_place(t, w, s, format, fallback) for t, s, w in _tensors(mg, family, config)]
    sizes: Counter[str] = Counter()
    for each in placed:
        sizes[each.kind.name] += each.weight.values.numel()
    file_type = TYPES[max(sizes, key=sizes.__getitem__)].file_type  # that of most elements
    metadata = {
        "general.architecture": family.architecture,
        "general.name": Path(getattr(config, "_name_or_path", "")).name or family.architecture,
        "general.file_type": file_type,
        "general.quantization_version": 2,
        **{f"{family.architecture}.{k}": v for k, v in family.metadata(config).items()},
        **tokenizer_metadata(tokenizer, config.vocab_size),
    }
    tensors = [GGUFTensor(p.name, tuple(p.weight.values.shape), p.kind, p.data) for p in placed]
    write_gguf(Path(path), metadata, tensors)
    return ExportReport("gguf", Path(path), [p.record() for p in placed], dropped)


def _tensors(mg: MaseGraph, family: GGUFFamily, config: Any) -> list[tuple[str, str, Weight]]:
    """Return target name, source name and arranged weight of each tensor."""
    tensors = []
    weights = weights_of(mg)
    sources = {target: f"{source}.weight" for source, target in family.names.items()}
    head, table = sources["output"], weights.get(sources["token_embd"])
    for name, weight in weights.items():
        if family.is_ignored(name) or name.endswith(("_mask", "_scale", "_point")):
            continue  # the parts of a weight that is stored as a whole
        target = family.target(name)
        if target is None:
            raise ExportError(
                f"to_gguf: tensor '{name}' has no place in a {family.architecture} file."
            )
        if name == head and table is not None and _same(weight.values, table.values):
            continue  # llama.cpp uses the table if the head is missing
        tensors.append((target, name, weight))
    _check_complete(tensors, family, config)
    return [(target, name, _arranged(w, name, family, config)) for target, name, w in tensors]


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _check_complete(
    tensors: list[tuple[str, str, Weight]], family: GGUFFamily, config: Any
) -> None:
    """Raise if the graph lacks a layer of its config, or has one of another size."""
    metadata = family.metadata(config)
    names = {name for name, _, _ in tensors}
    needed = ["token_embd.weight", "output_norm.weight"]
    needed += [f"blk.{i}.attn_output.weight" for i in range(metadata["block_count"])]
    for name in needed:
        if name not in names:
            raise ExportError(f"to_gguf: the graph has no tensor for '{name}'.")
    size = metadata["feed_forward_length"]
    for name, source, weight in tensors:
        if name.endswith("ffn_up.weight") and size not in weight.values.shape:
            raise ExportError(
                f"to_gguf: '{source}' has shape {list(weight.values.shape)}, and the config a "
                f"feed-forward size of {size}: llama.cpp takes one size for all layers."
            )


def _arranged(weight: Weight, name: str, family: GGUFFamily, config: Any) -> Weight:
    """Return the weight and its steps with rows in the order of the target."""

    def arrange(values: Tensor) -> Tensor:
        rows = rows_of(values)
        is_turned = family.is_turned(name) and rows.dim() == 2 and not weight.is_linear
        return family.arranged(name, (rows.t() if is_turned else rows).contiguous(), config)

    steps, offsets = weight.steps(), weight.offsets()
    return _Arranged(
        arrange(weight.values),
        weight.format,
        weight.scale,
        offset=weight.offset,
        own_steps=None if steps is None else arrange(steps),
        own_offsets=None if offsets is None else arrange(offsets),
    )


@dataclass(frozen=True)
class _Arranged(Weight):
    """Weight with arranged steps and offsets."""

    own_steps: Tensor | None = None
    own_offsets: Tensor | None = None

    def steps(self) -> Tensor | None:
        return self.own_steps

    def offsets(self) -> Tensor | None:
        return self.own_offsets


def _place(target: str, weight: Weight, source: str, format: str, fallback: Fallback) -> _Placed:
    """Choose the type of a tensor."""
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
    bits = weight.format.bits
    nearest = "Q4_0" if bits <= 4.5 else "Q8_0" if bits <= 8.5 else "F16"
    raise ExportError(
        f"to_gguf: '{source}' is in {weight.text}, whose values no GGUF type holds exactly (blocks "
        f"of 32 along rows, scales in float16). Nearest: {nearest}. Give "
        'fallback="float" for its values as floats, or fallback="nearest" to round again.'
    )


def _rounded(target: str, weight: Weight, source: str, format: str, note: str) -> _Placed:
    kind = TYPES[format]
    if blocks_of(weight.values.numpy(), kind) is None:
        note = f"rows of {weight.values.shape[-1]} are not blocks of {kind.block}"
        kind = TYPES["F16"]
    is_exact = kind.block == 1 and _exact_bytes(weight, kind) is not None
    return _Placed(target, source, weight, kind, is_exact, note)


def _exact_bytes(weight: Weight, kind: GGUFType) -> Any:
    """Return the bytes of a weight that `kind` stores exactly, or None."""
    values, steps = weight.values.numpy(), weight.steps()
    blocks = blocks_of(values, kind)
    if blocks is None:
        return None
    by_block = None if steps is None else blocks_of(steps.contiguous().numpy(), kind)
    offsets = weight.offsets()
    if offsets is None or kind.block == 1:
        return kind.exact(blocks, by_block)
    if kind.name != "Q4_1" or by_block is None:  # other block types have no offsets
        return None
    return offset_bytes(blocks, by_block[:, :1], offsets.contiguous().numpy().reshape(blocks.shape))
