"""Decode engine of a language model: emitted, simulated and compared with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from chop.actions.decoder_size import choose_engine
from chop.actions.integer_decoder import decoder_graph
from chop.errors import ConfigError, HardwareError
from chop.hw.decode.decode_cycles import predict_cycles
from chop.hw.decode.decode_emit import DecodeDesign, design_engine, emit_engine
from chop.hw.decode.decode_model import DecodeOptions, quantize_llama
from chop.hw.decode.decode_report import DecodeFacts, decode_facts, report_text
from chop.hw.decode.decode_sim import DecodeRequest, DecodeRun, compare_run, simulate_engine
from chop.hw.decode.decode_size import SizedEngine
from chop.hw.decode.llama_weights import read_llama
from chop.hw.decode.memory_timing import memory_timing
from chop.hw.flow.route.parts import Part, get_part
from chop.ir.graph import MaseGraph

CALIBRATION_TOKENS = 128
"""Tokens that the model draws after the prompt, to choose the fixed-point formats."""


@dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """Decode engine."""

    memory: Annotated[str, "External memory: ideal, ddr3-800, ddr4 or hbm."] = "ddr3-800"
    memory_width: Annotated[
        int | None,
        "Bits of a beat of memory. Default: 128; with a part, the width that makes the most of "
        "memory and part.",
    ] = None
    part: Annotated[
        str | None,
        "FPGA (`mase list parts`) that the engine must fit, by an estimate of its cells.",
    ] = None
    engine_mhz: Annotated[float, "Assumed clock of the engine, in MHz."] = 100.0
    weight_bits: Annotated[int, "Bits of weights, 4 or 8."] = 4
    weight_format: Annotated[
        str, "Format of weights: mxint, or integer for fixed point with one scale for a matrix."
    ] = "mxint"
    cache_bits: Annotated[int, "Bits of MXINT keys and values, 4 or 8."] = 8
    residual_bits: Annotated[
        int | None,
        "Bits of the residual stream, 16 to 24. Default: 16, or more if the activations of the "
        "calibration tokens need it.",
    ] = None
    cache_tokens: Annotated[int, "Tokens that the cache holds."] = 256
    prompt: Annotated[str, "Text that the engine continues."] = "Once upon a time"
    new_tokens: Annotated[int, "Tokens to generate."] = 8

    def __post_init__(self) -> None:
        if not self.engine_mhz > 0:
            raise ConfigError(f"engine_mhz must be above 0, got {self.engine_mhz:g}.")
        if self.new_tokens < 1:
            raise ConfigError(f"new_tokens must be 1 or more, got {self.new_tokens}.")

    def fpga(self) -> Part | None:
        """Return the part that the engine must fit."""
        return None if self.part is None else get_part(self.part)

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise if a prompt is empty, or the cache too short for it and the new tokens."""
        if not prompt:
            raise ConfigError("prompt: the text has no tokens. Allowed: one token or more.")
        needed = len(prompt) + self.new_tokens - 1
        if needed > self.cache_tokens:
            raise ConfigError(
                f"cache_tokens: {len(prompt)} prompt tokens and {self.new_tokens} new ones need a "
                f"cache of {needed} tokens, got {self.cache_tokens}."
            )

    def formats(self) -> DecodeOptions:
        """Return the number formats and sizes of the integer model."""
        return DecodeOptions(
            self.weight_bits,
            max_length=self.cache_tokens,
            residual_width=self.residual_bits,
            cache_width=self.cache_bits,
            weight_format=self.weight_format,
        )


@dataclass(frozen=True)
class DecoderBuild:
    """Engine of a model, its simulation and its report."""

    design: DecodeDesign
    engine: SizedEngine
    run: DecodeRun
    facts: DecodeFacts
    report: Path
    config: Any
    """Config of the float model."""

    @property
    def tokens(self) -> list[int]:
        """Generated tokens."""
        return self.run.results[-1].tokens

    def graph(self) -> MaseGraph:
        """Return the integer model as a graph, whose `generate` gives the tokens of the engine."""
        return decoder_graph(self.design.model, self.config)


def build_decoder(
    model: Any,
    prompt: Sequence[int],
    directory: Path,
    options: DecoderOptions | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> DecoderBuild:
    """Emit and simulate the decode engine of a `LlamaForCausalLM`; raise if a logit differs."""
    options = options or DecoderOptions()
    options.check_prompt(prompt)
    part = options.fpga()
    weights = read_llama(model)
    progress("quantise")
    quantized = quantize_llama(weights, draw_tokens(model, prompt), options.formats())
    engine = choose_engine(
        quantized, options.memory, options.engine_mhz, width=options.memory_width, part=part
    )
    design = design_engine(quantized, engine.options)
    timing = memory_timing(options.memory, design.options.data_width, options.engine_mhz)
    emit_engine(design, directory)
    requests = [DecodeRequest((prompt[0],), 1), DecodeRequest(tuple(prompt), options.new_tokens)]
    progress("compile and simulate")
    run = simulate_engine(design, directory, requests, timing, is_long=True)
    progress("compare with PyTorch")
    compared = compare_run(design, requests, run)
    progress("predict cycles")
    predicted = predict_cycles(design, requests[:1], [run.results[0].tokens], timing)
    if predicted.results[0].sent != run.results[0].sent:
        raise HardwareError(
            f"decode: the first token leaves in cycle {run.results[0].sent[0]}, and the cycle "
            f"model predicts {predicted.results[0].sent[0]}."
        )
    facts = decode_facts(run, predicted, timing, options.engine_mhz, compared)
    report = directory / "report.md"
    available = None if part is None else (part.name, part.has())
    report.write_text(report_text(design, facts, timing, engine, available))
    return DecoderBuild(design, engine, run, facts, report, model.config)


def draw_tokens(model: Any, prompt: Sequence[int], count: int = CALIBRATION_TOKENS) -> Tensor:
    """Return the prompt and tokens that the float model draws after it."""
    limit = getattr(model.config, "max_position_embeddings", count + len(prompt))
    inputs = torch.tensor([list(prompt)])
    with torch.no_grad():
        drawn = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=True,
            top_k=0,
            max_new_tokens=max(1, min(count, limit - len(prompt))),
        )
    row: Tensor = drawn[0]
    return row
