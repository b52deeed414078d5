"""`mase hw --decode`: the decode engine of a Llama."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from chop.actions.decoder_build import DecoderBuild, DecoderOptions, build_decoder
from chop.actions.decoder_size import MEMORY_WIDTH
from chop.actions.float_llama import float_llama
from chop.cli.failures import SourceError, UsageError
from chop.cli.session import Session
from chop.cli.source import find_source, tokenizer_of
from chop.dataset.tokenized import load_tokenizer
from chop.hw.decode.llama_weights import read_shape
from chop.hw.decode.memory_timing import memory_timing

FOLDER = "decoder"


def run_decoder(config: Any, session: Session) -> dict[str, Any]:
    """Build the engine, generate tokens in simulation and compare every logit with PyTorch."""
    options: DecoderOptions = config.decoder
    memory_timing(options.memory, options.memory_width or MEMORY_WIDTH, options.engine_mhz)
    options.formats()
    options.fpga()
    source = find_source(config)
    model: Any = source.model if source.graph is None else source.graph.model
    if getattr(model, "config", None) is None:
        raise SourceError(f"model '{source.name}' is no Hugging Face Llama, as --decode needs it.")
    read_shape(model.config)
    place = tokenizer_of(config, source)
    if place is None:
        raise UsageError(f"model '{source.name}' comes without a tokenizer: give --tokenizer.")
    tokenizer: Any = load_tokenizer(place, trust_remote_code=config.trust_remote_code)
    prompt = tokenizer(options.prompt).input_ids
    options.check_prompt(prompt)
    session.start_work()
    model = model.float().eval() if source.graph is None else float_llama(source.graph)
    with session.console.progress("decode engine") as progress:
        steps = itertools.count(1)
        built = build_decoder(
            model,
            prompt,
            session.folder / FOLDER,
            options,
            progress=lambda text: progress.to(next(steps), text),
        )
    return _tell(built, tokenizer, options, session)


def _tell(
    built: DecoderBuild, tokenizer: Any, options: DecoderOptions, session: Session
) -> dict[str, Any]:
    facts, text = built.facts, tokenizer.decode(built.tokens)
    session.console.say(f"{options.prompt}{text}")
    session.console.say(f"{facts.logits_compared} logits of the RTL equal those of PyTorch")
    session.console.say(
        f"{facts.cycles_per_token} cycles per token, {facts.tokens_per_second:.1f} tokens per "
        f"second at {options.engine_mhz:g} MHz, {facts.bandwidth_share:.1%} of the bandwidth of "
        f"{options.memory}"
    )
    cells = built.engine.area.cells()
    width = built.design.options.data_width
    session.console.say(f"beats of {width} bits, {_cells(cells, options)}")
    return {
        "text": text,
        "tokens": built.tokens,
        **facts.record(),
        "memory_width": width,
        "cells": cells,
        "part": options.part,
        "report": f"{FOLDER}/report.md",
    }


def _cells(cells: Mapping[str, int], options: DecoderOptions) -> str:
    """Return the estimated cells in words, with those of the part."""
    part = options.fpga()
    available = {} if part is None else part.has()
    counts = [
        f"{count} of {available[kind]} {kind.upper()}" if part else f"{count} {kind.upper()}"
        for kind, count in cells.items()
    ]
    return f"about {', '.join(counts)}" + (f" of {part.name}" if part else "")
