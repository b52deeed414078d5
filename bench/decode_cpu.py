"""Tokens per second of a 0.49 B Llama on the CPU, by number format, one token at a time.

    python bench/decode_cpu.py --threads 1

The model has random weights and float32 outside the products. "model" is the model of transformers,
packed layer by layer, in eager mode with its cache; "products" are its linear layers alone, one
after the other. Activations are float32, or rounded to MXINT8 in the rows "+ MXINT8 x". "fused" has
query, key and value in one product and gate and up in another; "graph" is the whole model, captured
and fused by fuse_patterns_transform_pass; "native" is the captured model with native decode steps.
With one thread the clock is the processor time of the process, which other programs of a busy
machine change little; with more it is the wall's. The median of the rounds counts. "ratios" are
times of single products over those of torch's in float32. Results go to
bench/results/decode_cpu.json. bench/decode_files.py compares with llama.cpp.
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/graph.py must not stand for the package `graph`

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from generation.random_gguf import HEADS, HIDDEN, INNER, KEY_HEADS, LAYERS, WORDS

FORMATS = ("mxint8", "mxint4", "mxfp4", "int4")
WARM_UP = 4
ERROR_FLOAT, ERROR_8_BITS = 1e-5, 0.02
"""Relative error of a product in float32, and with activations rounded to MXINT8."""


def llama() -> Any:
    """The model with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, max_position_embeddings=1024,
        tie_word_embeddings=False, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def packed(format: str) -> Any:
    """The model on packed weights."""
    import chop.passes as passes

    return passes.pack_weights_transform_pass(llama(), {"format": format})[0]


def round_inputs(model: Any) -> None:
    """Let the packed layers of `model` round their inputs to MXINT8."""
    from chop.kernels import QLinearPacked
    from chop.nn.quantizers import MXInt

    for layer in model.modules():
        if isinstance(layer, QLinearPacked):
            layer.quantizers["data_in"] = MXInt(8, block_size=32)


def decoder(model: Any) -> Iterator[None]:
    """Decode a token at each step."""
    import torch
    from measuring.checked import WrongResultError, is_sound
    from transformers import DynamicCache

    token, cache = torch.tensor([[1]]), DynamicCache(config=model.config)
    with torch.inference_mode():
        while True:
            is_first = cache.get_seq_length() == 0
            result = model(input_ids=token, past_key_values=cache, use_cache=True)
            if is_first and not is_sound(result.logits):
                raise WrongResultError("the logits are zero or not finite")
            token = result.logits[:, -1:].argmax(-1)
            yield


def captured(model: Any, *, fused: bool) -> Any:
    """The model captured with its cache; `fused`: projections, attention, norms, rotations."""
    import torch

    import chop.passes as passes
    from chop import MaseGraph

    ids = torch.randint(5, WORDS, (1, 8))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    graph = MaseGraph(model, dummy_in=inputs, cache=True)
    if fused:
        passes.fuse_patterns_transform_pass(graph, {})
    return graph.as_transformers()


def products(model: Any, *, fused: bool) -> Iterator[None]:
    """The linear layers of a token at each step."""
    import torch
    from torch import nn

    from chop.kernels import QLinearPacked

    torch.manual_seed(0)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | QLinearPacked)]
    if fused:
        layers = list(joined(model))
    inputs = {n: torch.randn(1, n) for n in {layer.in_features for layer in layers}}
    with torch.inference_mode():
        while True:
            for layer in layers:
                layer(inputs[layer.in_features])
            yield


def joined(model: Any) -> Iterator[Any]:
    """The packed layers, those of one input as one."""
    from chop.passes.graph.transforms.fuse_patterns import merged_packed

    for block in model.model.layers:
        attention, mlp = block.self_attn, block.mlp
        yield merged_packed([attention.q_proj, attention.k_proj, attention.v_proj])
        yield attention.o_proj
        yield merged_packed([mlp.gate_proj, mlp.up_proj])
        yield mlp.down_proj
    yield model.lm_head


def ours(threads: int, tokens: int, chosen: list[str]) -> list[dict[str, Any]]:
    """Rates of our programs."""
    import torch

    torch.set_num_threads(threads)
    records = []
    for format in chosen or ["float32", *FORMATS]:
        model = llama() if format == "float32" else packed(format)
        for name in (format,) if format == "float32" else (format, f"{format} + MXINT8 x"):
            if name != format:
                round_inputs(model)
            rates = {
                "model": rate(decoder(model), tokens, threads),
                "products": rate(products(model, fused=False), tokens, threads),
            }
            if format != "float32":
                rates["fused"] = rate(products(model, fused=True), tokens, threads)
                rates["graph"] = rate(decoder(captured(model, fused=True)), tokens, threads)
                rates["native"] = rate(decoder(captured(model, fused=False)), tokens, threads)
            records.append({"program": "ours", "format": name, **rates})
            print(records[-1], file=sys.stderr, flush=True)
    return records


def rate(steps: Iterator[None], tokens: int, threads: int) -> float:
    """Tokens a second, by the median step."""
    clock, times = time.process_time if threads == 1 else time.perf_counter, []
    for _ in range(tokens + WARM_UP):
        start = clock()
        next(steps)
        times.append(clock() - start)
    return 1.0 / statistics.median(times[WARM_UP:])


def ratios(threads: int, tokens: int) -> list[dict[str, Any]]:
    """The time of one packed product over that of torch's in float32."""
    import torch
    import torch.nn.functional as F
    from measuring.checked import check

    from chop.kernels import QLinearPacked, pack, reference
    from chop.nn.quantizers import MXInt

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rows, columns = 8192, 4096
    weight, records = torch.randn(rows, columns) / 64, []
    packed = {f: pack(weight, f) for f in (*FORMATS, "mxfp8")}
    layers = {f: QLinearPacked(p, None) for f, p in packed.items()}
    plain = {
        f: reference.unpack(p.codes, p.scales, p.format, p.group_size, p.columns, torch.float64)
        for f, p in packed.items()
    }

    def repeat(run: Callable[[], Any]) -> Iterator[None]:
        with torch.inference_mode():
            while True:
                run()
                yield

    for batch in (1, 4, 16):
        x = torch.randn(batch, columns)
        base = rate(repeat(lambda x=x: F.linear(x, weight)), tokens, threads)
        for name, layer in layers.items():
            for settings in ({}, {"data_in": MXInt(8, block_size=32)}):
                layer.quantizers = settings
                with torch.inference_mode():
                    expected = F.linear(x.double(), plain[name])
                    check(name, layer(x), expected, ERROR_8_BITS if settings else ERROR_FLOAT)
                own = rate(repeat(lambda x=x, layer=layer: layer(x)), tokens, threads)
                told = f"{name} + MXINT8 x" if settings else name
                records.append({"format": told, "rows of x": batch, "ratio": base / own})
                print(records[-1], file=sys.stderr, flush=True)
    return records


def merged(rounds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each program's median over the rounds, with all of them."""
    records = []
    for same in zip(*rounds, strict=True):
        record = dict(same[0])
        for key in ("model", "products", "fused", "graph", "native"):
            if key in record:
                each = [r[key] for r in same]
                record[key] = statistics.median(each)
                record[f"{key}_rounds"] = each
        records.append(record)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="formats of ours")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    run: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "ours": lambda: ours(args.threads, args.tokens, args.only),
        "ratios": lambda: ratios(args.threads, args.tokens),
    }
    if args.child:
        records = run[args.child]()
        print("RECORDS " + json.dumps(records))
        return
    records = merged([child("ours", args) for _ in range(args.rounds)])
    for record in records:
        print({k: round(v, 2) if isinstance(v, float) else v for k, v in record.items()})
    from measuring.record import save

    shapes = {"hidden": HIDDEN, "inner": INNER, "layers": LAYERS, "heads": HEADS,
              "key_heads": KEY_HEADS, "words": WORDS}  # fmt: skip
    compared = child("ratios", args)
    results = {"threads": args.threads, "shapes": shapes, "tokens": records, "ratios": compared}
    save("decode_cpu", results)


def child(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the records of one program, run in a process of its own."""
    command = [sys.executable, __file__, "--child", name, "--threads", str(args.threads)]
    command += ["--tokens", str(args.tokens), *(["--only", *args.only] if args.only else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    line = next(x for x in done.stdout.splitlines() if x.startswith("RECORDS "))
    records: list[dict[str, Any]] = json.loads(line.removeprefix("RECORDS "))
    return records


if __name__ == "__main__":
    main()
