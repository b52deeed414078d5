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
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

sys.path.append(sys.path.pop(0))  # this folder last: its graph.py is not the package

import torch
import torch.nn.functional as F
import transformers
from measuring.checked import Timed, Times, compare, is_sound, once
from measuring.progress import Deadline, Stopwatch
from measuring.record import save_section
from torch import Tensor, nn

from chop import MaseGraph
from chop.nn.modules.semi_structured import SemiStructuredLinear
from chop.passes import pack_semi_structured_transform_pass, prune_transform_pass

Records = list[dict[str, Any]]
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))
"""Outputs and inputs of the weight."""
ROWS = (256, 1024, 4096)
TOLERANCE = 0.05
"""Relative error of bfloat16 over 4 layers."""
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


# -- 2:4 weights -----------------------------------------------------------------------------


def bench_linear(device: str, is_quick: bool, deadline: Deadline) -> Records:
    """The 2:4 layer over torch's dense linear, on the same weights with their zeros."""
    shapes, rows = (((64, 64), (128, 64)), (8,)) if is_quick else (SHAPES, ROWS)
    records = []
    for outputs, inputs in shapes:
        layer = sparse_layer(outputs, inputs, device)
        for count in rows:
            if deadline.is_over:
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
    expected = F.linear(x.double(), weight.double())
    many = 2 if device == "cpu" else max(2, -(-COLD_BYTES // weight.nbytes))
    layers = [copy.deepcopy(layer) for _ in range(many)]
    weights = [weight.clone() for _ in range(many)]
    tuned = [copy.deepcopy(layer) for _ in range(many)]
    algorithms = sorted({str(each.search(rows)) for each in tuned})
    calls: dict[str, list[Callable[[], Tensor]]] = {
        "dense": [lambda w=w: F.linear(x, w) for w in weights],
        "2:4": [lambda m=m: m(x) for m in layers],
        "searched": [lambda m=m: m(x) for m in tuned],
    }
    programs = {name: Timed(each, expected, TOLERANCE) for name, each in calls.items()}
    times, reason = _times(programs, device, rounds)
    base = times["dense"].median
    return {
        "outputs": layer.out_features,
        "inputs": layer.in_features,
        "rows": rows,
        **{f"dense_{k}": v for k, v in times["dense"].spread().items()},
        **times["searched"].spread(),
        "default_speedup": base / times["2:4"].median,
        "speedup": base / times["searched"].median,
        "algorithms": algorithms,
        "target": LINEAR_TARGET,
        "error": times["searched"].error,
        "captured": device == "cuda" and not reason,
        **({"not_captured": reason} if reason else {}),
    }


def _times(programs: Mapping[str, Timed], device: str, rounds: int) -> tuple[dict[str, Times], str]:
    """Time the programs, on a GPU as CUDA graphs; return the reason if they cannot be captured."""
    if device == "cpu":
        return compare(programs, rounds=rounds), ""
    try:
        return compare(programs, rounds=rounds, clock="graph"), ""
    except RuntimeError as error:  # a backend that allocates while it computes
        torch.cuda.synchronize()
        return compare(programs, rounds=rounds, clock="stream"), str(error).partition("\n")[0]


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
    small = copy.deepcopy(graph)
    took = once(
        "prune",
        lambda: [prune_transform_pass(small, args)[1]["structure"] for args in (HEADS, CHANNELS)],
        lambda structures: all(each["removed"] for each in structures),
    )
    removed = [each["removed"][0] for each in took.result]
    return small, removed, took.seconds


def bench_model(device: str, is_quick: bool, deadline: Deadline) -> Records:
    """The whole model against the pruned one, prefill after prefill."""
    records: Records = []
    for shape in ((1, 8), (2, 8)) if is_quick else PREFILLS:
        whole = captured_model(is_quick, device, shape[0])
        small, removed, seconds = pruned(whole)
        print(f"  pruned in {seconds:.1f} s: {removed}", flush=True)
        ids = torch.randint(0, VOCABULARY, shape, device=device)
        models = {"whole": whole.model, "pruned": small.model}
        with torch.no_grad():
            exact = hidden(llama(is_quick, device).float(), ids)
        sizes = [sum(p.numel() for p in m.parameters()) for m in models.values()]
        for mode in ("eager", "compiled") if device == "cpu" else MODES:
            record: dict[str, Any] = {"prefill": list(shape), "mode": mode, "parameters": sizes}
            try:
                if deadline.is_over:
                    raise TimeoutError("left out: the limit was reached")
                record |= _model_record(models, exact, ids, mode, 3 if is_quick else 21)
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


def hidden(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the last hidden states."""
    return model(input_ids=ids).last_hidden_state


@torch.no_grad()
def _model_record(
    models: Mapping[str, nn.Module], exact: Tensor, ids: Tensor, mode: str, rounds: int
) -> dict[str, Any]:
    """Time the whole model and the pruned one.

    `exact`: hidden states of the plain float32 model, the reference of the whole one. The pruned
    one is compared with its eager graph, which tests/passes compares with the masked model.
    """
    torch._dynamo.reset()
    expected = {"whole": exact, "pruned": hidden(models["pruned"], ids).clone()}
    run: dict[str, Any] = dict(models)
    if mode == "compiled":
        run = {name: torch.compile(m, dynamic=False) for name, m in models.items()}
    programs = {
        name: Timed(lambda m=m: hidden(m, ids), expected[name], TOLERANCE)
        for name, m in run.items()
    }
    calls = [call for program in programs.values() for call in program.calls]
    first = once("first calls", lambda: [call() for call in calls], is_sound).seconds
    clock = "graph" if mode == "captured" else "wall"
    times = compare(programs, rounds=rounds, clock=clock)
    ratios = times["whole"].ratios(times["pruned"])
    return {
        **{f"whole_{k}": v for k, v in times["whole"].spread().items()},
        **{f"pruned_{k}": v for k, v in times["pruned"].spread().items()},
        "speedup": times["whole"].median / times["pruned"].median,
        "speedup_of_rounds": [min(ratios), max(ratios)],
        "target": MODEL_TARGET,
        "first_calls_seconds": first,
    }


# -- the program -----------------------------------------------------------------------------

SECTIONS: dict[str, Callable[[str, bool, Deadline], Records]] = {
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
    deadline = Deadline(args.limit)
    missed = 0
    for name in args.section or SECTIONS:
        watch = Stopwatch()
        print(f"{name}:", flush=True)
        try:
            records = SECTIONS[name](args.device, args.quick, deadline)
        except Exception:  # the other section is still worth having
            print(f"{name} failed:\n{traceback.format_exc()}", flush=True)
            missed += 1
            continue
        seconds = watch.seconds
        missed += sum(r.get("speedup", 0.0) < r["target"] for r in records if "target" in r)
        print(f"  {seconds:.0f} s", flush=True)
        if not args.quick:
            found = {"backend": backend(), "seconds": seconds, "records": records}
            print(f"saved {save_section('prune_gpu', name, found)}", flush=True)
    return 0 if args.quick else int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
