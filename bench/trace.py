"""What capturing a model costs, against running it once.

BERT-base with random weights: time and memory of trace + common metadata as ratios to one eager
forward pass at the same input and to the model's size; the same at 12, 24 and 48 layers; and the
time `import chop` adds to `import torch`. Every figure is measured in this run, side by side.

    python bench/trace.py [--rounds N] [--batch N] [--length N]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from typing import Any

sys.path.append(sys.path.pop(0))  # this folder last: its graph.py is not the package

import torch
import transformers
from measuring.checked import Timed, check, compare, in_new_process, once
from measuring.record import save
from tabulate import tabulate

import chop.passes as passes
from chop import MaseGraph

SAME = 1e-5
"""Relative error of a captured model: its operations are those of the model, fused differently."""
LIMITS = {"time_ratio": 2.0, "memory_ratio": 1.2, "import_seconds": 0.3, "depth_exponent": 1.15}


def bert(layers: int) -> torch.nn.Module:
    """BERT-base with `layers` layers and random weights."""
    config = transformers.BertConfig(num_hidden_layers=layers)
    return transformers.BertForSequenceClassification(config).eval()


def capture(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> MaseGraph:
    """Trace and annotate, as a user does."""
    graph = MaseGraph(model, hf_input_names=list(inputs))
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
    return graph


def example(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Token ids and a full mask."""
    ids = torch.randint(0, 30000, (batch, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def time_ratio(batch: int, length: int, rounds: int) -> dict[str, float]:
    """Capture against one forward pass, interleaved; medians."""
    model, inputs = bert(12), example(batch, length)
    with torch.no_grad():
        expected = model(**inputs).logits
        programs = {
            "forward": Timed(
                lambda: model(**inputs), expected, computes=lambda: model(**inputs).logits
            ),
            "capture": Timed(
                lambda: capture(model, inputs),
                expected,
                SAME,
                lambda: capture(model, inputs).model(**inputs).logits,
            ),
        }
        times = compare(programs, rounds=rounds, warm_up=1)
    return {
        "forward_seconds": times["forward"].median,
        "capture_seconds": times["capture"].median,
        "time_ratio": statistics.median(times["capture"].ratios(times["forward"])),
    }


def _capture_seconds(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    return once(
        "capture", lambda: capture(model, inputs), lambda graph: graph.fx_graph.nodes
    ).seconds


def depth(batch: int, length: int, rounds: int) -> dict[str, Any]:
    """Capture time at 12, 24 and 48 layers; the exponent of growth is 1 where it is linear."""
    times = {}
    for layers in (12, 24, 48):
        model, inputs = bert(layers), example(batch, length)
        with torch.no_grad():
            logits = model(**inputs).logits
            check("capture", capture(model, inputs).model(**inputs).logits, logits, SAME)
        times[layers] = min(_capture_seconds(model, inputs) for _ in range(rounds))
    growth = torch.log2(torch.tensor(times[48] / times[12])).item() / 2
    return {"seconds_by_layers": times, "depth_exponent": growth}


_MEMORY = """
import pathlib, runpy, sys

def peak_bytes():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

sys.argv[0] = {script!r}
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
bench = runpy.run_path(sys.argv[0], run_name="bench")
inputs = bench["example"]({batch}, {length})
config = bench["transformers"].BertConfig(num_hidden_layers=1, hidden_size=24, intermediate_size=8)
small = bench["transformers"].BertForSequenceClassification(config)
bench["capture"](small, inputs)  # imports and caches are not part of the figure
model = bench["bert"](12)
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
before = peak_bytes()
graph = bench["capture"](model, inputs)
size = sum(p.numel() * p.element_size() for p in model.parameters())
print((peak_bytes() - before) / size)
"""


def memory_ratio(batch: int, length: int) -> float:
    """Growth of the process's peak while capturing, over the size of the model."""
    return float(_run(_MEMORY.format(script=__file__, batch=batch, length=length)))


def import_seconds(rounds: int) -> float:
    """What `import chop` costs after `import torch`; the least of some runs."""
    return min(
        in_new_process("import chop", setup="import torch", correct="chop.MaseGraph")
        for _ in range(rounds)
    )


def _run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def main() -> int:
    """Measure, print a table, write bench/results/trace.json; 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    shape = (options.batch, options.length)
    results: dict[str, Any] = time_ratio(*shape, options.rounds)
    results["memory_ratio"] = memory_ratio(*shape)
    results |= depth(*shape, options.rounds)
    results["import_seconds"] = import_seconds(options.rounds)
    results["input"] = {"batch": options.batch, "length": options.length}
    rows = [(key, results[key], limit) for key, limit in LIMITS.items()]
    print(tabulate(rows, headers=("measure", "value", "at most"), floatfmt=".3f"))
    print(save("trace", {**results, "limits": LIMITS}))
    return int(any(results[key] > limit for key, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
