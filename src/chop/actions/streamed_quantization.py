"""Quantisation with calibration data of a folder of safetensors, one decoder layer at a time.

The activations of all batches are carried from layer to layer. Each decoder layer is read,
calibrated, rounded and packed before the next is read. Finished layers and the activations behind
the last of them are files, so that a killed run resumes at the layer it was in. At the end the
layers become shards in the layout of `chop.export.model_free`. A rotation of the residual stream
comes first, and writes the rotated model into a folder of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from chop.actions.decoder_stream import HIDDEN, DecoderStream
from chop.actions.post_training import METHODS, Settings, check_options, methods_named
from chop.actions.stream_importances import RowImportances, first_tensor
from chop.actions.streamed_allocation import (
    StreamAllocation,
    StreamSensitivities,
    budget_of,
    covered_layers,
)
from chop.actions.streamed_rotation import (
    ROTATE,
    StreamRotation,
    check_rotation,
    rotate_folder,
    tied_head,
)
from chop.errors import ConfigError
from chop.export.model_free import (
    METADATA,
    Calibrated,
    FinishedTensor,
    ModelFreePlan,
    ModelFreeReport,
    check_out,
    coded_matrix,
    plan_folder,
    quantize_folder,
    scheme_of,
)
from chop.export.safetensors_shards import ShardWriter, mapped_tensor, read_header, shard_writer
from chop.files import make_folder, remove_whole
from chop.ir.graph import MaseGraph
from chop.ir.graph_fingerprint import LENGTH, add_tensor
from chop.ir.node_arguments import tensors_in
from chop.nn.quantized.frozen import cache_limited
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import parse_format
from chop.nn.quantizers.formats import spelled_settings
from chop.passes import quantize_transform_pass
from chop.passes.ptq.observe.carried_batch import CarriedBatch
from chop.passes.rewrite.lift_layers import lift_products
from chop.passes.rewrite.propagate import undisturbed
from chop.passes.rewrite.split_experts import split_experts

AVAILABLE = ("nearest", "gptq", "clip", "smooth", "awq", "learned_rounding", ROTATE)
"""Methods that look at one decoder layer at a time."""
WHOLE_MODEL = {
    "equalize": "it follows channels through the whole model, and compares its outputs with and "
    "without the change",
    "correct_bias": "it adds biases, and a folder of transformers has no place for them",
    "fold_batch_norm": "it is for convolutions, and decoder layers have none",
}
"""Reason why each of the other methods needs the whole model, by its name."""
FLOAT, REFERENCE, NOW = "float", "reference", "now"
"""Streams of activations: of the model as it is stored, of the same model after the methods that
keep its function, and of the rounded model."""
WORK, ROTATED = ".layers-", ".rotated-"
"""Starts of the names of folders in the output folder: of finished layers, and of the rotated
model."""
WEIGHT_ALONE = {"data_in_name": "NA", "bias_name": "NA"}
FEW_ROWS, FEW_TOKENS = 2, 16
"""Size of the batch that layers are captured with."""

Batch = Mapping[str, Any]
Progress = Callable[[str, int, int], None]
"""Called before each step with its name, its number and the count."""


@dataclass(frozen=True)
class StreamRequest:
    """Request of a user.

    `format`: spelling of the format of the weights. `methods`: names of `AVAILABLE`. `options`:
    arguments of their passes, by name. `ignore`, `include`: as for `plan_folder`. `spill`: folder
    for activations, which otherwise stay in memory while a layer is calibrated. `allocation`:
    formats to choose from for each matrix of the layers, in place of `format`.
    """

    source: Path
    format: str
    methods: tuple[str, ...] = ("nearest",)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    spill: Path | None = None
    allocation: StreamAllocation | None = None

    @property
    def before(self) -> list[str]:
        """Methods that change the float model layer by layer."""
        names = [name for name in self.methods if METHODS[name].when == "before"]
        return [name for name in names if name != ROTATE]

    @property
    def after(self) -> list[str]:
        """Methods that round the quantised model with data."""
        return [n for n in self.methods if METHODS[n].when == "after" and n != "nearest"]

    def behind_rotation(self, source: Path) -> StreamRequest:
        """Return the request for the rotated model in `source`."""
        methods = tuple(name for name in self.methods if name != ROTATE)
        options = {name: own for name, own in self.options.items() if name != ROTATE}
        return replace(self, source=source, methods=methods or ("nearest",), options=options)

    @property
    def weighs_rows(self) -> bool:
        """True if rows count by their effect on the loss."""
        return "gptq" in self.methods and self._gptq("rows", "by_loss") == "by_loss"

    @property
    def needs_reference(self) -> bool:
        """True if a method compares with the results of the float model."""
        is_float = "gptq" in self.methods and self._gptq("target", "float") == "float"
        return is_float or "learned_rounding" in self.methods

    def _gptq(self, name: str, default: str) -> Any:
        return self.options.get("gptq", {}).get(name, default)

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams of activations that the methods need."""
        needs_float = bool(self.before) or self.needs_reference
        is_apart = bool(self.before) and self.needs_reference
        return (FLOAT,) * needs_float + (REFERENCE,) * is_apart + (NOW,) * bool(self.after)

    @property
    def reference(self) -> str | None:
        """Stream of the float model that rounded layers are compared with, or None."""
        return next((n for n in (REFERENCE, FLOAT) if n in self.streams and self.after), None)


def check_methods(methods: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise for a method that needs the whole model, and for options of unknown methods."""
    check_options(options)
    for name in methods_named(methods):
        if name not in AVAILABLE:
            raise ConfigError(
                f"quantize.method: '{name}' needs the whole model in memory"
                f"{_because(WHOLE_MODEL.get(name))}. Allowed with max_memory: "
                f"{', '.join(AVAILABLE)}."
            )


def _because(reason: str | None) -> str:
    return "" if reason is None else f": {reason}"


@dataclass(frozen=True)
class StreamPlan:
    """Checked request: the model, its tensors and the calibration data.

    `modules`: the paths of the matrices that are rounded, for each decoder layer.
    """

    request: StreamRequest
    stream: DecoderStream
    folder: ModelFreePlan
    batches: Sequence[Batch]
    modules: Sequence[Sequence[str]]

    @property
    def rotation(self) -> StreamRotation:
        """Rotation of the model, if the request has one."""
        few = self.stream.layer_inputs(few_tokens(self.batches[0]))
        return StreamRotation(self.stream, few, self.request.options.get(ROTATE, {}))

    @property
    def fingerprint(self) -> str:
        """Text that changes with the source, the request and the data."""
        plain = replace(self.request, spill=None)
        shards = [shard.fingerprint(self.folder.form) for shard in self.folder.shards]
        digest = hashlib.sha256(repr((plain, shards)).encode())
        for batch in self.batches:
            for number, tensor in enumerate(tensors_in(batch)):
                add_tensor(digest, str(number), tensor)
        return digest.hexdigest()[:LENGTH]


def plan_stream(
    request: StreamRequest, batches: Sequence[Batch], stream: DecoderStream | None = None
) -> StreamPlan:
    """Return the plan of a run; no tensor is read."""
    check_methods(request.methods, request.options)
    form = parse_format(request.format, "format")
    folder = plan_folder(request.source, form, ignore=request.ignore, include=request.include)
    stream = stream or DecoderStream(request.source)
    chosen = {choice.module for choice in folder.choices if not choice.reason}
    modules = [_matrices(stream, number, chosen) for number in range(len(stream.layers))]
    if ROTATE in request.methods:
        check_rotation(stream, request.options.get(ROTATE, {}))
    plan = StreamPlan(request, stream, folder, batches, modules)
    _check_budget(plan)
    return plan


def _check_budget(plan: StreamPlan) -> None:
    """Raise if the narrowest formats are above the budget of bits."""
    request, stream = plan.request, plan.stream
    if request.allocation is None or request.allocation.bits is None:
        return
    budget = budget_of(stream, covered_layers(stream, plan.modules), request.allocation)
    tied = tied_head(stream) if ROTATE in request.methods else None
    if tied is not None:  # the rotated head is a tensor of its own
        total = budget.total + torch.Size(tied.shape).numel()
        budget = replace(budget, total=total, rest_bits=budget.rest_bits + 8.0 * tied.nbytes)
    budget.check(request.allocation.bits)


def _matrices(stream: DecoderStream, number: int, chosen: set[str]) -> list[str]:
    """Return the paths in a layer of the matrices whose parts in the files are all `chosen`."""
    layer = stream.layers[number]
    linear = [path for path, module in layer.named_modules() if isinstance(module, nn.Linear)]
    return [
        path
        for path in (*linear, *stream.expert_paths(number))
        if all(
            part.module in chosen
            for part in stream.parts(f"{stream.layer_path(number)}.{path}.weight")
        )
    ]


@dataclass
class StreamReport:
    """Result of `quantize_stream`: that of the shards, and the records of the methods."""

    folder: ModelFreeReport
    layers_resumed: int = 0
    """Decoder layers that an earlier run had finished."""
    layer_seconds: list[float] = field(default_factory=list)
    """Seconds of each decoder layer of this run."""
    records: list[dict[str, Any]] = field(default_factory=list)
    allocation: dict[str, Any] | None = None
    """Record of the chosen formats, as in `FormatChoices.within_bits`."""


def quantize_stream(
    plan: StreamPlan, out: Path, *, progress: Progress | None = None
) -> StreamReport:
    """Write the quantised folder to `out`; a killed run of the same request is resumed."""
    check_out(plan.folder, out)
    report = progress or (lambda *_: None)
    if ROTATE not in plan.request.methods:
        return _quantize_layers(plan, out, report)
    rotated = work_folder(out, ROTATED, plan.fingerprint)
    records = rotate_folder(plan.rotation, rotated, report)
    request = plan.request.behind_rotation(rotated)
    result = _quantize_layers(plan_stream(request, plan.batches), out, report)
    remove_whole(rotated)
    return replace(result, records=[*records, *result.records])


def _quantize_layers(plan: StreamPlan, out: Path, progress: Progress) -> StreamReport:
    """Run the methods that look at one layer at a time."""
    if not plan.request.streams and plan.request.allocation is None:  # nothing has data
        return StreamReport(quantize_folder(plan.folder, out, progress=progress))
    run = _LayerRun(plan, work_folder(out, WORK, plan.fingerprint), progress)
    resumed = run.first_layer()
    with cache_limited(0):  # a cached weight is a further copy of a layer
        seconds = run.quantize_from(resumed)
    tensors, records = run.finished()
    run.choose_formats()
    report = quantize_folder(plan.folder, out, calibrated=Calibrated(plan.fingerprint, tensors))
    remove_whole(run.work)
    if run.spill is not None:
        remove_whole(run.spill)
    return StreamReport(report, resumed, seconds, records, run.allocation)


def work_folder(out: Path, start: str, fingerprint: str) -> Path:
    """Return the folder of finished layers in `out`; those of other requests are removed."""
    work = out / f"{start}{fingerprint}"
    for other in out.glob(f"{start}*"):
        if other != work:
            remove_whole(other)
    make_folder(work)
    return work


class _LayerRun:
    """Run over the decoder layers, with its files in the folder `work`."""

    def __init__(self, plan: StreamPlan, work: Path, progress: Progress) -> None:
        self.plan, self.work, self.progress = plan, work, progress
        self.request, self.stream = plan.request, plan.stream
        self.spill = None
        if self.request.spill is not None:
            self.spill = self.request.spill / f"mase-{plan.fingerprint}"
            remove_whole(self.spill)
            make_folder(self.spill)
        self.importances = RowImportances(self.stream, plan.modules, work, self._whole_layer)
        self.sensitivities: StreamSensitivities | None = None
        self.allocation: dict[str, Any] | None = None
        if self.request.allocation is not None:
            self.sensitivities = StreamSensitivities(
                self.stream, plan.modules, work, self._whole_layer, self.request.allocation
            )
        self.sides: list[Sequence[Mapping[str, Any]]] = []
        self.few = self.stream.layer_inputs(few_tokens(plan.batches[0]))

    def layer_file(self, number: int) -> Path:
        return self.work / f"layer-{number:05}.safetensors"

    def state_file(self, number: int) -> Path:
        """Return the file of the activations before a layer."""
        return self.work / f"activations-{number:05}.safetensors"

    def first_layer(self) -> int:
        """Return the number of finished layers behind which the activations are stored."""
        count, done = len(self.plan.modules), 0
        while done < count and self.layer_file(done).is_file():
            done += 1
        while 0 < done < count and not self.state_file(done).is_file():
            done -= 1
        return done

    def quantize_from(self, first: int) -> list[float]:
        """Quantise the layers from `first` on; return the seconds of each."""
        seconds = []
        if first < len(self.plan.modules):
            self.prepare(first)
        for number in range(first, len(self.plan.modules)):
            start = time.monotonic()
            self.quantize(number)
            seconds.append(time.monotonic() - start)
        return seconds

    @torch.no_grad()
    def prepare(self, first: int) -> None:
        """Compute the inputs of the first layer, and what is measured on the whole model."""
        count = len(self.plan.batches)
        with shard_writer(self.state_file(0)) as writer:
            for number, batch in enumerate(self.plan.batches):
                inputs = self.stream.layer_inputs(batch)
                self.sides.append(inputs.sides)
                if self.request.weighs_rows:
                    self.progress("importance of rows: batch", number + 1, count)
                    self.importances.measure(number, batch, inputs, self.spill)
                if self.sensitivities is not None:
                    self.progress("losses of formats: batch", number + 1, count)
                    self.sensitivities.measure(number, batch, inputs, self.spill)
                if not first:
                    for name in self.request.streams:
                        writer.add(f"{name}.{number}", inputs.hidden)
            if not first:
                writer.finish({})
        self.choose_formats()

    def choose_formats(self) -> None:
        """Choose the format of each matrix by the losses of all batches."""
        if self.sensitivities is not None and self.allocation is None:
            self.allocation = self.sensitivities.assignment(len(self.plan.batches))

    def carried(self, number: int, stream: str) -> Iterator[Mapping[str, Any]]:
        """Yield the inputs of a layer for each batch; with `spill` they are read when used."""
        file = self.state_file(number)
        for batch, sides in enumerate(self.sides):
            stored = StoredInputs(file, f"{stream}.{batch}", sides[number])
            yield stored if self.spill is not None else dict(stored)

    def quantize(self, number: int) -> None:
        """Calibrate and round one layer; write it, and the activations behind it."""
        self.progress("layer", number + 1, len(self.plan.modules))
        request, is_last = self.request, number + 1 == len(self.plan.modules)
        graph = self._graph(number)
        lift_products(graph)
        rules = self._rules(number)
        with shard_writer(self.state_file(number + 1)) as writer:
            if FLOAT in request.streams and not is_last:
                self._advance(graph, number, FLOAT, writer)
            records = self._apply(request.before, graph, number, rules)
            if REFERENCE in request.streams and not is_last:
                self._advance(graph, number, REFERENCE, writer)
            quantize_transform_pass(graph, rules)
            records += self._apply(request.after, graph, number, rules)
            if NOW in request.streams and not is_last:
                self._advance(graph, number, NOW, writer)
            self._write(graph, number, records)
            if not is_last:
                writer.finish({})
        self.state_file(number).unlink(missing_ok=True)

    def _graph(self, number: int) -> MaseGraph:
        """Return the graph of a layer, with a linear layer for each expert."""
        layer = self.stream.load_layer(number)
        graph = MaseGraph(layer, dummy_in={HIDDEN: self.few.hidden, **self.few.sides[number]})
        split_experts(graph)
        return graph

    def _whole_layer(self, number: int) -> nn.Module:
        """Return a layer that has a module for each of its rounded matrices."""
        if self.stream.expert_paths(number):
            return self._graph(number).model
        return self.stream.load_layer(number)

    def _rules(self, number: int) -> dict[str, Any]:
        """Return the arguments of quantize_transform_pass for a layer."""
        chosen = {} if self.allocation is None else self.allocation["assignment"]
        rules: dict[str, Any] = {"by": "name"}
        for path in self.plan.modules[number]:
            text = chosen.get(f"{self.stream.layer_path(number)}.{path}", self.request.format)
            form, settings = spelled_settings(text, "quantize.format")
            weight = {f"weight_{key}": value for key, value in settings.items()}
            rules[path] = {"config": {"name": form.name, **weight, **WEIGHT_ALONE}}
        return rules

    def _apply(
        self, methods: Sequence[str], graph: MaseGraph, number: int, rules: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Run methods on the graph of a layer; return their records of modules."""
        records = []
        for name in methods:
            options = dict(self.request.options.get(name, {}))
            if name == "gptq":
                options["spill"] = self.spill or self.work
            settings = Settings(rules, options)
            info = METHODS[name].run(graph, self._batches(number, name), settings)
            rows = [row for part in info.values() if isinstance(part, list) for row in part]
            layer = self.stream.layer_path(number)
            records += [{"method": name, "layer": layer, **row} for row in rows]
        return records

    def _batches(self, number: int, method: str) -> list[CarriedBatch]:
        """Return the batches that a method calibrates a layer with."""
        if METHODS[method].when == "before":
            return [CarriedBatch(x, spill=self.spill) for x in self.carried(number, FLOAT)]
        now, reference = self.carried(number, NOW), self.request.reference
        count = len(self.sides)
        before: list[Any] = [None] * count
        if reference is not None:
            before = list(self.carried(number, reference))
        weights: list[Any] = [None] * count
        if self.request.weighs_rows:
            weights = self.importances.of_layer(number, count)
        changed = (HIDDEN,) if number else ()
        return [
            CarriedBatch(*each, changed, self.spill)
            for each in zip(now, before, weights, strict=True)
        ]

    def _advance(self, graph: MaseGraph, number: int, stream: str, writer: ShardWriter) -> None:
        """Write what the layer makes of a stream."""
        with undisturbed(graph.model):
            for batch, inputs in enumerate(self.carried(number, stream)):
                writer.add(f"{stream}.{batch}", first_tensor(graph.model(**inputs)))

    def _write(self, graph: MaseGraph, number: int, records: list[dict[str, Any]]) -> None:
        """Write the packed weights of a layer, and its other parameters if a method moved them."""
        prefix, schemes, parts = self.stream.layer_path(number), {}, {}
        with shard_writer(self.layer_file(number)) as writer:
            for path in self.plan.modules[number]:
                weight, form, scales = _stored_weight(graph, path)
                for part in self.stream.parts(f"{prefix}.{path}.weight"):
                    own = scales if scales is None or scales.dim() == 0 else part.of(scales)
                    scheme, tensors = coded_matrix(part.name, part.of(weight), form, own)
                    schemes[part.module] = dataclasses.asdict(scheme)
                    parts[part.name] = [f"{part.module}.{name}" for name in tensors]
                    for name, tensor in tensors.items():
                        writer.add(f"{part.module}.{name}", tensor)
            for name, tensor in self._moved(graph, number):
                parts[name] = [name]
                writer.add(name, tensor)
            facts = {"schemes": schemes, "parts": parts, "records": records}
            writer.finish({METADATA: json.dumps(facts)})

    def _moved(self, graph: MaseGraph, number: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters that are not packed and differ from the stored ones."""
        packed = {f"{path}.weight" for path in self.plan.modules[number]}
        stored = {f"{path}.weight" for path in self.stream.expert_paths(number)} - packed
        for name, parameter in graph.model.named_parameters():
            if self.request.before and name not in packed | stored:  # no method moves experts
                full = f"{self.stream.layer_path(number)}.{name}"
                if not torch.equal(parameter, self.stream.read(full)):
                    yield self.stream.parts(full)[0].name, parameter.detach()

    def finished(self) -> tuple[dict[str, FinishedTensor], list[dict[str, Any]]]:
        """Return the finished tensors of all layers, and the records of the methods."""
        tensors: dict[str, FinishedTensor] = {}
        records: list[dict[str, Any]] = []
        for number in range(len(self.plan.modules)):
            file = self.layer_file(number)
            facts = json.loads(read_header(file).metadata[METADATA])
            records += facts["records"]
            for name, parts in facts["parts"].items():
                scheme = facts["schemes"].get(name.removesuffix(".weight"))
                kind = None if scheme is None else scheme_of(scheme)
                tensors[name] = FinishedTensor(file, tuple(parts), kind)
        return tensors, records


def _stored_weight(graph: MaseGraph, path: str) -> tuple[Tensor, Any, Tensor | None]:
    """Return the rounded weight of a layer, its format, and the scales that the layer stores."""
    layer = cast(QuantizedModule, graph.model.get_submodule(path))
    form = layer.quantizers["weight"]
    is_stored = form.scaled is not None and form.scaled.is_stored
    weight = cast(Tensor, layer.weight).detach()
    return weight, form, cast(Tensor, layer.weight_scale) if is_stored else None


class StoredInputs(Mapping[str, Any]):
    """Inputs of a layer whose activations are in a file, and are mapped when they are read."""

    def __init__(self, file: Path, key: str, sides: Mapping[str, Any]) -> None:
        self.file, self.key, self.sides = file, key, sides

    def __getitem__(self, name: str) -> Any:
        if name != HIDDEN:
            return self.sides[name]
        with mapped_tensor(self.file, self.key) as tensor:
            return tensor.clone()

    def __iter__(self) -> Iterator[str]:
        return iter((HIDDEN, *self.sides))

    def __len__(self) -> int:
        return 1 + len(self.sides)


def few_tokens(batch: Batch) -> dict[str, Any]:
    """Return a few rows and tokens of a batch."""
    return {
        name: value[:FEW_ROWS, :FEW_TOKENS]
        for name, value in batch.items()
        if isinstance(value, Tensor) and value.dim() > 1
    }
