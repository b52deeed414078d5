"""Quantisation of a folder of safetensors without its model: one tensor at a time.

The shards of a folder of transformers are read and written in turn, in the layout of
compressed-tensors. No model is built, so that any architecture will do, and the largest tensor
bounds the memory. A finished shard is not written again after an interruption.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError, ExportError
from chop.export.compressed_schemes import Scheme, coded_weight, quantization_config
from chop.export.exported_weights import Weight
from chop.export.hf_folders import CONFIG, INDEX, TENSORS, check_folder, shard_names
from chop.export.safetensors_shards import (
    ShardWriter,
    StoredTensor,
    mapped_tensor,
    read_header,
    shard_writer,
)
from chop.files import make_folder, read_json, write_whole
from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.codes import scales_of, tiles_of
from chop.patterns import check_pattern, fullmatch

GIB = 1 << 30
IGNORED = (
    r"(.*\.)?(embed\w*|\w+_embed\w*|word_embeddings|wte|wpe|shared)(\..*)?",
    r".*(norm|ln_\w+|layernorm)\w*(\..*)?",
    r"(.*\.)?(lm_head|embed_out|score|classifier|head)",
    r".*\.(gate|router|shared_expert_gate)",
)
"""Modules that stay floats by default: embeddings, norms, heads, and routers of experts."""
TRANSPOSED = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
"""Types of models whose matrices are (inputs, outputs): compressed-tensors has no such layout."""
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
"""Ends of the files that are not copied: weights in any layout."""
METADATA = "mase"
AT_ONCE = 1 << 21
"""Elements that are rounded at a time."""
BYTES_AT_ONCE = 160 * AT_ONCE
"""Memory of rounding and encoding `AT_ONCE` elements, measured: 100 to 150 bytes each."""
PROBE = (256, 256)


@dataclass(frozen=True)
class TensorChoice:
    """A tensor of the source: quantised, or `reason` why it is copied."""

    tensor: StoredTensor
    reason: str = ""

    @property
    def module(self) -> str:
        """Path of the module that owns the tensor."""
        return self.tensor.name.rpartition(".")[0]


@dataclass(frozen=True)
class ShardPlan:
    """A file of the source and its tensors."""

    file: Path
    choices: tuple[TensorChoice, ...]

    def fingerprint(self, form: Quantizer, calibration: str = "") -> str:
        """Return a text that changes with the source file and with the request."""
        stat = self.file.stat()
        chosen = [(c.tensor.name, c.tensor.shape, bool(c.reason)) for c in self.choices]
        facts = (self.file.name, stat.st_size, stat.st_mtime_ns, str(form), chosen)
        text = repr((*facts, calibration) if calibration else facts)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class FinishedTensor:
    """A tensor of the source that calibration has rounded: the file and the names of its parts.

    `scheme`: None for a tensor that stays a float, such as the weight of a norm.
    """

    file: Path
    parts: tuple[str, ...]
    scheme: Scheme | None = None


@dataclass(frozen=True)
class Calibrated:
    """Result of a calibration: a fingerprint of its request, and the finished tensors by name."""

    fingerprint: str = ""
    tensors: Mapping[str, FinishedTensor] = field(default_factory=dict)


@dataclass
class ModelFreeReport:
    """Result of `quantize_folder`; sizes in bytes."""

    format: str
    predicted_peak: int
    quantised: list[str] = field(default_factory=list)
    copied: dict[str, str] = field(default_factory=dict)
    """Matrices that stay floats, each with the reason."""
    written: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    """Shards that an earlier run had finished."""
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(frozen=True)
class ModelFreePlan:
    """Checked request: the source, its config, its shards and the format."""

    source: Path
    config: Mapping[str, Any]
    shards: tuple[ShardPlan, ...]
    form: Quantizer

    @property
    def choices(self) -> Iterator[TensorChoice]:
        """All tensors."""
        return (choice for shard in self.shards for choice in shard.choices)

    def predicted_peak(self, resident: int) -> int:
        """Return the peak of memory in bytes, for a process that has `resident` bytes now.

        It is the largest tensor, mapped, and the work on the largest matrix, whose memory the
        allocator keeps.
        """
        mapped = max(choice.tensor.nbytes for choice in self.choices)
        return resident + mapped + max(self._work(choice) for choice in self.choices)

    def _work(self, choice: TensorChoice) -> int:
        """Return the memory of rounding and encoding a tensor."""
        if choice.reason:
            return 0
        elements = torch.Size(choice.tensor.shape).numel()
        coded = int(elements * (self.form.bits + 1) / 8)
        return 2 * coded + min(BYTES_AT_ONCE, 160 * elements)


def plan_folder(
    source: Path, form: Quantizer, *, ignore: tuple[str, ...] = (), include: tuple[str, ...] = ()
) -> ModelFreePlan:
    """Return the plan of a quantisation; no tensor is read.

    `ignore`: regular expressions of modules that stay floats, beside `IGNORED`. `include`: those
    that are quantised even so.
    """
    for option, patterns in (("ignore", ignore), ("include", include)):
        for pattern in patterns:
            check_pattern(pattern, option, ConfigError)
    check_folder(source)
    config = read_json(source / CONFIG, ExportError)
    if not isinstance(config, dict):
        raise ExportError(f"{source / CONFIG}: expected a mapping.")
    if "quantization_config" in config:
        raise ExportError(f"{source / CONFIG}: is quantised already (quantization_config).")
    if config.get("model_type") in TRANSPOSED:
        raise ExportError(
            f"{source / CONFIG}: a model of type '{config['model_type']}' stores matrices as "
            "(inputs, outputs). Allowed: (outputs, inputs). Use `mase quantize` with the model."
        )
    _check_form(form)
    shards = []
    for name in shard_names(source):
        tensors = read_header(source / name).tensors
        choices = (TensorChoice(t, _reason(t, form, ignore, include)) for t in tensors)
        shards.append(ShardPlan(source / name, tuple(choices)))
    plan = ModelFreePlan(source, config, tuple(shards), form)
    _check_patterns(plan, {"ignore": ignore, "include": include})
    return plan


def _check_form(form: Quantizer) -> None:
    """Raise if compressed-tensors has no scheme for the format."""
    probe = torch.randn(PROBE, generator=torch.Generator().manual_seed(0))
    size = form.group_columns
    if size is not None:
        probe = probe.repeat(1, -(-size // PROBE[1]))[:, : max(size, PROBE[1] // size * size)]
    if _coded(probe, form, float(probe.abs().max())) is None:
        raise ExportError(
            f"format '{form}': compressed-tensors has no layout for it. Allowed: nvfp4, mxfp4, "
            "mxfp6_e2m3, mxfp8, fp8_e4m3, fp8_block, and mxint or int of at most 8 bits, per "
            "tensor, channel or group."
        )


def _check_patterns(plan: ModelFreePlan, patterns: Mapping[str, tuple[str, ...]]) -> None:
    modules = {choice.module for choice in plan.choices}
    for option, own in patterns.items():
        for pattern in own:
            if not any(fullmatch(pattern, module) for module in modules):
                raise ConfigError(
                    f"{option}: no module matches '{pattern}'. The first module: "
                    f"'{min(modules, default='')}'."
                )
    if all(choice.reason for choice in plan.choices):
        raise ExportError(f"{plan.source}: no matrix is left to quantise.")


def _reason(
    tensor: StoredTensor, form: Quantizer, ignore: tuple[str, ...], include: tuple[str, ...]
) -> str:
    """Return why a tensor stays as it is; empty if it is quantised."""
    module, _, leaf = tensor.name.rpartition(".")
    if leaf != "weight" or len(tensor.shape) != 2:
        return "not the matrix of a layer"
    if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
        return f"is {str(tensor.dtype).removeprefix('torch.')}"
    is_included = any(fullmatch(pattern, module) for pattern in include)
    if any(fullmatch(pattern, module) for pattern in ignore):
        return "ignored by --ignore"
    if not is_included and any(fullmatch(pattern, module) for pattern in IGNORED):
        return "ignored by default"
    size = form.group_columns
    if size is not None and tensor.shape[1] % size:
        return f"{tensor.shape[1]} columns are no multiple of {size}"
    return "" if 0 not in tensor.shape else "is empty"


Progress = Callable[[str, int, int], None]
"""Called before each shard with its name, its number and the count."""


def check_out(plan: ModelFreePlan, out: Path) -> None:
    """Raise if the folder `out` is the source; make it if there is none."""
    if out.resolve() == plan.source.resolve():
        raise ExportError(f"{out}: is the source. Give another folder.")
    make_folder(out)


def quantize_folder(
    plan: ModelFreePlan,
    out: Path,
    *,
    resident: int = 0,
    progress: Progress | None = None,
    calibrated: Calibrated | None = None,
) -> ModelFreeReport:
    """Write the folder of a plan to `out`, and return a report.

    Shards have the names of the source. `config.json`, which makes the folder loadable, comes last.
    `calibrated`: tensors that are finished; the others are rounded to the nearest value.
    """
    check_out(plan, out)
    done = calibrated or Calibrated()
    report = ModelFreeReport(str(plan.form), plan.predicted_peak(resident))
    schemes: dict[str, Scheme] = {}
    for number, shard in enumerate(plan.shards, 1):
        if progress is not None:
            progress(shard.file.name, number, len(plan.shards))
        stored = _finished(shard, plan.form, out, done.fingerprint)
        (report.written if stored is None else report.resumed).append(shard.file.name)
        schemes |= _write_shard(shard, plan.form, out, done) if stored is None else stored
    for choice in plan.choices:
        if not choice.reason:
            report.quantised.append(choice.module)
        elif len(choice.tensor.shape) > 1:
            report.copied[choice.module] = choice.reason
    report.bytes_before = sum(c.tensor.nbytes for c in plan.choices)
    report.bytes_after = _write_index(plan, out)
    copy_others(plan.source, out)
    write_whole(out / CONFIG, json.dumps(_config(plan, schemes, report), indent=2) + "\n")
    return report


def _finished(
    shard: ShardPlan, form: Quantizer, out: Path, calibration: str
) -> dict[str, Scheme] | None:
    """Return the schemes of a shard that an earlier run of this request finished, else None."""
    file = out / shard.file.name
    if not file.is_file():
        return None
    record = json.loads(read_header(file).metadata.get(METADATA, "{}"))
    if record.get("fingerprint") != shard.fingerprint(form, calibration):
        return None
    return {name: scheme_of(fields) for name, fields in record["schemes"].items()}


def scheme_of(fields: Mapping[str, Any]) -> Scheme:
    """Return the scheme with these fields, as they are read from JSON."""
    tile = fields["block_structure"]
    return Scheme(**{**fields, "block_structure": None if tile is None else tuple(tile)})


def _write_shard(
    shard: ShardPlan, form: Quantizer, out: Path, calibrated: Calibrated
) -> dict[str, Scheme]:
    schemes: dict[str, Scheme] = {}
    with shard_writer(out / shard.file.name) as writer:
        for choice in shard.choices:
            finished = calibrated.tensors.get(choice.tensor.name)
            if finished is not None:
                _copy_parts(finished, writer)
                schemes |= {} if finished.scheme is None else {choice.module: finished.scheme}
                continue
            with mapped_tensor(shard.file, choice.tensor.name) as tensor:
                if choice.reason:
                    writer.add(choice.tensor.name, tensor)
                else:
                    schemes[choice.module] = _write_coded(choice, tensor, form, writer)
        records = {name: dataclasses.asdict(scheme) for name, scheme in schemes.items()}
        fingerprint = shard.fingerprint(form, calibrated.fingerprint)
        record = {"fingerprint": fingerprint, "schemes": records}
        writer.finish({"format": "pt", METADATA: json.dumps(record)})
    return schemes


def _copy_parts(finished: FinishedTensor, writer: ShardWriter) -> None:
    for name in finished.parts:
        with mapped_tensor(finished.file, name) as part:
            writer.add(name, part)


def _write_coded(
    choice: TensorChoice, tensor: Tensor, form: Quantizer, writer: ShardWriter
) -> Scheme:
    scheme, parts = coded_matrix(choice.tensor.name, tensor, form)
    for name, part in parts.items():
        writer.add(f"{choice.module}.{name}", part)
    return scheme


def coded_matrix(
    name: str, tensor: Tensor, form: Quantizer, scales: Tensor | None = None
) -> tuple[Scheme, dict[str, Tensor]]:
    """Return the scheme of a matrix and its parts; raise ExportError if there is none.

    `scales`: those that a layer stores, of integers that have their scales from calibration.
    """
    largest = _largest(tensor)
    coded = _coded(tensor, form, largest, scales) if math.isfinite(largest) else None
    if coded is None:
        why = "has no layout" if math.isfinite(largest) else "has values that are NaN or infinite"
        module = name.rpartition(".")[0]
        raise ExportError(f"tensor '{name}': {why} in {form}. Give --ignore '{module}'.")
    return coded


def _slices(tensor: Tensor, form: Quantizer) -> Iterator[Tensor]:
    """Yield parts of a matrix, of whole tiles, in float32."""
    rows, columns = tensor.shape
    high = 1 if form.blocks is None else form.blocks.tile[0]
    high = rows if high == -1 else high
    step = max(AT_ONCE // columns // high, 1) * high
    for first in range(0, rows, step):
        yield tensor[first : first + step].float()


def _largest(tensor: Tensor) -> float:
    low, high = torch.aminmax(tensor)
    return max(-float(low), float(high))


def _coded(
    tensor: Tensor, form: Quantizer, largest: float, scales: Tensor | None = None
) -> tuple[Scheme, dict[str, Tensor]] | None:
    """Return a matrix in its scheme, rounded slice by slice; None if it has none."""
    whole = _bound(form, largest)
    parts: dict[str, list[Tensor]] = {}
    scheme, first = None, 0
    for values in _slices(tensor, form):
        own = scales if scales is None or scales.dim() == 0 else scales[first : first + len(values)]
        first += len(values)
        coded = coded_weight(_rounded(values, whole, own), "packed", is_fixed=True)
        if coded is None:
            return None
        scheme = coded[0]
        for name, part in coded[1].items():
            parts.setdefault(name, []).append(part)
    assert scheme is not None, "a matrix has rows"
    return scheme, {n: _joined(n, own, scheme, tensor) for n, own in parts.items()}


def _joined(name: str, parts: list[Tensor], scheme: Scheme, tensor: Tensor) -> Tensor:
    if name == "weight_shape":
        return torch.tensor(tensor.shape)
    is_one = name == "weight_global_scale"
    is_one = is_one or (name == "weight_scale" and scheme.strategy == "tensor")
    return parts[0] if is_one else torch.cat(parts)


def _bound(form: Quantizer, largest: float) -> Quantizer:
    """Return the format with the scale of the whole tensor, so that slices are rounded alike."""
    magnitude = torch.tensor([largest])
    if form.blocks is not None:
        return form.blocks.measured_on(magnitude)
    scaled = form.scaled
    if scaled is not None and scaled.granularity == "tensor" and scaled.scale is None:
        return dataclasses.replace(scaled, scale=float(scaled.scales_of(magnitude)))
    return form


def _rounded(values: Tensor, form: Quantizer, stored: Tensor | None = None) -> Weight:
    if stored is not None:  # the layer has rounded them
        assert form.scaled is not None, f"{form} has no scale"
        return Weight(values, form, scales_of(form.scaled, values, stored), is_linear=True)
    scale = scales_of(form.scaled, values) if form.scaled is not None else tiles_of(form, values)
    return Weight(form(values), form, scale, is_linear=True)


def _write_index(plan: ModelFreePlan, out: Path) -> int:
    """Write the index of several shards; return the bytes of all tensors."""
    places, total = {}, 0
    for shard in plan.shards:
        for tensor in read_header(out / shard.file.name).tensors:
            places[tensor.name] = shard.file.name
            total += tensor.nbytes
    if [shard.file.name for shard in plan.shards] != [TENSORS]:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        write_whole(out / INDEX, json.dumps(index, indent=2) + "\n")
    return total


def copy_others(source: Path, out: Path) -> None:
    """Copy all files but weights: the tokenizer, the generation settings, code."""
    for file in sorted(source.iterdir()):
        if file.is_file() and file.suffix not in WEIGHTS and file.name not in (CONFIG, INDEX):
            shutil.copyfile(file, out / file.name)


def _config(
    plan: ModelFreePlan, schemes: Mapping[str, Scheme], report: ModelFreeReport
) -> dict[str, Any]:
    settings = {k: v for k, v in plan.config.items() if k != "torch_dtype"}
    settings["dtype"] = plan.config.get("dtype", plan.config.get("torch_dtype"))
    if any(scheme.is_in_bfloat16 for scheme in schemes.values()):
        settings["dtype"] = "bfloat16"
    matrices = [*report.quantised, *report.copied]
    return {**settings, "quantization_config": quantization_config(schemes, matrices)}
