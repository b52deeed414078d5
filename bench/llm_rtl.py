"""A language model that generates tokens in RTL: llama-imdb in a decode engine.

    python bench/llm_rtl.py tokens --model MODELS/llama-imdb --data DATA/imdb/lm
    mase quantize MODELS/llama-imdb --method gptq --format mxint4 --dataset TOKENS --out GPTQ
    python bench/llm_rtl.py perplexity --model MODELS/llama-imdb --data DATA/imdb/lm --gptq GPTQ

    python bench/llm_rtl.py shapes
    python bench/llm_rtl.py layer --gguf SmolLM2-135M-Instruct.Q4_1.gguf
    python bench/llm_rtl.py routed --part ecp5-85k --width 128

tokens      prompts of held-out text, continued in simulation with a DDR3-800 memory of 16 bits:
            every token and logit equals PyTorch; cycles, share of bandwidth, cycle model
perplexity  integer model and float model on the same held-out tokens, for MXINT8 and MXINT4 weights
            rounded to nearest; with --gptq also for the weights of that checkpoint
shapes      tokens per second that the cycle model predicts for published models, on three boards
layer       one decoder layer and the head of SmolLM2-135M in RTL, on the activations that the float
            model has before that layer: RTL, PyTorch integers and Python integers are equal
routed      engine for the shapes of SmolLM2-135M, placed and routed on a part, with its ports in
            shift registers: clock, cells, bitstream, and the tokens per second at that clock
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring.record import save_section
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from chop.actions.decoder_route import route_decoder
from chop.actions.float_llama import float_llama
from chop.export import from_gguf, tokenizer_from_gguf
from chop.hw.decode.decode_area import engine_area
from chop.hw.decode.decode_cycles import predict_cycles
from chop.hw.decode.decode_emit import EngineOptions, design_engine, emit_engine
from chop.hw.decode.decode_estimate import estimate_token
from chop.hw.decode.decode_model import DecodeModel, DecodeOptions, quantize_llama
from chop.hw.decode.decode_report import decode_facts
from chop.hw.decode.decode_shape import SHAPES, shape_model
from chop.hw.decode.decode_sim import DecodeRequest, compare_run, simulate_engine
from chop.hw.decode.integer_llama import IntegerLlama
from chop.hw.decode.llama_weights import LlamaShape, LlamaWeights, float_logits, read_llama
from chop.hw.decode.memory_timing import PRESETS, memory_timing
from chop.hw.decode.plain_weights import plain_weights
from chop.hw.flow.route.flow import RouteOptions
from chop.hw.reference.plain_llama import PlainLlama
from chop.ir.graph import MaseGraph

CLOCK = 100.0
"""Assumed clock of the engine in MHz: a beat of 128 bits per cycle is DDR3-800 of 16 bits."""
CALIBRATION = (8, 512)
"""Rows and tokens of calibration text."""
CACHE = 256
RESIDUAL = 16
"""Bits of the residual stream of llama-imdb; calibration would choose 21."""
DISTANCE = 1000
"""Tokens of held-out text between the starts of two prompts."""


def tokens_of(folder: str, name: str) -> Tensor:
    """Return the tokens of a file in one row."""
    content = np.load(Path(folder) / f"{name}.npz")
    return torch.from_numpy(content["ids"].astype(np.int64)).flatten()


def integer_model(weights: LlamaWeights, data: str, bits: int) -> DecodeModel:
    """Return the integer model, with formats chosen on calibration text."""
    calibration = tokens_of(data, "calibration")[: math.prod(CALIBRATION)].reshape(CALIBRATION)
    formats = DecodeOptions(bits, max_length=CACHE, residual_width=RESIDUAL)
    return quantize_llama(weights, calibration, formats)


def tokens(asked: argparse.Namespace, weights: LlamaWeights) -> dict[str, Any]:
    """Return the result of generation in RTL."""
    design = design_engine(integer_model(weights, asked.data, asked.bits), EngineOptions(queue=512))
    held = tokens_of(asked.data, "held")
    first = DecodeRequest((int(held[0]),), 1)
    starts = range(0, asked.prompts * DISTANCE, DISTANCE)
    prompts = [tuple(held[start : start + asked.length].tolist()) for start in starts]
    requests = [first, *(DecodeRequest(prompt, asked.new) for prompt in prompts)]
    timing = memory_timing("ddr3-800", 128, CLOCK)
    with tempfile.TemporaryDirectory() as folder:
        emit_engine(design, Path(folder))
        run = simulate_engine(design, Path(folder), requests, timing, is_long=True)
    compared = compare_run(design, requests, run)
    predicted = predict_cycles(design, [first], [run.results[0].tokens], timing)
    assert predicted.results[0].sent == run.results[0].sent, "the cycle model is wrong"
    return {
        "weight_bits": asked.bits,
        "prompts": len(prompts),
        "prompt_tokens": asked.length,
        "new_tokens": asked.new,
        "memory": timing.name,
        "clock_mhz": CLOCK,
        "cycles": run.cycles,
        "differences": 0,  # compare_run raises at the first
        **decode_facts(run, predicted, timing, CLOCK, compared).record(),
    }


def perplexity(asked: argparse.Namespace, weights: LlamaWeights) -> list[dict[str, Any]]:
    """Return the perplexity of the float model and of each integer model."""
    row = tokens_of(asked.data, "held")[: asked.length]
    records = [{"weights": "float", "perplexity": _perplexity(_float(weights, row), row)}]
    models = {"mxint8": (weights, 8), "mxint4": (weights, 4)}
    if asked.gptq:
        graph = MaseGraph.from_checkpoint(Path(asked.gptq) / "graph")
        models["mxint4, gptq"] = (read_llama(float_llama(graph)), 4)
    for name, (own, bits) in models.items():
        value = _integer_perplexity(integer_model(own, asked.data, bits), row)
        records.append({"weights": name, "perplexity": value})
    return [{**record, "tokens": len(row)} for record in records]


def _integer_perplexity(model: DecodeModel, row: Tensor) -> float:
    llama = IntegerLlama(model)
    logits = torch.stack([llama.step(int(token)) for token in row]).double()
    return _perplexity(logits * 2.0 ** -model.fracs["logits"], row)


def _float(weights: LlamaWeights, row: Tensor) -> Tensor:
    return float_logits(weights, row, lambda name, x: None)


def _perplexity(logits: Tensor, row: Tensor) -> float:
    return math.exp(float(cross_entropy(logits[:-1], row[1:])))


LAYER = 12
"""Decoder layer of SmolLM2-135M behind the one that makes an element of 25 000."""
TEXT = "The capital of France is Paris. Once upon a time, a little"


def layer(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the result of one layer and the head of a GGUF model, on its own activations."""
    weights = read_llama(float_llama(from_gguf(Path(asked.gguf))))
    row = torch.tensor(tokenizer_from_gguf(asked.gguf)(TEXT).input_ids)
    hidden: dict[str, Tensor] = {}
    float_logits(weights, row, hidden.__setitem__)
    one, places = one_layer(weights, LAYER, hidden[f"{LAYER - 1}.hidden"])
    model = quantize_llama(one, places, DecodeOptions(asked.bits, max_length=len(row)))
    design = design_engine(model, EngineOptions(queue=512))
    requests = [DecodeRequest(tuple(range(n)), 1) for n in (1, len(row))]
    with tempfile.TemporaryDirectory() as folder:
        emit_engine(design, Path(folder))
        run = simulate_engine(design, Path(folder), requests, is_long=True)
    compared = compare_run(design, requests, run)
    plain = PlainLlama(plain_weights(model))
    logits = [plain.step(place) for place in range(len(row))]
    for place, result in zip((0, -1), run.results, strict=True):
        assert logits[place] == result.logits[0].tolist(), "Python integers differ"
    return {
        "layer": LAYER,
        "tokens": len(row),
        "weight_bits": asked.bits,
        "residual_bits": model.residual_width,
        "largest_activation": float(one.embedding.abs().max()),
        "logits_compared": compared,
        "differences": 0,  # compare_run raises at the first
        "relative_error": _relative_error(one, model, places, logits),
    }


BOARDS = {
    "ecp5-85k, DDR3-800 of 16 bits": ("ddr3-800", EngineOptions(128, queue=512), 32, 80.0),
    "xc7, DDR3-800 of 16 bits": ("ddr3-800", EngineOptions(128, queue=512), 32, 100.0),
    "large part, one channel of HBM2": ("hbm", EngineOptions(256, queue=512), 64, 250.0),
}
"""Board -> memory, engine, block of weights and assumed clock in MHz."""


def shapes() -> list[dict[str, Any]]:
    """Return the predicted rate of each published model on each board."""
    return [
        {"model": model, "board": board, **_rate(SHAPES[model], *settings)}
        for board, settings in BOARDS.items()
        for model in SHAPES
    ]


def _rate(
    shape: LlamaShape, memory: str, engine: EngineOptions, block: int, mhz: float
) -> dict[str, Any]:
    timing = memory_timing(memory, engine.data_width, mhz)
    formats = DecodeOptions(4, block=block, max_length=512, residual_width=24)
    estimate = estimate_token(shape, formats, engine, timing)
    return {
        "clock_mhz": mhz,
        "memory_width": engine.data_width,
        "cycles_per_token": round(estimate.cycles),
        "tokens_per_second": estimate.tokens_per_second(mhz),
        "bandwidth_share": estimate.beats
        * engine.data_width
        / 8
        / estimate.cycles
        * mhz
        * 1e6
        / PRESETS[memory].bytes_per_second,
    }


def routed(asked: argparse.Namespace) -> dict[str, Any]:
    """Return clock, cells and rate of a routed engine for the shapes of SmolLM2-135M."""
    shape, engine = SHAPES["smollm2-135m"], EngineOptions(asked.width, queue=512)
    formats = DecodeOptions(asked.bits, max_length=512, residual_width=24)
    design = design_engine(shape_model(shape, formats), engine, is_filled=False)
    options = RouteOptions(seeds=(asked.seed,), target_mhz=CLOCK)
    with tempfile.TemporaryDirectory() as folder:
        result = route_decoder(design, Path(folder), asked.part, options, print)
        size = result.bitstream.stat().st_size
    return {
        "model": "smollm2-135m",
        "part": result.part,
        "device": result.device,
        "memory": "ddr3-800",
        "used": dict(result.used),
        "available": dict(result.available),
        "estimated": engine_area(design).cells(),
        "seed": result.seed,
        "bitstream_bytes": size,
        "slowest_path": [[step.kind, step.nanoseconds, step.where] for step in result.path],
        **_rate(shape, "ddr3-800", engine, formats.block, math.floor(result.mhz * 10) / 10),
    }


def one_layer(weights: LlamaWeights, index: int, hidden: Tensor) -> tuple[LlamaWeights, Tensor]:
    """Return a model of one layer whose first tokens have the embedding `hidden`, and these."""
    embedding = torch.zeros_like(weights.embedding)
    embedding[: len(hidden)] = hidden
    shape = replace(weights.shape, layers=1)
    one = replace(weights, shape=shape, embedding=embedding, layers=(weights.layers[index],))
    return one, torch.arange(len(hidden))


def _relative_error(
    weights: LlamaWeights, model: DecodeModel, places: Tensor, logits: list[list[int]]
) -> float:
    """Return the deviation of the integer logits, in standard deviations of the float ones."""
    exact = _float(weights, places)
    values = torch.tensor(logits).double() * 2.0 ** -model.fracs["logits"]
    return float((values - exact).std() / exact.std())


SECTIONS = {"tokens": tokens, "perplexity": perplexity}
"""Sections that measure llama-imdb."""


def main() -> None:
    """Measure one section."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("section", choices=[*SECTIONS, "layer", "shapes", "routed"])
    parser.add_argument("--model", help="folder of llama-imdb")
    parser.add_argument("--data", help="folder with calibration.npz and held.npz")
    parser.add_argument("--gguf", help="file of SmolLM2-135M, for the section layer")
    parser.add_argument("--gptq", help="output folder of mase quantize --method gptq")
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8), help="of a weight")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--length", type=int, default=6, help="tokens of a prompt, or of the text")
    parser.add_argument("--new", type=int, default=32, help="tokens for each prompt")
    parser.add_argument("--part", default="ecp5-85k", help="FPGA, for the section routed")
    parser.add_argument("--width", type=int, default=128, help="bits of a beat, for routed")
    parser.add_argument("--seed", type=int, default=1, help="of the placement")
    asked = parser.parse_args()
    if asked.section == "layer":
        results: Any = layer(asked)
    elif asked.section == "shapes":
        results = shapes()
    elif asked.section == "routed":
        results = routed(asked)
    else:
        model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32).eval()
        results = SECTIONS[asked.section](asked, read_llama(model))
    name = f"{asked.section}_mxint{asked.bits}" if asked.section == "tokens" else asked.section
    print(results)
    print(save_section("llm_rtl", name, results))


if __name__ == "__main__":
    main()
