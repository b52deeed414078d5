"""Distillation of a folder of safetensors, one decoder layer at a time.

Each decoder layer of a pruned or rounded model is trained to return what the layer of the float
model returns. Its inputs are those behind the trained layers before it, and are read from files
when they are used. A killed run resumes at the layer it was in.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.actions.decoder_stream import DecoderStream
from chop.actions.stream_importances import first_tensor
from chop.actions.streamed_quantization import Batch, Progress, StoredInputs, work_folder
from chop.errors import ConfigError, ExportError, TrainingError
from chop.export.hf_folders import CONFIG, INDEX, shard_names
from chop.export.model_free import GIB, METADATA, copy_others
from chop.export.safetensors_shards import mapped_tensor, read_header, shard_writer
from chop.files import remove_whole, write_whole
from chop.ir.graph_fingerprint import LENGTH, add_tensor
from chop.ir.node_arguments import tensors_in
from chop.nn.quantizers import Quantizer, parse_format
from chop.passes.ptq.observe.held_back import KEPT, METHOD, NEAREST, fitted_rows
from chop.passes.ptq.sites.rounded_layers import decibels

WORK = ".blocks-"
"""Start of the name of the folder with finished layers, in the output folder."""
MODEL, TEACHER = "model", "teacher"
"""Streams of activations."""
STATES = 5
"""Copies of a layer while it trains: weights, gradients, two of Adam, and the weights before."""
SAVED = 3
"""Values saved for the gradient of a layer, relative to the outputs of its matrices."""


@dataclass(frozen=True)
class BlockRequest:
    """Request of a user.

    `source`: folder of the model that is trained. `teacher`: folder of the float model. `steps`:
    steps of each layer, each on one batch, drawn by `seed`. `format`: spelling of a format that
    the matrices are rounded to in the forward pass, or None. Zeros of the matrices stay zeros.
    """

    source: Path
    teacher: Path
    steps: int = 100
    learning_rate: float = 1e-4
    format: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps: {self.steps}. Allowed: 1 or more.")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate: {self.learning_rate}. Allowed: above 0.")


@dataclass(frozen=True)
class BlockPlan:
    """Checked request: both models and the training data."""

    request: BlockRequest
    stream: DecoderStream
    teacher: DecoderStream
    batches: Sequence[Batch]

    @property
    def fingerprint(self) -> str:
        """Text that changes with the folders, the request and the data."""
        digest = hashlib.sha256(repr(self.request).encode())
        for folder in (self.request.source, self.request.teacher):
            for name in shard_names(folder):
                stat = (folder / name).stat()
                digest.update(repr((name, stat.st_size, stat.st_mtime_ns)).encode())
        for batch in self.batches:
            for number, tensor in enumerate(tensors_in(batch)):
                add_tensor(digest, str(number), tensor)
        return digest.hexdigest()[:LENGTH]

    def predicted_peak(self, resident: int) -> int:
        """Return the peak of memory in bytes, for a process that has `resident` bytes now."""
        config = self.stream.model.config.get_text_config()
        rows, length = max(ids.shape for batch in self.batches for ids in tensors_in(batch))[:2]
        matrices = [p.shape for p in self.stream.layers[0].parameters() if p.dim() > 1]
        each = sum(shape[-2] for shape in matrices) + config.num_attention_heads * length
        saved = 4 * SAVED * rows * length * each
        return resident + STATES * self.stream.layer_bytes(0) + int(saved)


def plan_blocks(request: BlockRequest, batches: Sequence[Batch]) -> BlockPlan:
    """Return the plan of a run; no tensor is read."""
    if request.format is not None:
        parse_format(request.format, "format")
    if len(batches) < 2:
        raise ConfigError(
            f"dataset: {len(batches)} batches. Allowed: 2 or more; the last ones test the result."
        )
    stream, teacher = DecoderStream(request.source), DecoderStream(request.teacher)
    ours, theirs = (_sizes(each) for each in (stream, teacher))
    for name, size in ours.items():
        if theirs[name] != size:
            raise ConfigError(
                f"teacher: its {name} is {theirs[name]}, and that of the model {size}. Allowed: a "
                "teacher with the vocabulary, the layers and the hidden size of the model."
            )
    return BlockPlan(request, stream, teacher, batches)


def _sizes(stream: DecoderStream) -> dict[str, int]:
    config = stream.model.config.get_text_config()
    names = ("vocab_size", "hidden_size", "num_hidden_layers")
    return {name: int(getattr(config, name)) for name in names}


def check_block_memory(plan: BlockPlan, resident: int, limit: float) -> int:
    """Return the predicted peak; raise ConfigError if it is above `limit` bytes."""
    peak = plan.predicted_peak(resident)
    if peak > limit:
        layers = STATES * plan.stream.layer_bytes(0)
        raise ConfigError(
            f"max_memory: {limit / GIB:.2f} GiB, and the run needs {peak / GIB:.2f} GiB: the "
            f"process has {resident / GIB:.2f}, one layer in training needs {layers / GIB:.2f}, "
            "and the rest are the activations of one batch. Give fewer rows: --batch-size 1."
        )
    return peak


@dataclass
class BlockReport:
    """Result of `distill_blocks`: a record for each layer, and the layers that were finished."""

    records: list[dict[str, Any]]
    layers_resumed: int = 0
    layer_seconds: list[float] = field(default_factory=list)


def distill_blocks(plan: BlockPlan, out: Path, *, progress: Progress | None = None) -> BlockReport:
    """Write the trained folder to `out`; a killed run of the same request is resumed."""
    if (out / CONFIG).exists():
        raise ExportError(f"{out}: has a model already. Give another folder.")
    run = _BlockRun(plan, work_folder(out, WORK, plan.fingerprint))
    first, seconds = run.first_layer(), []
    count = len(plan.stream.layers)
    if first < count:
        run.prepare(first)
    for number in range(first, count):
        if progress is not None:
            progress("layer", number + 1, count)
        start = time.monotonic()
        run.train(number)
        seconds.append(time.monotonic() - start)
    records = run.write(out)
    remove_whole(run.work)
    return BlockReport(records, first, seconds)


class _BlockRun:
    """Run over the decoder layers, with its files in the folder `work`."""

    def __init__(self, plan: BlockPlan, work: Path) -> None:
        self.plan, self.work = plan, work
        self.sides: list[Sequence[Mapping[str, Any]]] = []

    def layer_file(self, number: int) -> Path:
        return self.work / f"layer-{number:05}.safetensors"

    def state_file(self, number: int, stream: str) -> Path:
        """Return the file of the activations of a stream before a layer."""
        return self.work / f"{stream}-{number:05}.safetensors"

    def first_layer(self) -> int:
        """Return the number of finished layers behind which the activations are stored."""
        done = count = len(self.plan.stream.layers)
        while done and not self._is_finished(done - 1, is_last=done == count):
            done -= 1
        return done

    def _is_finished(self, number: int, *, is_last: bool) -> bool:
        behind = [self.state_file(number + 1, stream) for stream in (MODEL, TEACHER)]
        return self.layer_file(number).is_file() and (is_last or all(f.is_file() for f in behind))

    @torch.no_grad()
    def prepare(self, first: int) -> None:
        """Compute the inputs of the first layer in both models."""
        for stream, source in ((MODEL, self.plan.stream), (TEACHER, self.plan.teacher)):
            with shard_writer(self.state_file(0, stream)) as writer:
                for number, batch in enumerate(self.plan.batches):
                    inputs = source.layer_inputs(batch)
                    if stream == MODEL:
                        self.sides.append(inputs.sides)
                    writer.add(str(number), inputs.hidden)
                if not first:
                    writer.finish({})

    def inputs(self, number: int, stream: str, batch: int) -> Mapping[str, Any]:
        """Return the inputs of a layer, whose activations are read from their file."""
        file = self.state_file(number, stream)
        return dict(StoredInputs(file, str(batch), self.sides[batch][number]))

    @torch.no_grad()
    def advance(self, layer: nn.Module, number: int, stream: str) -> None:
        """Write what a layer makes of a stream."""
        with shard_writer(self.state_file(number + 1, stream)) as writer:
            for batch in range(len(self.sides)):
                writer.add(str(batch), first_tensor(layer(**self.inputs(number, stream, batch))))
            writer.finish({})

    def train(self, number: int) -> None:
        """Train one layer; write it, and the activations behind it."""
        self.advance(self.plan.teacher.load_layer(number), number, TEACHER)
        layer = self.plan.stream.load_layer(number)
        record = self._fit(layer, number)
        self.advance(layer, number, MODEL)
        with shard_writer(self.layer_file(number)) as writer:
            for name, tensor in self._stored(layer, number):
                writer.add(name, tensor)
            writer.finish({METADATA: json.dumps(record)})
        for stream in (MODEL, TEACHER):
            self.state_file(number, stream).unlink(missing_ok=True)

    def _stored(self, layer: nn.Module, number: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters of a layer under their names in the files, in their types."""
        stream = self.plan.stream
        for name, parameter in layer.named_parameters():
            for part in stream.parts(f"{stream.layer_path(number)}.{name}"):
                whole = parameter if part.expert is None else parameter[part.expert]
                yield part.name, part.of(whole).detach().to(stream.stored[part.name].dtype)

    def _fit(self, layer: nn.Module, number: int) -> dict[str, Any]:
        """Train a layer; keep its weights if the error on held-back batches does not fall."""
        count = len(self.sides)
        fitted = min(fitted_rows(count), count - 1)
        held_back = range(fitted, count)
        if self.plan.request.format is not None:
            _round(layer, parse_format(self.plan.request.format, "format"))
        before = [parameter.detach().clone() for parameter in layer.parameters()]
        plain, power = self._errors(layer, number, held_back)
        self._descend(layer, number, fitted)
        after = self._errors(layer, number, held_back)[0]
        if not after < plain:
            for parameter, old in zip(layer.parameters(), before, strict=True):
                parameter.data.copy_(old)
        _leave_rounded(layer)
        return {
            "layer": self.plan.stream.layer_path(number),
            "before": decibels(power, plain),
            "after": decibels(power, min(after, plain)),
            KEPT: METHOD if after < plain else NEAREST,
        }

    def _descend(self, layer: nn.Module, number: int, count: int) -> None:
        request = self.plan.request
        layer.requires_grad_(True)
        nonzero = {p: p.detach() != 0 for p in layer.parameters() if p.dim() > 1}
        optimizer = torch.optim.Adam(layer.parameters(), lr=request.learning_rate)
        draw = random.Random(request.seed + number)
        for step in range(request.steps):
            optimizer.param_groups[0]["lr"] = request.learning_rate * (1 - step / request.steps)
            optimizer.zero_grad()
            error, power = self._error(layer, number, draw.randrange(count))
            if not torch.isfinite(error):
                raise TrainingError(
                    f"layer {number}, step {step}: the loss is not finite (learning_rate is "
                    f"{request.learning_rate}). Give a smaller learning rate."
                )
            (error / max(power, 1e-30)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with torch.no_grad():
                for parameter, mask in nonzero.items():
                    parameter.mul_(mask)
        layer.requires_grad_(False)
        for parameter in layer.parameters():
            parameter.grad = None

    @torch.no_grad()
    def _errors(self, layer: nn.Module, number: int, batches: Sequence[int]) -> tuple[float, float]:
        """Return the error of a layer's outputs on batches, and the power of the teacher's."""
        parts = [self._error(layer, number, batch) for batch in batches]
        return sum(float(error) for error, _ in parts), sum(power for _, power in parts)

    def _error(self, layer: nn.Module, number: int, batch: int) -> tuple[Tensor, float]:
        with mapped_tensor(self.state_file(number + 1, TEACHER), str(batch)) as target:
            output = first_tensor(layer(**self.inputs(number, MODEL, batch)))
            places = _places(self.plan.batches[batch], output)
            error = ((output - target).square() * places).sum()
            return error, float((target.square() * places).sum())

    def write(self, out: Path) -> list[dict[str, Any]]:
        """Write the shards of the folder with the trained layers; return their records."""
        source = self.plan.request.source
        files: dict[str, Path] = {}
        records = []
        for number in range(len(self.plan.stream.layers)):
            header = read_header(self.layer_file(number))
            records.append(json.loads(header.metadata[METADATA]))
            files |= {tensor.name: self.layer_file(number) for tensor in header.tensors}
        for name in shard_names(source):
            with shard_writer(out / name) as writer:
                for tensor in read_header(source / name).tensors:
                    file = files.get(tensor.name, source / name)
                    with mapped_tensor(file, tensor.name) as value:
                        writer.add(tensor.name, value)
                writer.finish({"format": "pt"})
        copy_others(source, out)
        if (source / INDEX).is_file():
            write_whole(out / INDEX, (source / INDEX).read_text())
        write_whole(out / CONFIG, (source / CONFIG).read_text())
        return records


class _Rounding(nn.Module):
    """Rounding of a weight to a format, with a straight-through gradient."""

    def __init__(self, form: Quantizer) -> None:
        super().__init__()
        self.form: Callable[[Tensor], Tensor] = form

    def forward(self, weight: Tensor) -> Tensor:
        """Return the rounded weight."""
        return self.form(weight)


def _round(layer: nn.Module, form: Quantizer) -> None:
    """Round the matrices of a layer in its forward pass."""
    for module in [*layer.modules()]:
        if type(module) is nn.Linear:
            parametrize.register_parametrization(module, "weight", _Rounding(form))


def _leave_rounded(layer: nn.Module) -> None:
    """Make rounded weights plain parameters."""
    for module in [*layer.modules()]:
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")


def _places(batch: Batch, output: Tensor) -> Tensor:
    """Return 1 at each token that counts: padding does not."""
    mask = batch.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.shape != output.shape[:2]:
        return output.new_ones(1)
    return mask[..., None].to(output.dtype)
