"""What pruning gains on a GPU: 2:4 weights against dense ones, and a smaller model end to end.

    python bench/prune_gpu.py                       # both sections, on a GPU
    python bench/prune_gpu.py --section linear
    python bench/prune_gpu.py --device cpu --quick  # that it runs, with tiny sizes

Sections: linear (a 2:4 bfloat16 layer, made by the passes, over torch's dense linear, captured into
CUDA graphs that take turns), model (decoder layers of a Llama with the shapes of Llama 3 8B on a
prefill, whole and pruned structurally to half of its heads and channels, eager and compiled; the
two take turns). Times are medians of CUDA events. Results go to bench/results/prune_gpu.json after
each section; what fails is reported and the rest runs, and what would begin after `--limit`
seconds is left out and said so.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

sys.path.append(sys.path.pop(0))  # this folder last: its graph.py is not the package

import torch
import torch.nn.functional as F
import transformers
from record import save_section
from torch import Tensor, nn

from chop import MaseGraph
from chop.nn.modules.semi_structured import SemiStructuredLinear
from chop.passes import pack_semi_structured_transform_pass, prune_transform_pass

Records = list[dict[str, Any]]
Programs = Mapping[str, Callable[[], object]]
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))
"""Outputs and inputs of the weight."""
ROWS = (256, 1024, 4096)
LINEAR_TARGET, MODEL_TARGET = 1.3, 1.7
COLD_BYTES = 400 << 20
"""Weights that are cycled through, so that none is in a cache when its turn comes."""
PREFILLS = ((1, 2048), (8, 512))
VOCABULARY = 1024
MODES = ("eager", "captured", "compiled")
"""As the graph is, the same as a CUDA graph, and by torch.compile."""
HEADS = {"weight": {"sparsity": 0.5, "granularity": "head"}}
CHANNELS = {
    "weight": {
        "sparsity": 0.5,
        "granularity": "channel",
        "target_modules": ["gate_proj", "up_proj"],
    }
}


# -- timing ----------------------------------------------------------------------------------


def captured(calls: list[Callable[[], object]]) -> Callable[[], object]:
    """The calls as one CUDA graph, which replays them without gaps."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph.replay


def alternate(programs: Programs, device: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each program, taken in turns after two rounds that do not count."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds + 2):
        for name, program in programs.items():
            seconds = timed(program, device)
            if number >= 2:
                times[name].append(seconds)
    return times


def timed(program: Callable[[], object], device: str) -> float:
    """Seconds of one call, by events on a GPU."""
    if device == "cpu":
        start = time.perf_counter()
        program()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    program()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def spread(times: list[float], calls: int = 1) -> dict[str, float]:
    """Median, least and most, in microseconds a call."""
    return {
        "median_us": statistics.median(times) * 1e6 / calls,
        "min_us": min(times) * 1e6 / calls,
        "max_us": max(times) * 1e6 / calls,
    }


# -- 2:4 weights -----------------------------------------------------------------------------


def bench_linear(device: str, is_quick: bool, deadline: float) -> Records:
    """The 2:4 layer over torch's dense linear, on the same weights with their zeros."""
    shapes, rows = (((64, 64), (128, 64)), (8,)) if is_quick else (SHAPES, ROWS)
    records = []
    for outputs, inputs in shapes:
        layer = sparse_layer(outputs, inputs, device)
        for count in rows:
            if time.perf_counter() > deadline:
                print("  the rest is left out: the limit was reached", flush=True)
                return records
            records.append(_linear_record(layer, count, device, 3 if is_quick else 21))
            show_record(records[-1])
    return records


def sparse_layer(outputs: int, inputs: int, device: str) -> SemiStructuredLinear:
    """A layer of random weights, pruned to 2:4 and packed by the passes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16)).eval()
    x = torch.randn(2, inputs, dtype=torch.bfloat16)
    graph = MaseGraph(model.to(device), dummy_in={"input": x.to(device)})
    graph, _ = prune_transform_pass(graph, {"weight": {"granularity": "2:4"}})
    graph, info = pack_semi_structured_transform_pass(graph)
    assert info["packed"] == ["0"], info["kept"]
    layer = graph.model.get_submodule("0")
    assert isinstance(layer, SemiStructuredLinear), type(layer)
    return layer.requires_grad_(False)


@torch.no_grad()
def _linear_record(
    layer: SemiStructuredLinear, rows: int, device: str, rounds: int
) -> dict[str, Any]:
    x = torch.randn(rows, layer.in_features, dtype=torch.bfloat16, device=device)
    weight = layer.float_weight()
    expected, found = F.linear(x, weight).float(), layer(x).float()
    many = 2 if device == "cpu" else max(2, -(-COLD_BYTES // weight.nbytes))
    layers = [copy.deepcopy(layer) for _ in range(many)]
    weights = [weight.clone() for _ in range(many)]
    tuned = [copy.deepcopy(layer) for _ in range(many)]
    algorithms = sorted({str(each.search(rows)) for each in tuned})
    calls: dict[str, list[Callable[[], object]]] = {
        "dense": [lambda w=w: F.linear(x, w) for w in weights],
        "2:4": [lambda m=m: m(x) for m in layers],
        "searched": [lambda m=m: m(x) for m in tuned],
    }
    programs, is_captured, reason = _programs(calls, device)
    times = alternate(programs, device, rounds)
    base = statistics.median(times["dense"])
    return {
        "outputs": layer.out_features,
        "inputs": layer.in_features,
        "rows": rows,
        **{f"dense_{k}": v for k, v in spread(times["dense"], many).items()},
        **spread(times["searched"], many),
        "default_speedup": base / statistics.median(times["2:4"]),
        "speedup": base / statistics.median(times["searched"]),
        "algorithms": algorithms,
        "target": LINEAR_TARGET,
        "error": float((found - expected).norm() / expected.norm()),
        "captured": is_captured,
        **({"not_captured": reason} if reason else {}),
    }


def _programs(
    calls: dict[str, list[Callable[[], object]]], device: str
) -> tuple[Programs, bool, str]:
    """Each list of calls as one program: as CUDA graphs if all can be, else one after the other."""

    def in_turn(each: list[Callable[[], object]]) -> Callable[[], object]:
        return lambda: [call() for call in each]

    if device == "cuda":
        try:
            return {name: captured(each) for name, each in calls.items()}, True, ""
        except RuntimeError as error:  # a backend that allocates while it computes
            reason = str(error).partition("\n")[0]
            torch.cuda.synchronize()
            return {name: in_turn(each) for name, each in calls.items()}, False, reason
    return {name: in_turn(each) for name, each in calls.items()}, False, ""


# -- a smaller model -------------------------------------------------------------------------


def llama(is_quick: bool, device: str) -> nn.Module:
    """Decoder layers of the shapes of Llama 3 8B with random weights in bfloat16, without a head.

    A prefill needs the head for one token only.
    """
    sizes: dict[str, Any] = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 4,
    }
    if is_quick:
        sizes = {name: size // 32 for name, size in sizes.items()}
        sizes |= {"num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        **sizes, vocab_size=VOCABULARY, max_position_embeddings=4096, use_cache=False
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = transformers.LlamaModel(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False)


def pruned(graph: MaseGraph) -> tuple[MaseGraph, Records, float]:
    """A copy without half of the heads and channels, what was removed, and the seconds."""
    small, removed = copy.deepcopy(graph), []
    start = time.perf_counter()
    for args in (HEADS, CHANNELS):
        small, info = prune_transform_pass(small, args)
        removed += info["structure"]["removed"][:1]
    return small, removed, time.perf_counter() - start


def bench_model(device: str, is_quick: bool, deadline: float) -> Records:
    """The whole model against the pruned one, prefill after prefill."""
    records: Records = []
    for shape in ((1, 8), (2, 8)) if is_quick else PREFILLS:
        whole = captured_model(is_quick, device, shape[0])
        small, removed, seconds = pruned(whole)
        print(f"  pruned in {seconds:.1f} s: {removed}", flush=True)
        ids = torch.randint(0, VOCABULARY, shape, device=device)
        models = {"whole": whole.model, "pruned": small.model}
        sizes = [sum(p.numel() for p in m.parameters()) for m in models.values()]
        for mode in ("eager", "compiled") if device == "cpu" else MODES:
            record: dict[str, Any] = {"prefill": list(shape), "mode": mode, "parameters": sizes}
            try:
                if time.perf_counter() > deadline:
                    raise TimeoutError("left out: the limit was reached")
                record |= _model_record(models, ids, mode, device, 3 if is_quick else 21)
            except Exception as error:  # the other way of running is still worth having
                record["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
                print(traceback.format_exc())
            records.append(record)
            show_record(record)
    return records


def captured_model(is_quick: bool, device: str, batch: int) -> MaseGraph:
    """The graph of the model, for batches of this size and any length."""
    ids = torch.zeros(batch, 16, dtype=torch.long, device=device)
    return MaseGraph(llama(is_quick, device), ["input_ids"], {"input_ids": ids})


@torch.no_grad()
def _model_record(
    models: Mapping[str, nn.Module], ids: Tensor, mode: str, device: str, rounds: int
) -> dict[str, Any]:
    torch._dynamo.reset()
    run: dict[str, Any] = dict(models)
    if mode == "compiled":
        run = {name: torch.compile(m, dynamic=False) for name, m in models.items()}
    programs: Programs = {name: lambda m=m: m(input_ids=ids) for name, m in run.items()}
    if mode == "captured":
        programs = {name: captured([program]) for name, program in programs.items()}
    start = time.perf_counter()
    for program in programs.values():
        program()
    first = time.perf_counter() - start
    times = alternate(programs, device, rounds)
    whole, less = (statistics.median(times[name]) for name in ("whole", "pruned"))
    ratios = [w / p for w, p in zip(times["whole"], times["pruned"], strict=True)]
    return {
        **{f"whole_{k}": v for k, v in spread(times["whole"]).items()},
        **{f"pruned_{k}": v for k, v in spread(times["pruned"]).items()},
        "speedup": whole / less,
        "speedup_of_rounds": [min(ratios), max(ratios)],
        "target": MODEL_TARGET,
        "first_calls_seconds": first,
    }


# -- the program -----------------------------------------------------------------------------

SECTIONS: dict[str, Callable[[str, bool, float], Records]] = {
    "linear": bench_linear,
    "model": bench_model,
}


def show_record(record: dict[str, Any]) -> None:
    """One line a record, when it is there."""
    cells = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in record.items())
    print("  " + "  ".join(cells), flush=True)


def backend() -> str:
    """Which of torch's backends multiplies 2:4 weights."""
    if not torch.cuda.is_available():
        return "none: written out"
    version = torch.backends.cusparselt.version()
    return f"cuSPARSELt {version}" if torch.backends.cusparselt.is_available() else "CUTLASS"


def main() -> int:
    """Run, print and save; 1 where a speed-up is below its target."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--section", action="append", choices=tuple(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing is saved")
    parser.add_argument("--limit", type=float, default=100.0, help="seconds to begin within")
    args = parser.parse_args()
    deadline = time.perf_counter() + args.limit
    missed = 0
    for name in args.section or SECTIONS:
        start = time.perf_counter()
        print(f"{name}:", flush=True)
        try:
            records = SECTIONS[name](args.device, args.quick, deadline)
        except Exception:  # the other section is still worth having
            print(f"{name} failed:\n{traceback.format_exc()}", flush=True)
            missed += 1
            continue
        seconds = time.perf_counter() - start
        missed += sum(r.get("speedup", 0.0) < r["target"] for r in records if "target" in r)
        print(f"  {seconds:.0f} s", flush=True)
        if not args.quick:
            found = {"backend": backend(), "seconds": seconds, "records": records}
            print(f"saved {save_section('prune_gpu', name, found)}", flush=True)
    return 0 if args.quick else int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
