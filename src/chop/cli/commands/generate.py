"""`mase generate`: a language model writes on from a prompt."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from chop.actions.generation import Generated, generate
from chop.cli.console import write_line
from chop.cli.failures import SourceError, UsageError
from chop.cli.generate_config import GenerateConfig
from chop.cli.session import Session
from chop.cli.settings import read_assignment
from chop.cli.source import FORMS, Source, describe, find_source
from chop.dataset.tokenized import load_tokenizer
from chop.errors import ConfigError, DataError, TraceError
from chop.hub import locate
from chop.ir.graph import MaseGraph
from chop.ir.graph.generating_model import has_cache
from chop.kernels.cache import DEFAULT
from chop.kernels.formats import PACKED_FORMATS
from chop.kernels.row_codecs import codec_of
from chop.models.named import missing_weights
from chop.models.tasks import PREDICTS_TEXT, own_task, read_config, task_of_class
from chop.passes import pack_weights_transform_pass


def run(config: GenerateConfig, session: Session) -> dict[str, Any]:
    """Write on from the prompt; say the text, the rate and the memory."""
    cache = cache_formats(config)
    source = find_source(config)
    check_language(config, source)
    graph = graph_with_cache(source, _dtype(config))
    tokenizer = _tokenizer(config, source)
    if config.pack is not None:
        pack_weights_transform_pass(graph, {"format": config.pack})
    graph.model.eval().to(_device(config.device))
    inputs = _encoded(tokenizer, config, graph)
    session.start_work()
    best: Generated | None = None
    for turn in range(config.repeat):
        torch.manual_seed(config.seed)
        streamer = _streamer(config, session, tokenizer) if turn == 0 else None
        found = generate(
            graph,
            inputs,
            cache=cache,
            compile=config.compile,
            streamer=streamer,
            **_options(config),
        )
        best = found if best is None or found.tokens_per_s > best.tokens_per_s else best
    assert best is not None, "repeat is at least 1"
    text = tokenizer.decode(best.tokens[0], skip_special_tokens=True)
    if _streamer(config, session, tokenizer) is None:
        session.console.say(text)
    _say(best, session)
    return {**describe(graph, source), **best.record(), "text": text}


LANGUAGE = (PREDICTS_TEXT, "seq2seq-lm")
"""Tasks of models that generate text."""


def check_language(config: GenerateConfig, source: Source) -> None:
    """Refuse a model that is for something else, or whose head for text would be random."""
    model = source.model if source.graph is None else source.graph.model
    kind = type(model).__name__
    task = task_of_class(kind)
    if task is not None and task not in LANGUAGE:
        raise SourceError(_no_language(source.name, f"a {kind}, for {task}"))
    if source.kind not in FORMS[3:] or task is None:
        return
    saved = read_config(locate(source.name, "model"))
    if own_task(saved) in LANGUAGE:
        return
    trusted = config.trust_remote_code
    missing = missing_weights(source.name, task, trust_remote_code=trusted)
    if missing:
        classes = ", ".join(map(str, saved.get("architectures") or ("a model without a head",)))
        told = f"saved as {classes}, without the weights {missing[0]} and {len(missing) - 1} more"
        raise SourceError(_no_language(source.name, f"{told} of a {kind}"))


def _no_language(name: str, told: str) -> str:
    return (
        f"model '{name}' is no language model: it is {told}. Give a causal language model, or an "
        "encoder-decoder with --task seq2seq-lm."
    )


def _dtype(config: GenerateConfig) -> torch.dtype | None:
    """What to compute in; None for the model's own type. CPUs are slow in narrow types."""
    if config.dtype is None and config.device != "cpu":
        return None
    found: torch.dtype = getattr(torch, config.dtype or "float32")
    return found


def graph_with_cache(source: Source, dtype: torch.dtype | None = None) -> MaseGraph:
    """The model as a graph that generates."""
    if source.graph is not None:
        if not has_cache(source.graph.model):
            raise SourceError(
                f"model '{source.name}': the checkpoint was captured without its cache. Capture "
                "the model with MaseGraph(model, cache=True), compress that, and export it."
            )
        return source.graph
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


def cache_formats(config: GenerateConfig) -> Any:
    """The formats of the cache, by layer where single layers have one."""
    default = read_format(config.cache)
    if not config.cache_layers:
        return default
    layers = {}
    for text in config.cache_layers:
        number, equals, name = text.partition("=")
        if not equals or not number.strip().isdigit():
            raise ConfigError(f"generate.cache_layers: expected LAYER=FORMAT, got '{text}'.")
        layers[int(number)] = read_format(name)
    return {DEFAULT: default, **layers}


def read_format(text: str) -> str | Mapping[str, Any]:
    """Return the format that `text` spells, checked.

    >>> read_format("fixed8.4"), read_format("mxint8:group_size=16")
    ('fixed8.4', {'name': 'mxint8', 'group_size': 16})
    """
    name, colon, settings = text.strip().partition(":")
    old = read_assignment(settings) if colon and name in PACKED_FORMATS else {}
    format = {"name": name, **old} if old.keys() == {"group_size"} else text.strip()
    codec_of(format, "generate.cache")
    return format


def _device(name: str) -> torch.device:
    with contextlib.suppress(RuntimeError):
        device = torch.device(name)
        if device.type != "cuda" or torch.cuda.is_available():
            return device
    raise UsageError(f"--device {name}: not on this machine. `mase doctor` says what is.")


def _tokenizer(config: GenerateConfig, source: Source) -> Any:
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


def _encoded(tokenizer: Any, config: GenerateConfig, graph: MaseGraph) -> dict[str, Any]:
    found = tokenizer(config.prompt, return_tensors="pt")
    if not found["input_ids"].numel():
        raise UsageError(f"--prompt {config.prompt!r}: no token comes of it.")
    size = getattr(graph.model.config, "vocab_size", None)
    largest = int(found["input_ids"].max())
    if isinstance(size, int) and largest >= size:
        raise UsageError(
            f"--tokenizer gives token {largest}, and the model knows {size}: it is another model's."
        )
    kept = ("input_ids", "attention_mask")
    device = graph.as_transformers().device
    return {name: found[name].to(device) for name in kept if name in found}


def _options(config: GenerateConfig) -> dict[str, Any]:
    drawing = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
    return {
        "max_new_tokens": config.max_new_tokens,
        "do_sample": config.sample,
        "num_beams": config.beams,
        **(drawing if config.sample else {}),
    }


def _streamer(config: GenerateConfig, session: Session, tokenizer: Any) -> Any:
    """Shows text as it comes; None where it is to come at once."""
    if not config.stream or config.beams > 1 or session.console.is_json:
        return None
    from transformers import TextStreamer

    class Shown(TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            write_line(session.console.out, text, end="\n" if stream_end else "")

    return Shown(tokenizer, skip_special_tokens=True)


def _say(found: Generated, session: Session) -> None:
    kept = "" if found.capacity is None else f", {found.capacity:.2f} x the tokens of 16 bits"
    session.console.say(
        f"\n{found.new_tokens} tokens: the first after {found.first_s:.3f} s, then "
        f"{found.tokens_per_s:.1f} tokens/s\n"
        f"weights {found.weight_bytes / 2**20:.1f} MiB, cache {found.cache_bytes / 2**10:.1f} KiB"
        f"{kept}"
    )
