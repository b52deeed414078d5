"""Example inputs of a trace: the user's, or created from a Hugging Face config."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from chop.errors import TraceError
from chop.registry import suggest

BATCH, LENGTH, SAMPLES = 2, 16, 4000
"""Rows, tokens per row and audio samples per row of created inputs: small, to trace fast."""


@dataclass(frozen=True)
class Signature:
    """Arguments of a model's forward."""

    names: tuple[str, ...]
    takes_any_name: bool
    takes_any_number: bool

    @classmethod
    def of(cls, model: nn.Module) -> Signature:
        """Read the signature of `model.forward`."""
        parameters = inspect.signature(model.forward).parameters.values()
        any_number, any_name = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        kinds = [p.kind for p in parameters]
        named = tuple(p.name for p in parameters if p.kind not in (any_number, any_name))
        return cls(named, any_name in kinds, any_number in kinds)


def is_hugging_face(model: nn.Module) -> bool:
    """Return True for a Hugging Face model, which has a config and names its main input."""
    return hasattr(model, "config") and hasattr(model, "main_input_name")


def check_names(model: nn.Module, names: Iterable[str]) -> None:
    """Raise for an input that the model's forward does not have."""
    signature = Signature.of(model)
    for name in names:
        if name not in signature.names and (is_hugging_face(model) or not signature.takes_any_name):
            kind = type(model).__name__
            raise TraceError(
                f"{kind}.forward has no input '{name}'. {suggest(name, signature.names)}"
            )


def check_concrete(model: nn.Module, cf_args: Mapping[str, Any]) -> None:
    """Raise for an argument that is not an input and differs from the default of forward."""
    check_names(model, cf_args)
    parameters = inspect.signature(model.forward).parameters
    for name, value in cf_args.items():
        default = parameters[name].default if name in parameters else None
        if value is not default and value != default:
            raise TraceError(
                f"cf_args: {type(model).__name__}.forward would be captured with {name}={value!r}, "
                f"and its default is {default!r}. Give '{name}' in dummy_in, or set the default."
            )


def bind_inputs(model: nn.Module, dummy_in: Any) -> dict[str, Any]:
    """Return `dummy_in` (a mapping, a tensor or a tuple) as a dict from input name to value."""
    if isinstance(dummy_in, Mapping) or hasattr(dummy_in, "keys"):
        return {str(k): dummy_in[k] for k in dummy_in.keys()}  # noqa: SIM118 - BatchEncoding iterates rows
    values = tuple(dummy_in) if isinstance(dummy_in, tuple | list) else (dummy_in,)
    signature = Signature.of(model)
    names = signature.names
    if len(values) > len(names):
        if not signature.takes_any_number:
            raise TraceError(
                f"{type(model).__name__}.forward takes {len(names)} inputs, got {len(values)}."
            )
        names = names + tuple(f"args_{i}" for i in range(len(values) - len(names)))
    return dict(zip(names, values, strict=False))


def call_with(model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """Call `model` with the result of `bind_inputs`; inputs of `*args` by position."""
    signature = Signature.of(model)
    is_named = all(n in signature.names for n in inputs) or not signature.takes_any_number
    return model(**inputs) if is_named else model(*inputs.values())


def example_inputs(
    model: nn.Module, names: Iterable[str] | None, dummy_in: Any
) -> dict[str, Any] | None:
    """Return the inputs to trace `model` with; None for a plain module without inputs."""
    if names is not None:
        names = list(names)
        check_names(model, names)
        refuse_cache(dict.fromkeys(names, True))
    if dummy_in is not None:
        bound = bind_inputs(model, dummy_in)
        refuse_cache(bound)
        if names is None and is_hugging_face(model):
            names = [name for name in bound if name in Signature.of(model).names]
        if names is None:
            check_names(model, [n for n in bound if not n.startswith("args_")])
            return bound
        missing = [name for name in names if name not in bound]
        return {**{n: bound[n] for n in names if n in bound}, **make_inputs(model, missing)}
    if not is_hugging_face(model):
        return None
    return make_inputs(model, names if names is not None else default_names(model))


CACHE_INPUTS = ("past_key_values", "past_key_value", "cache_params", "use_cache")


def refuse_cache(inputs: Mapping[str, Any]) -> None:
    """Raise for a cache among example inputs: a graph is captured with a cache of its own."""
    for name in CACHE_INPUTS:
        if inputs.get(name) not in (None, False):
            raise TraceError(
                f"input '{name}': a cache is no example input. Leave it out; "
                "MaseGraph(model, cache=True) captures the model with its cache, and `generate` or "
                f"a call with {CACHE_INPUTS[0]} uses it."
            )


def default_names(model: nn.Module) -> list[str]:
    """Return the default inputs of a Hugging Face model."""
    names = [str(model.main_input_name)]
    has_decoder = getattr(model.config, "is_encoder_decoder", False)
    if has_decoder and "decoder_input_ids" in Signature.of(model).names:
        names.append("decoder_input_ids")
    return names


def make_inputs(model: nn.Module, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Create inputs of these names for a Hugging Face model, from its config."""
    inputs = {}
    for name in names:
        if name not in _MAKERS:
            raise TraceError(
                f"input '{name}' of {type(model).__name__} cannot be made from its config. "
                f"Give it: dummy_in={{'{name}': tensor, …}}. Can be made: {', '.join(_MAKERS)}."
            )
        inputs[name] = _MAKERS[name](model)
    return inputs


def _field(model: nn.Module, *names: str, default: int) -> int:
    """Return the first of these fields in the config or its sub-configs."""
    configs = [model.config]
    configs += [
        getattr(model.config, part)
        for part in ("text_config", "vision_config", "audio_config", "encoder", "decoder")
        if hasattr(getattr(model.config, part, None), "to_dict")
    ]
    for config, name in itertools.product(configs, names):
        value = getattr(config, name, None)
        if isinstance(value, tuple | list) and value:
            value = value[0]
        if isinstance(value, int):
            return value
    return default


def _length(model: nn.Module) -> int:
    return min(LENGTH, _field(model, "max_position_embeddings", "n_positions", default=LENGTH))


def _ids(model: nn.Module) -> torch.Tensor:
    vocabulary = _field(model, "vocab_size", default=100)
    low = min(5, vocabulary - 1)  # the first ids are padding and separators
    shape = (BATCH, 2, _length(model)) if "MultipleChoice" in type(model).__name__ else _text(model)
    return torch.randint(low, vocabulary, shape)


def _text(model: nn.Module) -> tuple[int, ...]:
    return BATCH, _length(model)


def _image(model: nn.Module) -> torch.Tensor:
    size = _field(model, "image_size", default=64)
    return torch.randn(BATCH, _field(model, "num_channels", default=3), size, size)


def _features(model: nn.Module) -> torch.Tensor:
    frames = 2 * _field(model, "max_source_positions", default=SAMPLES // 40)
    return torch.randn(BATCH, _field(model, "num_mel_bins", default=80), frames)


def _labels(model: nn.Module) -> torch.Tensor:
    task, classes = type(model).__name__, _field(model, "num_labels", default=2)
    if any(k in task for k in ("SequenceClassification", "ImageClassification", "AudioClass")):
        return torch.randint(0, max(classes, 1), (BATCH,))
    if "MultipleChoice" in task or "NextSentence" in task:
        return torch.randint(0, 2, (BATCH,))
    if "TokenClassification" in task:
        return torch.randint(0, classes, _text(model))
    return torch.randint(0, _field(model, "vocab_size", default=classes), _text(model))


def _embeddings(model: nn.Module) -> torch.Tensor:
    return torch.randn(*_text(model), _field(model, "hidden_size", "d_model", default=32))


_MAKERS: dict[str, Callable[[nn.Module], torch.Tensor]] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "attention_mask": lambda m: torch.ones_like(_ids(m)),
    "decoder_attention_mask": lambda m: torch.ones_like(_ids(m)),
    "token_type_ids": lambda m: torch.zeros_like(_ids(m)),
    "position_ids": lambda m: torch.arange(_length(m)).expand(_text(m)).clone(),
    "inputs_embeds": _embeddings,
    "decoder_inputs_embeds": _embeddings,
    "labels": _labels,
    "start_positions": lambda m: torch.randint(0, _length(m), (BATCH,)),
    "end_positions": lambda m: torch.randint(0, _length(m), (BATCH,)),
    "next_sentence_label": lambda m: torch.randint(0, 2, (BATCH,)),
    "pixel_values": _image,
    "input_values": lambda m: torch.randn(BATCH, SAMPLES),
    "input_features": _features,
}
"""Input of a Hugging Face model -> function that creates it. To add a name, add a row."""
