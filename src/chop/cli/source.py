"""The model of a configuration, as a graph."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.cli.checkpoints import checkpoint_path, tokenizer_beside
from chop.cli.data import Data, load_data, require_data
from chop.cli.failures import SourceError
from chop.cli.model_facts import task_to_load
from chop.cli.model_files import READERS, check_trust, kind_of, tokenizer_folder
from chop.cli.named_objects import import_name, thing_of
from chop.cli.output import settle
from chop.cli.shared_options import DataOptions, ModelOptions
from chop.errors import ChopError, ConfigError, HubError, TraceError
from chop.hub import locate
from chop.ir.expert_mixtures import mixture_ops
from chop.ir.graph import MaseGraph
from chop.ir.trace.cache_capture import takes_cache
from chop.ir.trace.inputs import Signature, is_hugging_face
from chop.models import MODELS, get_model
from chop.models.named import DEFAULT_TASK, build_model, check_task
from chop.models.reference_models import facts_of
from chop.models.tasks import PREDICTS_TEXT, task_of_class
from chop.passes import add_common_metadata_analysis_pass, init_metadata_analysis_pass

REFERENCE, CHECKPOINT, FILE, FUNCTION, FOLDER, HUB, OBJECT = (
    "a reference model",
    "a MaseGraph checkpoint",
    "a GGUF, ONNX, torch.export or compressed-tensors file",
    "module:function or file.py:function",
    "a Hugging Face folder",
    "a hub name",
    "a Python object",
)
FORMS = (REFERENCE, CHECKPOINT, FILE, FUNCTION, FOLDER, HUB)
"""Forms of a model on a command line, in the order in which they are tried."""
HUGGING_FACE = (FOLDER, HUB)
ACCEPTED = {
    REFERENCE: ("task", "model_options", "inputs", "input_shape"),
    CHECKPOINT: ("classes", "input_shape", "trust_remote_code"),
    FILE: ("plugins", "trust_remote_code"),
    FUNCTION: ("model_options", "inputs", "input_shape"),
    **dict.fromkeys(
        HUGGING_FACE, ("task", "model_options", "inputs", "input_shape", "trust_remote_code")
    ),
    OBJECT: ("inputs", "input_shape"),
}
"""Form -> options that have an effect on it (`input_shape` is checked later)."""
UNSET: dict[str, Any] = {"task": None, "model_options": {}, "inputs": None, "classes": ()}
LABELS = "labels"


@dataclass(frozen=True)
class Source:
    """A model: `graph` if it was saved as one, otherwise `model` with its `inputs` if known.

    `kind`: its form, one of `ACCEPTED`. `place`: the folder or hub name of its tokenizer, or None.
    `scratch`: a temporary folder that `place` is in, deleted with the source.
    """

    name: str
    kind: str
    model: nn.Module | None = None
    graph: MaseGraph | None = None
    inputs: Any = None
    place: str | None = None
    scratch: Any = None


def load(config: Any, *, is_alone: bool = True) -> tuple[Source, Data | None, MaseGraph]:
    """Return the model and the data of `config`, which may name no data."""
    source = find_source(config, is_alone=is_alone)
    data = load_data(config, source.place)
    return source, data, load_graph(config, source, data)


def load_with_data(config: Any, purpose: str) -> tuple[Source, Data, MaseGraph]:
    """Return the model and the data of `config`, which must name data."""
    source = find_source(config)
    data = require_data(config, source.place, purpose)
    return source, data, load_graph(config, source, data)


def find_source(options: ModelOptions, *, is_alone: bool = True) -> Source:
    """Return the model of `options`, or raise an error that lists what was tried.

    If the model `is_alone`, options without an effect on it are an error.
    """
    name = options.model
    if name is None:
        raise SourceError(f"no model given. A model is {', '.join(FORMS[:-1])} or {FORMS[-1]}.")
    torch.manual_seed(options.seed)
    tried: list[str] = []
    for find in FINDERS:
        source = find(name, options, tried)
        if source is not None:
            if is_alone:
                _check_options(options, source)
            return source
    listed = "".join(f"\n  not {each}" for each in tried)
    raise SourceError(f"no model '{name}'. Tried:{listed}")


def tokenizer_of(options: Any, source: Source) -> str | None:
    """Return the place of the tokenizer: that of `options`, or the model's own; None if unknown."""
    return getattr(options, "tokenizer", None) or source.place


def _check_options(options: ModelOptions, source: Source) -> None:
    """Raise for an option that has no effect on a model of this form."""
    if source.kind == REFERENCE:
        check_task(source.name, options.task)
    for name, unset in UNSET.items():
        value = getattr(options, name)
        # older releases wrote the default task into files
        if value not in (unset, DEFAULT_TASK) and name not in ACCEPTED[source.kind]:
            raise ConfigError(
                f"{name}: '{source.name}' is {source.kind}, which takes none; got {value!r}. "
                f"It takes: {', '.join(ACCEPTED[source.kind])}."
            )


def _object(name: str, options: ModelOptions, tried: list[str]) -> Source | None:
    """Return a copy of the object, so that commands leave the original unchanged."""
    thing = thing_of(name)
    if thing is None:
        return None
    if not isinstance(thing, nn.Module | MaseGraph):
        raise SourceError(
            f"model: got {type(thing).__name__}; expected a name, a path, a torch.nn.Module or a "
            "MaseGraph."
        )
    thing = copy.deepcopy(thing)
    if isinstance(thing, MaseGraph):
        return Source(name, OBJECT, graph=thing)
    return Source(name, OBJECT, model=thing)


def _reference(name: str, options: ModelOptions, tried: list[str]) -> Source | None:
    if name not in MODELS:
        tried.append(f"{REFERENCE} ({', '.join(MODELS)})")
        return None
    return Source(name, REFERENCE, model=build_model(name, MODELS[name], options.model_options))


def _checkpoint(name: str, options: ModelOptions, tried: list[str]) -> Source | None:
    settle(Path(name))
    path = checkpoint_path(Path(name))
    if path is None:
        tried.append(f"{CHECKPOINT} ({name}.json, or in the folder {name})")
        return None
    if options.input_shape is not None:
        raise ConfigError(f"input_shape: {name} is a checkpoint, which has its example inputs.")
    classes = {place: import_name(place) for place in options.classes}
    for place, cls in classes.items():
        if not isinstance(cls, type):
            raise SourceError(f"classes: {place} is no class.")
    graph = MaseGraph.from_checkpoint(path, list(classes.values()))
    return Source(name, CHECKPOINT, graph=graph, place=tokenizer_beside(path))


def _file(name: str, options: ModelOptions, tried: list[str]) -> Source | None:
    path = Path(name)
    kind = kind_of(path)
    if kind is None:
        tried.append(f"{FILE} ({'of another kind' if path.exists() else 'no such file'}: {name})")
        return None
    check_trust(path, kind, is_trusted=options.trust_remote_code)
    return read_source(path, kind, packed=options.keeps_packed)


def read_source(path: Path, kind: str, *, packed: bool) -> Source:
    """Return the model of a file of another program, with its tokenizer."""
    graph = READERS[kind](path, packed)
    folder = tokenizer_folder(path, kind)
    place = folder.name if isinstance(folder, tempfile.TemporaryDirectory) else folder
    return Source(str(path), FILE, graph=graph, place=place, scratch=folder)


def _function(name: str, options: ModelOptions, tried: list[str]) -> Source | None:
    if ":" not in name:
        tried.append(f"{FUNCTION} (no ':' in it)")
        return None
    build = import_name(name)
    if not callable(build) or isinstance(build, nn.Module):
        raise SourceError(f"{name}: expected a function that builds a model.")
    built = build_model(name, build, options.model_options)
    is_pair = isinstance(built, tuple) and len(built) == 2
    model, inputs = built if is_pair else (built, None)
    if not isinstance(model, nn.Module):
        raise SourceError(
            f"{name}: gave {type(model).__name__}; expected a torch.nn.Module, or a pair of one "
            f"and its example inputs."
        )
    return Source(name, FUNCTION, model=model, inputs=inputs)


def _hugging_face(name: str, options: ModelOptions, tried: list[str]) -> Source | None:
    try:
        place = locate(name, "model")
    except HubError as error:
        tried.append(f"{FOLDER} or {HUB} ({error})")
        return None
    if place.is_folder and not Path(place.name, "config.json").is_file():
        tried.append(f"{FOLDER} ({place.name} has no config.json)")
        return None
    model = get_model(
        name,
        task_to_load(options),
        trust_remote_code=options.trust_remote_code,
        **_loading(options),
    )
    return Source(name, FOLDER if place.is_folder else HUB, model=model, place=place.name)


def _loading(options: ModelOptions) -> dict[str, Any]:
    """Return the options of loading: float32 for a model that a CPU measures or trains.

    Most CPUs multiply narrow floats about thirty times slower than float32.
    """
    is_computed = isinstance(options, DataOptions) and options.dataset is not None
    on_cpu = is_computed and not torch.cuda.is_available()
    return {**({"dtype": torch.float32} if on_cpu else {}), **options.model_options}


FINDERS: tuple[Callable[[str, ModelOptions, list[str]], Source | None], ...] = (
    _object,
    _reference,
    _checkpoint,
    _file,
    _function,
    _hugging_face,
)


def load_graph(options: ModelOptions, source: Source, data: Data | None = None) -> MaseGraph:
    """Return the annotated graph of a model; `data` decides its inputs."""
    graph = source.graph
    if graph is None:
        assert source.model is not None, "a source has a model or a graph"
        graph = _trace(options, source, source.model.eval(), data)
    if data is not None:
        check_tokens(graph.model, data)
    if any("mase" not in node.meta for node in graph.nodes):
        graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    return graph


CHECKED_ROWS = 64
"""Number of rows whose tokens are checked."""


def check_tokens(model: nn.Module, data: Data) -> None:
    """Raise for tokens beyond the model's vocabulary: they are those of another model."""
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    rows = [data.test[i] for i in range(min(CHECKED_ROWS, len(data.test)))]
    tokens = [torch.as_tensor(row["input_ids"]) for row in rows if "input_ids" in row]
    largest = max((int(ids.max()) for ids in tokens if ids.numel()), default=0)
    if isinstance(size, int) and largest >= size:
        raise ConfigError(
            f"dataset: it has the token {largest}, and {type(model).__name__} knows {size}, from 0 "
            f"to {size - 1}. Give the tokenizer that the model was trained with."
        )


def _trace(options: ModelOptions, source: Source, model: nn.Module, data: Data | None) -> MaseGraph:
    if is_hugging_face(model):
        return _trace_hugging_face(options, source, model, data)
    if options.inputs:
        raise ConfigError(
            f"inputs: {type(model).__name__} is not a Hugging Face model, whose inputs have names; "
            f"got {', '.join(options.inputs)}. Give --input-shape instead."
        )
    example = _example(options, source, model, data)
    try:
        return MaseGraph(model, dummy_in=example)
    except TraceError as error:
        if not isinstance(error.__cause__, RuntimeError):  # raised by torch in the model's forward
            raise
        inputs = example if isinstance(example, tuple | list) else [example]
        shapes = ", ".join(str(list(x.shape)) for x in inputs if isinstance(x, torch.Tensor))
        raise ConfigError(
            f"{type(model).__name__} does not run on inputs of shape {shapes or 'given'}: "
            f"{error.__cause__}. "
            f"Give --input-shape, or a function that returns the model and inputs it takes."
        ) from error


def _trace_hugging_face(
    options: ModelOptions, source: Source, model: nn.Module, data: Data | None
) -> MaseGraph:
    kind = type(model).__name__
    if options.input_shape is not None:
        raise ConfigError(f"input_shape: {kind} is a Hugging Face model. Give --inputs instead.")
    names = options.inputs or (None if data is None else _fed_inputs(model, data))
    generates = task_of_class(kind) == PREDICTS_TEXT
    cache = options.keeps_cache and generates and takes_cache(model)
    ops = mixture_ops(model) if options.joins_experts else None
    try:
        return MaseGraph(
            model, hf_input_names=names, dummy_in=source.inputs, cache=cache, custom_ops=ops
        )
    except ChopError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:  # from the model's forward
        inputs = ", ".join(names or ()) or "its own"
        raise ConfigError(f"{kind} does not run on the inputs {inputs}: {error}.") from error


def _fed_inputs(model: nn.Module, data: Data) -> list[str]:
    """Return the columns of the data that are inputs of the model, labels included."""
    inputs = Signature.of(model).names
    columns = [name for name in data.columns if name in inputs and name != LABELS]
    if not columns:
        raise ConfigError(
            f"dataset: it has {', '.join(data.columns)}, and none of these is an input of "
            f"{type(model).__name__}, which takes {', '.join(inputs)}."
        )
    return [*columns, *([LABELS] if LABELS in inputs else [])]


def _example(options: ModelOptions, source: Source, model: nn.Module, data: Data | None) -> Any:
    if options.input_shape is not None:
        return torch.zeros(options.input_shape)
    if source.inputs is not None:
        return source.inputs
    if data is not None:
        return data.example(model)
    facts = facts_of(model)
    if facts is not None and facts.example is not None:
        return facts.example(model)
    raise SourceError(
        f"model '{source.name}': what are its inputs? Give --input-shape (such as 1,3,32,32) or "
        f"--dataset, or let the function return a pair: the model and its example inputs."
    )


def example_of(graph: MaseGraph, batch: int | None = None) -> dict[str, Any]:
    """Return the inputs with which a graph was captured, repeated or cut to `batch` rows."""
    inputs = dict(graph.dummy_in or {})
    if not inputs:
        raise SourceError("the checkpoint has no example inputs; give --dataset.")
    if batch is None:
        return inputs
    return {name: _rows(value, batch) for name, value in inputs.items()}


def _rows(value: Any, batch: int) -> Any:
    if not torch.is_tensor(value) or value.dim() == 0:
        return value
    copies = -(-batch // len(value))
    return value.repeat(copies, *[1] * (value.dim() - 1))[:batch]


def describe(graph: MaseGraph, source: Source) -> dict[str, Any]:
    """Return a few facts about a graph, for the record."""
    return {
        "model": source.name,
        "class": type(graph.model).__name__,
        "nodes": len(graph.nodes),
        "parameters": sum(p.numel() for p in graph.model.parameters()),
    }
