"""Rotation of a folder of safetensors, one decoder layer at a time.

`rotate_transform_pass` runs on the graph of each decoder layer, between two identity matrices that
write its input and read its result. All layers have the same matrix, which depends on the size and
the seed alone; the words' table and the head get it too. The rotated model is a folder of its own,
with a file for each layer, so that a killed run resumes at the layer it was in.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.actions.decoder_stream import HIDDEN, DecoderStream, LayerInputs
from chop.actions.stream_importances import first_tensor
from chop.errors import ConfigError, ExportError
from chop.export.hf_folders import CONFIG, INDEX
from chop.export.model_free import METADATA, copy_others
from chop.export.safetensors_shards import StoredTensor, mapped_tensor, read_header, shard_writer
from chop.files import read_json, write_whole
from chop.ir.graph import MaseGraph
from chop.passes import rotate_transform_pass
from chop.passes.graph.transforms.rotate import RotateArgs
from chop.passes.ptq.sites.channel_flow import Change, is_same, rotation, scaling
from chop.passes.ptq.solve.hadamard import orthogonal

ROTATE = "rotate"
WRITE, READ = "stream_write", "stream_read"
"""Names of the identity matrices around a decoder layer."""
NEUTRAL = (1.0, 0.0)
"""Values of a norm's scale that may mean no scale: norms multiply by it, or by 1 plus it."""
SLACK = 10
"""Rounding errors that the rotated results may differ by, as in `rotate_transform_pass`."""
ROWS_AT_ONCE = 4096
"""Rows of the words' table and of the head that are rotated at a time."""
FEW_WORDS = 64
"""Rows of the head that the norm before it is checked with."""


@dataclass(frozen=True)
class StreamRotation:
    """Rotation of the model of `stream` by options of `rotate_transform_pass`.

    `few`: the inputs of all layers on a few tokens, which each rotated layer is compared on.
    """

    stream: DecoderStream
    few: LayerInputs
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Elements of the residual stream."""
        return int(self.few.hidden.shape[-1])

    @functools.cached_property
    def change(self) -> Change:
        """Rotation of the residual stream."""
        args = RotateArgs(**self.options)
        return rotation(orthogonal(self.size, args.kind, args.seed))


def check_rotation(stream: DecoderStream, options: Mapping[str, Any]) -> None:
    """Raise if a folder of transformers cannot hold the rotated model; no tensor is read."""
    if RotateArgs(**options).online:
        raise ConfigError(
            "rotate.online: true. Allowed with max_memory: false, because a folder of transformers "
            "has no place for a rotation at run time."
        )
    experts = [n for n in range(len(stream.layers)) if stream.expert_paths(n)]
    if experts:
        raise ConfigError(
            "quantize.method: 'rotate' with max_memory rotates dense layers, and "
            f"'{stream.layer_path(experts[0])}' has experts. Leave max_memory out."
        )
    surroundings(stream)


@dataclass(frozen=True)
class Surroundings:
    """Paths of the modules around the decoder layers: words' table, last norm and head."""

    words: str
    norm: str
    head: str


def surroundings(stream: DecoderStream) -> Surroundings:
    """Return the modules around the layers; raise if others read or write the residual stream."""
    model = stream.model
    paths = {id(module): path for path, module in model.named_modules()}
    words, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(words, nn.Embedding):
        raise _refused(stream, f"its words' table is a {type(words).__name__}")
    if not isinstance(head, nn.Linear):
        raise _refused(stream, f"its head is a {type(head).__name__}")
    of_ends = (f"{paths[id(words)]}.weight", f"{paths[id(head)]}.weight", f"{paths[id(head)]}.bias")
    rest = [
        name
        for name, _ in model.named_parameters()
        if name not in of_ends and not name.startswith(f"{stream.path}.")
    ]
    size = words.weight.shape[1]
    if len(rest) != 1 or model.get_parameter(rest[0]).shape != (size,):
        others = ", ".join(rest) or "no norm"
        raise _refused(stream, f"it has {others} outside of its layers")
    return Surroundings(paths[id(words)], rest[0].rpartition(".")[0], paths[id(head)])


def tied_head(stream: DecoderStream) -> StoredTensor | None:
    """Return the tensor that is both the words' table and the head, or None."""
    around = surroundings(stream)
    words, head = (stream.parts(f"{path}.weight")[0].name for path in (around.words, around.head))
    return stream.stored[words] if words == head else None


def _refused(stream: DecoderStream, why: str) -> ConfigError:
    return ConfigError(
        f"rotate: {stream.folder}: {why}. Allowed with max_memory: models of decoder layers "
        "between a table of words, and one norm and a linear head. Leave max_memory out."
    )


def rotate_folder(
    plan: StreamRotation, folder: Path, progress: Callable[[str, int, int], None]
) -> list[dict[str, Any]]:
    """Write the rotated model to `folder`, which may be unfinished; return records of the layers.

    The matrices of layers are float32, so that their rounding starts from the exact rotation. All
    other tensors keep their types.
    """
    count = len(plan.stream.layers)
    records, files = [], []
    for number in range(count):
        file = folder / f"layer-{number:05}.safetensors"
        if not file.is_file():
            progress("rotate: layer", number + 1, count)
            _rotate_layer(plan, number, file)
        records.append(json.loads(read_header(file).metadata[METADATA]))
        files.append(file)
    neutral = records[0].pop("neutral")
    files += list(_rotate_surroundings(plan, folder, neutral))
    places = {tensor.name: file.name for file in files for tensor in read_header(file).tensors}
    write_whole(folder / INDEX, json.dumps({"metadata": {}, "weight_map": places}, indent=2))
    copy_others(plan.stream.folder, folder)
    config = read_json(plan.stream.folder / CONFIG, ExportError)
    untied = json.dumps({**config, "tie_word_embeddings": False}, indent=2)
    write_whole(folder / CONFIG, untied + "\n")
    return [{key: value for key, value in row.items() if key != "neutral"} for row in records]


@torch.no_grad()
def _rotate_layer(plan: StreamRotation, number: int, file: Path) -> None:
    """Write the rotated parameters of one decoder layer."""
    stream, change = plan.stream, plan.change
    inputs = {HIDDEN: plan.few.hidden, **plan.few.sides[number]}
    layer, path = stream.load_layer(number), stream.layer_path(number)
    expected = change(first_tensor(layer(**inputs)), -1)
    graph = MaseGraph(layer, dummy_in=inputs)
    _surround(graph, plan.size)
    _, info = rotate_transform_pass(graph, dict(plan.options))
    _check_stream(info, path)
    values = _rotated_parameters(layer, graph)
    inputs[HIDDEN] = change(plan.few.hidden, -1)
    neutral = _fill(layer, values, inputs, expected, path)
    record = {
        "method": ROTATE,
        "layer": path,
        "streams": [stream["size"] for stream in info["streams"]],
        "heads": [pair["size"] for pair in info["heads"]],
    }
    with shard_writer(file) as writer:
        for name, parameter in layer.named_parameters():
            stored = stream.parts(f"{path}.{name}")[0].name
            dtype = torch.float32 if parameter.dim() > 1 else stream.stored[stored].dtype
            writer.add(stored, parameter.to(dtype))
        writer.finish({METADATA: json.dumps({**record, "neutral": neutral})})


def _surround(graph: MaseGraph, size: int) -> None:
    """Put an identity matrix behind the input of a layer's graph, and one before its result."""
    for name in (WRITE, READ):
        same = nn.Linear(size, size, bias=False)
        same.weight.copy_(torch.eye(size))
        graph.model.add_submodule(name, same)
    nodes = list(graph.fx_graph.nodes)
    source = next(n for n in nodes if n.op == "placeholder" and n.target == HIDDEN)
    with graph.fx_graph.inserting_after(source):
        write = graph.fx_graph.call_module(WRITE, (source,))
    source.replace_all_uses_with(write, delete_user_cb=lambda user: user is not write)
    output = nodes[-1]
    result = output.args[0] if not isinstance(output.args[0], tuple) else output.args[0][0]
    with graph.fx_graph.inserting_before(output):
        read = graph.fx_graph.call_module(READ, (result,))
    output.replace_input_with(result, read)
    graph.recompile()


def _check_stream(info: Mapping[str, Any], path: str) -> None:
    """Raise unless a rotated stream goes from the input of a layer to its result."""
    for stream in info["streams"]:
        if WRITE in stream["writers"] and READ in stream["readers"]:
            return
    name, why = next(iter(info["refused"].items()), ("the layer", "it has no norm with a scale"))
    raise ConfigError(f"rotate: '{path}': the residual stream cannot be rotated; {name}: {why}.")


def _rotated_parameters(layer: nn.Module, graph: MaseGraph) -> dict[str, Tensor | None]:
    """Return the value of each parameter of a layer in its graph; None where none is left."""
    nodes = _needed(list(graph.fx_graph.nodes)[-1])
    used = {str(n.target) for n in nodes if n.op in ("call_module", "get_attr")}
    values: dict[str, Tensor | None] = {}
    left = dict(graph.model.named_parameters(remove_duplicate=False))
    for name, _ in layer.named_parameters():
        is_used = name in used or name.rpartition(".")[0] in used
        values[name] = left[name].detach() if is_used and name in left else None
    biases = {f"{path}.bias" for path in used} & left.keys() - values.keys()
    if biases:
        raise ConfigError(
            f"rotate: '{min(biases)}' would be a bias that {type(layer).__name__} does not have. "
            "Leave max_memory out."
        )
    return values


def _needed(output: fx.Node) -> set[fx.Node]:
    """Return the nodes that the output depends on."""
    needed, waiting = {output}, [output]
    while waiting:
        new = set(waiting.pop().all_input_nodes) - needed
        needed |= new
        waiting += new
    return needed


def _fill(
    layer: nn.Module,
    values: Mapping[str, Tensor | None],
    inputs: Mapping[str, Any],
    expected: Tensor,
    path: str,
) -> float:
    """Set the parameters of a layer; return the value of a scale without effect."""
    for neutral in NEUTRAL:
        for name, parameter in layer.named_parameters():
            value = values[name]
            parameter.data = torch.full_like(parameter, neutral) if value is None else value
        if is_same(first_tensor(layer(**inputs)), expected, slack=SLACK):
            return neutral
    raise ConfigError(
        f"rotate: '{path}': the rotated parameters do not fit {type(layer).__name__}: its results "
        "would change by more than rounding. Leave max_memory out."
    )


def _rotate_surroundings(plan: StreamRotation, folder: Path, neutral: float) -> Iterator[Path]:
    """Write the words' table, and the last norm with the head; yield their files."""
    stream, around = plan.stream, surroundings(plan.stream)
    file = folder / "words.safetensors"
    if not file.is_file():
        with shard_writer(file) as writer:
            name = f"{around.words}.weight"
            writer.add(stream.parts(name)[0].name, _rotated_rows(plan, name))
            writer.finish({"format": "pt"})
    yield file
    file = folder / "head.safetensors"
    if not file.is_file():
        _rotate_head(plan, around, neutral, file)
    yield file


@torch.no_grad()
def _rotate_head(plan: StreamRotation, around: Surroundings, neutral: float, file: Path) -> None:
    stream, name, norm = plan.stream, f"{around.head}.weight", f"{around.norm}.weight"
    own_norm, own_head = stream.parts(norm)[0].name, stream.parts(name)[0].name
    scale = stream.read(norm)
    without = torch.full_like(scale, neutral)
    factors = scale + (1.0 - neutral)  # a norm whose neutral scale is 0 multiplies by 1 plus it
    _check_norm(plan, around, {scale: None, without: factors})
    own_head = own_head if tied_head(stream) is None else name
    with shard_writer(file) as writer:
        writer.add(own_norm, without.to(stream.stored[own_norm].dtype))
        writer.add(own_head, _rotated_rows(plan, name, factors))
        if stream.model.get_submodule(around.head).bias is not None:
            bias = stream.parts(f"{around.head}.bias")[0].name
            with mapped_tensor(stream.files[bias], bias) as value:
                writer.add(bias, value)
        writer.finish({"format": "pt"})


def _rotated_rows(plan: StreamRotation, name: str, factors: Tensor | None = None) -> Tensor:
    """Return a stored matrix, its rows multiplied by `factors` and rotated, in its type."""
    stored = plan.stream.parts(name)[0].name
    with mapped_tensor(plan.stream.files[stored], stored) as matrix:
        result = torch.empty(matrix.shape, dtype=matrix.dtype)
        for rows, own in zip(matrix.split(ROWS_AT_ONCE), result.split(ROWS_AT_ONCE), strict=True):
            own.copy_(_rotated(plan, rows.float(), factors))
    return result


def _rotated(plan: StreamRotation, rows: Tensor, factors: Tensor | None) -> Tensor:
    """Return rows multiplied by `factors`, if there are any, and rotated."""
    scaled = rows if factors is None else scaling(factors.double())(rows, -1)
    return plan.change(scaled, -1)


def _check_norm(
    plan: StreamRotation, around: Surroundings, scales: Mapping[Tensor, Tensor | None]
) -> None:
    """Raise unless the last norm and the first rows of the head return what they did.

    `scales`: the old and the new scale of the norm, each with the factors of the head's columns.
    """
    stream, head = plan.stream, plan.stream.parts(f"{around.head}.weight")[0].name
    norm = stream.model.get_submodule(around.norm)
    empty, results = norm.weight, []
    with mapped_tensor(stream.files[head], head) as stored:
        words = stored[:FEW_WORDS].float()
    for scale, factors in scales.items():
        norm.weight = nn.Parameter(scale, requires_grad=False)
        is_new = factors is not None
        x = plan.change(plan.few.hidden, -1) if is_new else plan.few.hidden
        results.append(norm(x) @ (_rotated(plan, words, factors) if is_new else words).mT)
    norm.weight = empty
    if not is_same(results[1], results[0], slack=SLACK):
        raise _refused(stream, f"its norm '{around.norm}' is more than a scale of its values")
