"""Writer of GGUF files, which llama.cpp runs."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from chop.arguments import NEW_FILE, an, takes
from chop.errors import ExportError
from chop.export.export_report import ExportReport, TensorRecord
from chop.export.exported_weights import Load, Weight, check_activations, weight_loaders
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
from chop.registry import suggest

Fallback = Literal["float", "nearest"] | None
GRAPH = an(MaseGraph, "a MaseGraph")


@dataclass(frozen=True)
class _Placed:
    """Tensor with its type in the file; `data` returns its bytes."""

    name: str
    source: str
    text: str
    shape: tuple[int, ...]
    kind: GGUFType
    is_exact: bool
    note: str
    data: Callable[[], np.ndarray]

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def record(self) -> TensorRecord:
        """Return the tensor's row of the report."""
        sizes = (self.count, self.kind.size(self.count))
        parts = (self.name, self.source, self.text, self.kind.name, *sizes)
        return TensorRecord(*parts, self.is_exact, self.note)


def _placed(
    target: str, source: str, weight: Weight, kind: GGUFType, exact: np.ndarray | None, note: str
) -> _Placed:
    """Return the tensor in a type; `exact`: its bytes, if the type holds its values exactly.

    The bytes of a weight with a format are stored, the weight itself is not: its values take eight
    times as much memory. A float weight belongs to the model anyway.
    """

    def rounded() -> np.ndarray:
        blocks = blocks_of(weight.values.numpy(), kind)
        assert blocks is not None, f"{target}: rows do not divide"
        own = weight.importance if isinstance(weight, _Arranged) else None
        if own is None or not kind.has_importance:
            result: np.ndarray = kind.nearest(blocks)
            return result
        spread = np.broadcast_to(own.double().numpy(), weight.values.shape)
        return kind.nearest(blocks, blocks_of(spread, kind))  # type: ignore[no-any-return]

    is_exact, is_float = exact is not None, weight.format is None
    if is_float and is_exact:
        data: Callable[[], np.ndarray] = functools.partial(_exact_bytes, weight, kind)
    elif is_float:
        data = rounded
    else:
        stored = rounded() if exact is None else exact
        data = functools.partial(_stored, stored)
    shape = tuple(weight.values.shape)
    return _Placed(target, source, weight.text, shape, kind, is_exact, note, data)


def _stored(data: np.ndarray) -> np.ndarray:
    return data


@takes(ExportError, mg=GRAPH, path=NEW_FILE)
def to_gguf(
    mg: MaseGraph,
    path: str | Path,
    format: str = "Q8_0",
    *,
    tokenizer: Any = None,
    fallback: Fallback = None,
    importance: Mapping[str, Tensor] | None = None,
) -> ExportReport:
    """Write a model of the families Llama, Qwen 2, Qwen 3 and GPT-2, and return a report.

    Weights without a format are rounded to `format`: a row of `TYPES` such as Q8_0, Q4_K or F16, or
    the spelling of a format with such a type (mxfp4, int8/32). Weights with a format are written in
    the smallest block type that stores their values exactly. If there is none, ExportError is
    raised, unless `fallback` is "float" (values in the smallest exact float type) or "nearest"
    (rounded again to `format`). `tokenizer` is a folder with `tokenizer.json` or a fast tokenizer
    of transformers. `importance`, for K-quants: by layer, the mean square of each of its inputs,
    which weights the errors of that column.
    """
    format = type_named(format, "to_gguf")
    if fallback not in (None, "float", "nearest"):
        raise ExportError(f"to_gguf: fallback is {fallback!r}. Allowed: None, 'float', 'nearest'.")
    config: Any = getattr(mg.model, "config", None)
    family = family_of(config, "to_gguf")
    dropped = check_activations(mg, "gguf", fallback)
    sources = list(_tensors(mg, family))
    _check_importance(importance, [source for _, source, _ in sources], format)
    placed = []
    for target, source, load in sources:
        weight = _arranged(load(), source, family, config)
        own = (importance or {}).get(source.removesuffix(".weight"))
        if own is not None:
            weight = replace(weight, importance=_checked_importance(own, weight, source))
        placed.append(_place(target, weight, source, format, fallback))
    _check_complete(placed, family, config)
    sizes: Counter[str] = Counter()
    for each in placed:
        sizes[each.kind.name] += each.count
    file_type = TYPES[max(sizes, key=sizes.__getitem__)].file_type  # that of most elements
    metadata = {
        "general.architecture": family.architecture,
        "general.name": Path(getattr(config, "_name_or_path", "")).name or family.architecture,
        "general.file_type": file_type,
        "general.quantization_version": 2,
        **{f"{family.architecture}.{k}": v for k, v in family.metadata(config).items()},
        **tokenizer_metadata(tokenizer, config.vocab_size),
    }
    tensors = [GGUFTensor(p.name, p.shape, p.kind, p.data) for p in placed]
    write_gguf(Path(path), metadata, tensors)
    return ExportReport("gguf", Path(path), [p.record() for p in placed], dropped)


def _tensors(mg: MaseGraph, family: GGUFFamily) -> Iterator[tuple[str, str, Load]]:
    """Yield target name, source name and a function that returns the weight of each tensor."""
    loaders = weight_loaders(mg)
    sources = {target: f"{source}.weight" for source, target in family.names.items()}
    head, table = sources["output"], loaders.get(sources["token_embd"])
    for name, load in loaders.items():
        if family.is_ignored(name) or name.endswith(("_mask", "_scale", "_point")):
            continue  # the parts of a weight that is stored as a whole
        target = family.target(name)
        if target is None:
            raise ExportError(
                f"to_gguf: tensor '{name}' has no place in a {family.architecture} file."
            )
        if name == head and table is not None and _same(load().values, table().values):
            continue  # llama.cpp uses the table if the head is missing
        yield target, name, load


def _check_importance(
    importance: Mapping[str, Tensor] | None, sources: Sequence[str], format: str
) -> None:
    """Raise if importances are of layers that are not written, or the type has no use for them."""
    if importance is None:
        return
    if not TYPES[format].has_importance:
        allowed = ", ".join(name for name, kind in TYPES.items() if kind.has_importance)
        raise ExportError(f"to_gguf: importance with the type {format}. Allowed: {allowed}.")
    names = [s.removesuffix(".weight") for s in sources if s.endswith(".weight")]
    for name in importance:
        if name not in names:
            raise ExportError(f"to_gguf: importance: no layer '{name}'. {suggest(name, names)}")


def _checked_importance(own: Tensor, weight: Weight, source: str) -> Tensor:
    """Return the importance of the columns of a weight; raise if it is not one number for each."""
    columns = weight.values.shape[-1]
    if own.shape != (columns,) or not bool((own.isfinite() & (own >= 0)).all()):
        raise ExportError(
            f"to_gguf: importance of '{source}': shape {list(own.shape)}. Allowed: {columns} "
            "finite numbers, not negative."
        )
    return own.detach().cpu()


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _check_complete(placed: Sequence[_Placed], family: GGUFFamily, config: Any) -> None:
    """Raise if the graph lacks a layer of its config, or has one of another size."""
    metadata = family.metadata(config)
    names = {each.name for each in placed}
    needed = ["token_embd.weight", "output_norm.weight"]
    needed += [f"blk.{i}.attn_output.weight" for i in range(metadata["block_count"])]
    for name in needed:
        if name not in names:
            raise ExportError(f"to_gguf: the graph has no tensor for '{name}'.")
    size = metadata["feed_forward_length"]
    for each in placed:
        if each.name.endswith("ffn_up.weight") and size not in each.shape:
            raise ExportError(
                f"to_gguf: '{each.source}' has shape {list(each.shape)}, and the config a "
                f"feed-forward size of {size}: llama.cpp takes one size for all layers."
            )


def _arranged(weight: Weight, name: str, family: GGUFFamily, config: Any) -> _Arranged:
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
    """Weight with arranged steps and offsets; `importance` of its columns or None."""

    own_steps: Tensor | None = None
    own_offsets: Tensor | None = None
    importance: Tensor | None = None

    def steps(self) -> Tensor | None:
        return self.own_steps

    def offsets(self) -> Tensor | None:
        return self.own_offsets


def _place(target: str, weight: Weight, source: str, format: str, fallback: Fallback) -> _Placed:
    """Choose the type of a tensor."""
    if weight.values.dim() == 1:  # llama.cpp adds and multiplies vectors in F32
        kind = TYPES["F32"]
        return _placed(target, source, weight, kind, _exact_bytes(weight, kind), "")
    if weight.format is None:
        return _rounded(target, weight, source, format, "")
    for name in BLOCK_TYPES:
        if (exact := _exact_bytes(weight, TYPES[name])) is not None:
            return _placed(target, source, weight, TYPES[name], exact, "")
    if fallback == "float":
        for name in FLOAT_TYPES:
            if (exact := _exact_bytes(weight, TYPES[name])) is not None:
                return _placed(target, source, weight, TYPES[name], exact, "dequantised")
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
        others = (TYPES[name] for name in ("Q8_0", "F16"))
        kind = next(k for k in others if blocks_of(weight.values.numpy(), k) is not None)
    exact = _exact_bytes(weight, kind) if kind.block == 1 else None
    return _placed(target, source, weight, kind, exact, note)


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
