"""A language model that generates tokens in RTL: llama-imdb in a decode engine.

    python bench/llm_rtl.py tokens --model MODELS/llama-imdb --data DATA/imdb/lm
    mase quantize MODELS/llama-imdb --method gptq --format mxint4 --dataset TOKENS --out GPTQ
    python bench/llm_rtl.py perplexity --model MODELS/llama-imdb --data DATA/imdb/lm --gptq GPTQ

tokens      prompts of held-out text, continued in simulation with a DDR3-800 memory of 16 bits:
            every token and logit equals PyTorch; cycles, share of bandwidth, cycle model
perplexity  integer model and float model on the same held-out tokens, for MXINT8 and MXINT4 weights
            rounded to nearest; with --gptq also for the weights of that checkpoint
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring.record import save_section
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from chop.actions.float_llama import float_llama
from chop.hw.decode.decode_cycles import predict_cycles
from chop.hw.decode.decode_emit import EngineOptions, design_engine, emit_engine
from chop.hw.decode.decode_model import DecodeModel, DecodeOptions, quantize_llama
from chop.hw.decode.decode_report import decode_facts
from chop.hw.decode.decode_sim import DecodeRequest, compare_run, simulate_engine
from chop.hw.decode.integer_llama import IntegerLlama
from chop.hw.decode.llama_weights import LlamaWeights, float_logits, read_llama
from chop.hw.decode.memory_timing import memory_timing
from chop.ir.graph import MaseGraph

CLOCK = 100.0
"""Assumed clock of the engine in MHz: a beat of 128 bits per cycle is DDR3-800 of 16 bits."""
CALIBRATION = (8, 512)
"""Rows and tokens of calibration text."""
CACHE = 256
DISTANCE = 1000
"""Tokens of held-out text between the starts of two prompts."""


def tokens_of(folder: str, name: str) -> Tensor:
    """Return the tokens of a file in one row."""
    content = np.load(Path(folder) / f"{name}.npz")
    return torch.from_numpy(content["ids"].astype(np.int64)).flatten()


def integer_model(weights: LlamaWeights, data: str, bits: int) -> DecodeModel:
    """Return the integer model, with formats chosen on calibration text."""
    calibration = tokens_of(data, "calibration")[: math.prod(CALIBRATION)].reshape(CALIBRATION)
    return quantize_llama(weights, calibration, DecodeOptions(bits, max_length=CACHE))


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


SECTIONS = {"tokens": tokens, "perplexity": perplexity}


def main() -> None:
    """Measure one section."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("section", choices=list(SECTIONS))
    parser.add_argument("--model", required=True, help="folder of llama-imdb")
    parser.add_argument("--data", required=True, help="folder with calibration.npz and held.npz")
    parser.add_argument("--gptq", help="output folder of mase quantize --method gptq")
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8), help="of a weight")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--length", type=int, default=6, help="tokens of a prompt, or of the text")
    parser.add_argument("--new", type=int, default=32, help="tokens for each prompt")
    asked = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32).eval()
    results = SECTIONS[asked.section](asked, read_llama(model))
    name = f"{asked.section}_mxint{asked.bits}" if asked.section == "tokens" else asked.section
    print(results)
    print(save_section("llm_rtl", name, results))


if __name__ == "__main__":
    main()
