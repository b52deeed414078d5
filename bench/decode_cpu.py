"""Tokens a second of a 0.5 B Llama on the CPU, one at a time, beside llama.cpp on the same shapes.

    python bench/decode_cpu.py --llama-cpp PYTHON --threads 1

PYTHON is an interpreter that has llama-cpp-python and gguf (pip install llama-cpp-python gguf); the
comparison is left out without it. Both run the same shapes with random weights, threads as told,
float32 outside the products. Ours is the model of transformers, packed layer by layer, in eager
mode with its cache; "products" are its linear layers alone, one after the other. llama.cpp rounds
the activations of every product to 8 bits; ours does where the config says so (activations MXINT8,
the rows "+ MXINT8 x"), and otherwise multiplies with float32 activations. "fused" has query, key
and value in one product and gate and up in another; "graph" is the whole model, captured and fused
by fuse_patterns_transform_pass; "native" is the captured model with native decode steps. With one
thread the clock is the processor time of the process, which other programs of a busy machine change
little; with more it is the wall's.
Programs take turns; the median of the rounds counts. "ratios" are times of single products over
those of torch's in float32. Results go to bench/results/decode_cpu.json.

    python bench/decode_cpu.py --file model.gguf --llama-cpp PYTHON --threads 1

measures one GGUF file instead, and only prints: op by op in PyTorch, with native steps, and by
llama.cpp.
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/graph.py must not stand for the package `graph`

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HIDDEN, INNER, LAYERS, HEADS, KEY_HEADS, WORDS = 1024, 4864, 24, 16, 4, 32000
HEAD_SIZE = HIDDEN // HEADS
WEIGHTS = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KEY_HEADS * HEAD_SIZE, HIDDEN),
    "attn_v": (KEY_HEADS * HEAD_SIZE, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}
"""The matrices of a layer, by their names in llama.cpp."""
RIVALS = ("Q8_0", "Q4_0")
FORMATS = ("mxint8", "mxint4", "mxfp4", "int4")
WARM_UP = 4
ERROR_FLOAT, ERROR_8_BITS = 1e-5, 0.02
"""Relative error of a product in float32, and with activations rounded to MXINT8."""


# -- ours ------------------------------------------------------------------------------------


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


def of_file(path: Path, threads: int, tokens: int) -> list[dict[str, Any]]:
    """Rates of a GGUF file by our programs, which take turns."""
    import torch

    from chop.export import from_gguf

    torch.set_num_threads(threads)
    model: Any = from_gguf(path, cache=True, packed=True).as_transformers()
    records = []
    for name, native in (("PyTorch", False), ("native", True)):
        model.uses_native_step = native
        records.append({"program": name, "model": rate(decoder(model), tokens, threads)})
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


# -- llama.cpp, in its own interpreter -------------------------------------------------------


def write_gguf(path: Path, form: str) -> None:
    """The same shapes with random weights, as a file of llama.cpp's."""
    import gguf
    import numpy

    kind = gguf.GGMLQuantizationType[form]
    random = numpy.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Any:
        values = random.standard_normal((rows, columns), dtype=numpy.float32) / columns**0.5
        return gguf.quants.quantize(values, kind)

    out = gguf.GGUFWriter(str(path), "llama")
    out.add_block_count(LAYERS)
    out.add_context_length(1024)
    out.add_embedding_length(HIDDEN)
    out.add_feed_forward_length(INNER)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KEY_HEADS)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_rope_dimension_count(HEAD_SIZE)
    out.add_vocab_size(WORDS)
    out.add_tokenizer_model("no_vocab")
    ones = numpy.ones(HIDDEN, dtype=numpy.float32)
    shared = {name: matrix(*shape) for name, shape in WEIGHTS.items()}
    for name in ("token_embd", "output"):
        out.add_tensor(f"{name}.weight", matrix(WORDS, HIDDEN), raw_dtype=kind)
    out.add_tensor("output_norm.weight", ones)
    for i in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            out.add_tensor(f"blk.{i}.{name}.weight", ones)
        for name, data in shared.items():
            out.add_tensor(f"blk.{i}.{name}.weight", data, raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def rival_decoder(path: Path, threads: int) -> Iterator[None]:
    """llama.cpp decodes a token at each step."""
    import llama_cpp

    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_threads, settings.n_threads_batch = 1024, threads, threads
    context = llama_cpp.llama_init_from_model(model, settings)
    token = (llama_cpp.llama_token * 1)(1)
    while True:
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(token, 1)):
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(context)
        yield


def rival_of_file(path: Path, threads: int, tokens: int) -> list[dict[str, Any]]:
    """Rate of a GGUF file by llama.cpp."""
    return [{"program": "llama.cpp", "model": rate(rival_decoder(path, threads), tokens, threads)}]


def rivals(threads: int, tokens: int) -> list[dict[str, Any]]:
    """Rates of llama.cpp."""
    import llama_cpp

    records = []
    for form in RIVALS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{form}.gguf"
            write_gguf(path, form)
            value = rate(rival_decoder(path, threads), tokens, threads)
        version = f"llama-cpp-python {llama_cpp.__version__}"
        records.append({"program": version, "format": form, "model": value})
    return records


# -- both ------------------------------------------------------------------------------------


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
    parser.add_argument("--llama-cpp", help="an interpreter with llama-cpp-python and gguf")
    parser.add_argument("--only", nargs="*", default=[], help="formats of ours")
    parser.add_argument("--file", type=Path, help="a GGUF file to measure instead")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    run: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "ours": lambda: ours(args.threads, args.tokens, args.only),
        "rivals": lambda: rivals(args.threads, args.tokens),
        "ratios": lambda: ratios(args.threads, args.tokens),
        "of_file": lambda: of_file(args.file, args.threads, args.tokens),
        "rival_of_file": lambda: rival_of_file(args.file, args.threads, args.tokens),
    }
    if args.child:
        records = run[args.child]()
        print("RECORDS " + json.dumps(records))
        return
    names = ("of_file", "rival_of_file") if args.file else ("ours", "rivals")
    interpreters = dict(zip(names, (sys.executable, args.llama_cpp), strict=True))
    interpreters = {name: program for name, program in interpreters.items() if program}
    rounds: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in interpreters}
    for _ in range(args.rounds):
        for name, interpreter in interpreters.items():
            rounds[name].append(child(interpreter, name, args))
    records = [r for each in rounds.values() for r in merged(each)]
    for record in records:
        print({k: round(v, 2) if isinstance(v, float) else v for k, v in record.items()})
    if args.file:
        return
    from measuring.record import save

    shapes = {"hidden": HIDDEN, "inner": INNER, "layers": LAYERS, "heads": HEADS,
              "key_heads": KEY_HEADS, "words": WORDS}  # fmt: skip
    compared = child(sys.executable, "ratios", args)
    sys.argv = ["PYTHON" if a == args.llama_cpp else a for a in sys.argv]  # as the command is told
    results = {"threads": args.threads, "shapes": shapes, "tokens": records, "ratios": compared}
    save("decode_cpu", results)


def child(interpreter: str, name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of one program, run in a process of its own."""
    command = [interpreter, __file__, "--child", name, "--threads", str(args.threads)]
    command += ["--tokens", str(args.tokens), *(["--only", *args.only] if args.only else [])]
    command += ["--file", str(args.file)] if args.file else []
    told = subprocess.DEVNULL if name.startswith("rival") else None  # llama.cpp says much
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=told, text=True)
    line = next(x for x in done.stdout.splitlines() if x.startswith("RECORDS "))
    records: list[dict[str, Any]] = json.loads(line.removeprefix("RECORDS "))
    return records


if __name__ == "__main__":
    main()
