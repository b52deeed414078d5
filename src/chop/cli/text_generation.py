"""Parts of `mase generate`, `chat` and `serve`: graph with cache, formats, tokenizer, device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from transformers import TextStreamer

from chop.actions.generation import Generated, generate
from chop.cli.cache_recapture import captured_with_cache
from chop.cli.commands.generate import GenerateConfig
from chop.cli.console import write_line
from chop.cli.failures import SourceError, UsageError
from chop.cli.session import Session
from chop.cli.settings import read_assignment
from chop.cli.shared_options import LanguageOptions, ModelOptions
from chop.cli.source import CHECKPOINT, HUGGING_FACE, Source, find_source
from chop.dataset.tokenized import load_tokenizer
from chop.errors import ConfigError, DataError, TraceError
from chop.hub import locate
from chop.ir.graph import MaseGraph
from chop.ir.graph.generating_model import has_cache
from chop.kernels.cache import DEFAULT
from chop.kernels.packed_formats import PACKED_FORMATS
from chop.kernels.rounded_activations import round_activations
from chop.kernels.row_codecs import codec_of
from chop.models.named import missing_weights
from chop.models.tasks import PREDICTS_TEXT, own_task, read_config, task_of_class
from chop.nn.quantized.layer import QuantizedModule
from chop.passes import pack_weights_transform_pass
from chop.serve.batch_engine import BatchEngine, EngineLimits
from chop.serve.speculation import DraftModel, PromptLookup, Speculated, speculate

LANGUAGE = (PREDICTS_TEXT, "seq2seq-lm")
"""Tasks of models that generate text."""
LOOKUP = "lookup"
"""Value of --speculate for drafts from the text so far."""


def check_language(config: ModelOptions, source: Source) -> None:
    """Raise if the model has another task, or if its language head would be random."""
    model = source.model if source.graph is None else source.graph.model
    kind = type(model).__name__
    task = task_of_class(kind)
    if task is not None and task not in LANGUAGE:
        raise SourceError(_no_language(source.name, f"a {kind}, for {task}"))
    if source.kind not in HUGGING_FACE or task is None:
        return
    saved = read_config(locate(source.name, "model"))
    if own_task(saved) in LANGUAGE:
        return
    trusted = config.trust_remote_code
    missing = missing_weights(source.name, task, trust_remote_code=trusted)
    if missing:
        classes = ", ".join(map(str, saved.get("architectures") or ("a model without a head",)))
        raise SourceError(
            _no_language(
                source.name,
                f"saved as {classes}, without the weights {missing[0]} and {len(missing) - 1} more "
                f"of a {kind}",
            )
        )


def _no_language(name: str, fact: str) -> str:
    return (
        f"model '{name}' is no language model: it is {fact}. Give a causal language model, or an "
        "encoder-decoder with --task seq2seq-lm."
    )


def dtype_of(config: LanguageOptions) -> torch.dtype | None:
    """Return the type to compute in, None for the model's own. CPUs are slow in narrow types."""
    if config.dtype is None and config.device != "cpu":
        return None
    dtype: torch.dtype = getattr(torch, config.dtype or "float32")
    return dtype


def load_language_model(config: LanguageOptions, session: Session) -> tuple[Source, MaseGraph, Any]:
    """Return the model of a configuration, as a graph that generates, and its tokenizer.

    Weights of quantised layers are packed with their values, or all with `config.pack`.
    """
    source = find_source(config)
    check_language(config, source)
    graph = graph_with_cache(source, dtype_of(config), session)
    tokenizer = load_tokenizer_of(config, source)
    if config.pack is None:
        pack_quantised(graph)
    else:
        pack_weights_transform_pass(graph, {"format": config.pack})
    if config.round_activations:
        round_activations(graph.model)
    graph.model.eval().to(device_named(config.device))
    model: Any = graph.as_transformers()
    model.uses_native_step = config.native
    return source, graph, tokenizer


def load_engine(
    config: LanguageOptions, graph: MaseGraph, command: str, limits: EngineLimits
) -> BatchEngine:
    """Return the engine of a language model, with the cache of a configuration."""
    return BatchEngine(graph, limits, cache=cache_formats(config, command))


def graph_with_cache(source: Source, dtype: torch.dtype | None, session: Session) -> MaseGraph:
    """Return the model as a graph with a KV cache; a graph without one is captured again.

    Only the capture of a checkpoint is the user's own, and only it is mentioned.
    """
    if source.graph is not None:
        if has_cache(source.graph.model):
            return source.graph
        if source.kind == CHECKPOINT:
            session.console.note(
                f"model '{source.name}' was captured without its cache: it is captured again with "
                "one"
            )
        return captured_with_cache(source.graph, source.name)
    assert source.model is not None, "a source has a model or a graph"
    try:
        return MaseGraph(source.model.eval().to(dtype), dummy_in=source.inputs, cache=True)
    except TraceError as error:
        if "has no input 'past_key_values'" not in str(error):
            raise
        raise SourceError(
            f"model '{source.name}': {type(source.model).__name__} does not generate. Give a "
            "causal language model, or an encoder-decoder with --task seq2seq-lm."
        ) from error


def pack_quantised(graph: MaseGraph) -> None:
    """Pack the weights of quantised layers with their values; float layers stay as they are."""
    layers = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    modules = {path: graph.model.get_submodule(path) for path in layers}
    floats = [path for path, layer in modules.items() if not isinstance(layer, QuantizedModule)]
    if len(floats) < len(modules):
        pack_weights_transform_pass(graph, {"skip": floats})


def cache_formats(config: LanguageOptions, command: str) -> Any:
    """Return the format of the cache, or formats by layer; errors name the `command`."""
    default = read_format(config.cache, f"{command}.cache")
    if not config.cache_layers:
        return default
    layers = {}
    for text in config.cache_layers:
        number, equals, name = text.partition("=")
        if not equals or not number.strip().isdigit():
            raise ConfigError(f"{command}.cache_layers: expected LAYER=FORMAT, got '{text}'.")
        layers[int(number)] = read_format(name, f"{command}.cache_layers")
    return {DEFAULT: default, **layers}


def read_format(text: str, where: str = "cache") -> str | Mapping[str, Any]:
    """Return the format that `text` spells, checked; errors name the place `where`.

    >>> read_format("fixed8.4"), read_format("mxint8:group_size=16")
    ('fixed8.4', {'name': 'mxint8', 'group_size': 16})
    """
    name, colon, settings = text.strip().partition(":")
    old = read_assignment(settings) if colon and name in PACKED_FORMATS else {}
    format = {"name": name, **old} if old.keys() == {"group_size"} else text.strip()
    codec_of(format, where)
    return format


def device_named(name: str) -> torch.device:
    """Return the device, which this machine must have."""
    with contextlib.suppress(RuntimeError):
        device = torch.device(name)
        if device.type != "cuda" or torch.cuda.is_available():
            return device
    raise UsageError(f"--device {name}: not on this machine. `mase doctor` says what is.")


def load_tokenizer_of(config: Any, source: Source) -> Any:
    """Return the tokenizer of the configuration or of the model."""
    place = config.tokenizer or source.place
    if place is None:
        raise UsageError(
            f"model '{source.name}' comes without a tokenizer: give --tokenizer, a hub name or a "
            "folder."
        )
    try:
        return load_tokenizer(place, trust_remote_code=config.trust_remote_code)
    except DataError as error:
        raise UsageError(f"{error} Give --tokenizer, a hub name or a folder.") from error


def encode(tokenizer: Any, config: GenerateConfig, graph: MaseGraph) -> dict[str, Any]:
    """Return the tokens of the prompt as inputs of the model."""
    if is_chat(tokenizer, config):
        messages = [{"role": "user", "content": config.prompt}]
        encoded = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
    else:
        encoded = tokenizer(config.prompt, return_tensors="pt")
    if not encoded["input_ids"].numel():
        raise UsageError(f"--prompt {config.prompt!r}: no token comes of it.")
    size = getattr(graph.model.config, "vocab_size", None)
    largest = int(encoded["input_ids"].max())
    if isinstance(size, int) and largest >= size:
        raise UsageError(
            f"--tokenizer gives token {largest}, and the model knows {size}: it is another model's."
        )
    device = graph.as_transformers().device
    names = ("input_ids", "attention_mask")
    return {name: encoded[name].to(device) for name in names if name in encoded}


def is_chat(tokenizer: Any, config: GenerateConfig) -> bool:
    """Return True if the prompt is a message of a chat; raise if there is no template for it."""
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if config.chat and not has_template:
        raise UsageError("--chat: the tokenizer has no chat template. Give --no-chat.")
    return has_template if config.chat is None else config.chat


def decode(
    tokenizer: Any, config: GenerateConfig, inputs: Mapping[str, Any], best: Generated
) -> str:
    """Return the text of a run: of a chat the answer alone, otherwise with the prompt."""
    tokens = best.tokens[0]
    if is_chat(tokenizer, config) and len(tokens) > best.new_tokens:
        tokens = tokens[inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(tokens, skip_special_tokens=True))


def generator_of(
    config: GenerateConfig, graph: MaseGraph, session: Session
) -> Callable[[Mapping[str, Any], Any], Generated]:
    """Return the function that generates from inputs, with a streamer or None."""
    if config.speculate is None:
        cache = cache_formats(config, "generate")
        options = {"cache": cache, "compile": config.compile, **generation_options(config)}
        return lambda inputs, streamer: generate(graph, inputs, streamer=streamer, **options)
    drafter = PromptLookup() if config.speculate == LOOKUP else _draft_model(config, graph, session)
    limits = {"max_new_tokens": config.max_new_tokens, "draft_tokens": config.draft_tokens}
    return lambda inputs, streamer: speculate(
        graph, inputs["input_ids"][0].tolist(), drafter, streamer=streamer, **limits
    )


def _draft_model(config: GenerateConfig, graph: MaseGraph, session: Session) -> DraftModel:
    """Return the model of --speculate; raise if it has another vocabulary."""
    place = config.tokenizer or find_source(config).place
    own = replace(config, model=config.speculate, tokenizer=place, speculate=None)
    _, small, _ = load_language_model(own, session)
    sizes = [getattr(each.model.config, "vocab_size", None) for each in (small, graph)]
    if sizes[0] != sizes[1]:
        raise UsageError(
            f"--speculate {config.speculate}: a vocabulary of {sizes[0]} tokens, and the model has "
            f"{sizes[1]}. Give a smaller model of the same family, or 'lookup'."
        )
    return DraftModel(small)


def generation_options(config: GenerateConfig) -> dict[str, Any]:
    """Return the options of transformers' `generate`."""
    drawing = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
    return {
        "max_new_tokens": config.max_new_tokens,
        "do_sample": config.sample,
        "num_beams": config.beams,
        **(drawing if config.sample else {}),
    }


def make_streamer(config: GenerateConfig, session: Session, tokenizer: Any) -> Any:
    """Return an object that prints each token, or None if the text is printed at the end."""
    if not config.stream or config.beams > 1 or session.console.is_json:
        return None

    class ConsoleStreamer(TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            write_line(session.console.out, text, end="\n" if stream_end else "")

    skips_prompt = is_chat(tokenizer, config)
    return ConsoleStreamer(tokenizer, skip_prompt=skips_prompt, skip_special_tokens=True)


def summary(best: Generated) -> str:
    """Return the speed and the memory of a run as text."""
    room = "" if best.capacity is None else f", {best.capacity:.2f} x the tokens of 16 bits"
    return (
        f"\n{best.new_tokens} tokens: the first after {best.first_s:.3f} s, then "
        f"{best.tokens_per_s:.1f} tokens/s\n"
        f"weights {best.weight_bytes / 2**20:.1f} MiB, cache {best.cache_bytes / 2**10:.1f} KiB"
        f"{room}" + (f"\n{best.summary()}" if isinstance(best, Speculated) else "")
    )
