"""The model a command line speaks of, as a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.cli.checkpoints import checkpoint_path, tokenizer_beside
from chop.cli.configs import DataOptions, ModelOptions
from chop.cli.data import Data
from chop.cli.failures import SourceError
from chop.cli.glimpse import known_task
from chop.cli.output import settle
from chop.cli.places import import_name
from chop.errors import ChopError, ConfigError, HubError, TraceError
from chop.hub import locate
from chop.ir.graph import MaseGraph
from chop.ir.trace.inputs import Signature, is_hugging_face
from chop.models import MODELS, get_model
from chop.models.named import DEFAULT_TASK, build_model, check_task
from chop.models.reference_models import facts_of
from chop.passes import add_common_metadata_analysis_pass, init_metadata_analysis_pass

FORMS = (
    "a reference model",
    "a MaseGraph checkpoint",
    "module:function or file.py:function",
    "a Hugging Face folder",
    "a hub name",
)
"""What a model may be, in the order they are tried."""
TAKEN = dict(
    zip(
        FORMS,
        (
            ("task", "model_options", "inputs", "input_shape"),
            ("classes", "input_shape", "trust_remote_code"),
            ("model_options", "inputs", "input_shape"),
            *[("task", "model_options", "inputs", "input_shape", "trust_remote_code")] * 2,
        ),
        strict=True,
    )
)
"""The options about a model that say something of each form (`input_shape` is checked later)."""
UNSET: dict[str, Any] = {"task": None, "model_options": {}, "inputs": None, "classes": ()}
LABELS = "labels"


@dataclass(frozen=True)
class Source:
    """A model found: `graph` where it was saved as one, else `model` with what inputs it came with.

    `kind` is one of `FORMS`; `place` the folder or hub name of its tokenizer, where it has one.
    """

    name: str
    kind: str
    model: nn.Module | None = None
    graph: MaseGraph | None = None
    inputs: Any = None
    place: str | None = None


def find_source(options: ModelOptions, *, is_alone: bool = True) -> Source:
    """The model of `options`; an error says what was tried.

    Where the model `is_alone`, options that say nothing of it are an error.
    """
    name = options.model
    if name is None:
        raise SourceError(f"no model given. A model is {', '.join(FORMS[:-1])} or {FORMS[-1]}.")
    torch.manual_seed(options.seed)
    settle(Path(name))
    tried: list[str] = []
    for find in FINDERS:
        found = find(name, options, tried)
        if found is not None:
            if is_alone:
                _check_taken(options, found)
            return found
    listed = "".join(f"\n  not {each}" for each in tried)
    raise SourceError(f"no model '{name}'. Tried:{listed}")


def tokenizer_of(options: Any, source: Source) -> str | None:
    """Where the tokenizer of a model is: as asked for, or the model's own; None where unknown."""
    return getattr(options, "tokenizer", None) or source.place


def _check_taken(options: ModelOptions, source: Source) -> None:
    """Refuse what a model of this form would ignore."""
    if source.kind == FORMS[0]:
        check_task(source.name, options.task)
    for name, unset in UNSET.items():
        given = getattr(options, name)
        # releases where it was the default wrote the second one
        says_nothing = given in (unset, DEFAULT_TASK)
        if not says_nothing and name not in TAKEN[source.kind]:
            raise ConfigError(
                f"{name}: '{source.name}' is {source.kind}, which takes none; got {given!r}. "
                f"It takes: {', '.join(TAKEN[source.kind])}."
            )


def _reference(name: str, options: ModelOptions, tried: list[str]) -> Source | None:
    if name not in MODELS:
        tried.append(f"{FORMS[0]} ({', '.join(MODELS)})")
        return None
    return Source(name, FORMS[0], model=build_model(name, MODELS[name], options.model_options))


def _checkpoint(name: str, options: ModelOptions, tried: list[str]) -> Source | None:
    path = checkpoint_path(Path(name))
    if path is None:
        tried.append(f"{FORMS[1]} ({name}.json, or in the folder {name})")
        return None
    if options.input_shape is not None:
        raise ConfigError(f"input_shape: {name} is a checkpoint, which has its example inputs.")
    classes = [_import_class(each) for each in options.classes]
    graph = MaseGraph.from_checkpoint(path, classes)
    return Source(name, FORMS[1], graph=graph, place=tokenizer_beside(path))


def _function(name: str, options: ModelOptions, tried: list[str]) -> Source | None:
    if ":" not in name:
        tried.append(f"{FORMS[2]} (no ':' in it)")
        return None
    build = import_name(name)
    if not callable(build) or isinstance(build, nn.Module):
        raise SourceError(f"{name}: expected a function that builds a model.")
    made = build_model(name, build, options.model_options)
    is_pair = isinstance(made, tuple) and len(made) == 2
    model, inputs = made if is_pair else (made, None)
    if not isinstance(model, nn.Module):
        raise SourceError(
            f"{name}: gave {type(model).__name__}; expected a torch.nn.Module, or a pair of one "
            f"and its example inputs."
        )
    return Source(name, FORMS[2], model=model, inputs=inputs)


def _import_class(place: str) -> type:
    found = import_name(place)
    if not isinstance(found, type):
        raise SourceError(f"classes: {place} is no class.")
    return found


def _hugging_face(name: str, options: ModelOptions, tried: list[str]) -> Source | None:
    try:
        place = locate(name, "model")
    except HubError as error:
        tried.append(f"{FORMS[3]} or {FORMS[4]} ({error})")
        return None
    if place.is_folder and not Path(place.name, "config.json").is_file():
        tried.append(f"{FORMS[3]} ({place.name} has no config.json)")
        return None
    model = get_model(
        name,
        known_task(options),
        trust_remote_code=options.trust_remote_code,
        **_loading(options),
    )
    kind = FORMS[3] if place.is_folder else FORMS[4]
    return Source(name, kind, model=model, place=place.name)


def _loading(options: ModelOptions) -> dict[str, Any]:
    """How a Hugging Face model is loaded: to be measured or trained on a CPU, in float32.

    Most CPUs multiply narrow floats some thirty times slower than wide ones.
    """
    is_computed = isinstance(options, DataOptions) and options.dataset is not None
    on_cpu = is_computed and not torch.cuda.is_available()
    return {**({"dtype": torch.float32} if on_cpu else {}), **options.model_options}


FINDERS: tuple[Callable[[str, ModelOptions, list[str]], Source | None], ...] = (
    _reference,
    _checkpoint,
    _function,
    _hugging_face,
)


# -- from a model to a graph -----------------------------------------------------------------------


def load_graph(options: ModelOptions, source: Source, data: Data | None = None) -> MaseGraph:
    """The annotated graph of a model; `data` tells what it is to be fed."""
    graph = source.graph
    if graph is None:
        assert source.model is not None, "a source has a model or a graph"
        graph = _trace(options, source, source.model.eval(), data)
    if data is not None:
        _check_tokens(graph.model, data)
    if any("mase" not in node.meta for node in graph.nodes):
        graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    return graph


LOOKED_AT = 64
"""Rows whose tokens are looked at."""


def _check_tokens(model: nn.Module, data: Data) -> None:
    """Refuse tokens that the model has no embedding of: they are another model's."""
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    rows = [data.test[i] for i in range(min(LOOKED_AT, len(data.test)))]
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
        if not isinstance(error.__cause__, RuntimeError):  # torch's own, in the model's forward
            raise
        given = example if isinstance(example, tuple | list) else [example]
        shapes = ", ".join(str(list(x.shape)) for x in given if isinstance(x, torch.Tensor))
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
    try:
        return MaseGraph(model, hf_input_names=names, dummy_in=source.inputs)
    except ChopError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:  # from the model's forward
        given = ", ".join(names or ()) or "its own"
        raise ConfigError(f"{kind} does not run on the inputs {given}: {error}.") from error


def _fed_inputs(model: nn.Module, data: Data) -> list[str]:
    """The columns of the data that the model takes, and its labels where it takes them."""
    known = Signature.of(model).names
    columns = [name for name in data.columns if name in known and name != LABELS]
    if not columns:
        raise ConfigError(
            f"dataset: it has {', '.join(data.columns)}, and none of these is an input of "
            f"{type(model).__name__}, which takes {', '.join(known)}."
        )
    return [*columns, *([LABELS] if LABELS in known else [])]


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
    """The inputs that a graph was traced with, with `batch` rows where that is given."""
    found = dict(graph.dummy_in or {})
    if not found:
        raise SourceError("the checkpoint has no example inputs; give --dataset.")
    if batch is None:
        return found
    return {name: _rows(value, batch) for name, value in found.items()}


def _rows(value: Any, batch: int) -> Any:
    if not torch.is_tensor(value) or value.dim() == 0:
        return value
    copies = -(-batch // len(value))
    return value.repeat(copies, *[1] * (value.dim() - 1))[:batch]


def describe(graph: MaseGraph, source: Source) -> dict[str, Any]:
    """A few facts about a graph, for the record."""
    parameters = sum(p.numel() for p in graph.model.parameters())
    kind = type(graph.model).__name__
    return {
        "model": source.name,
        "class": kind,
        "nodes": len(graph.nodes),
        "parameters": parameters,
    }
