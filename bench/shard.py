"""What planning costs and what a plan saves.

Planning time of BERT-base at 12, 24 and 48 layers on two devices, for inference and training: it
grows as the number of layers does. For each, the modelled step and memory of a device against the
whole model on one. Then a BERT of 4 layers is run on two gloo processes: the bytes of parameters
each really holds, and how far its outputs and gradients are from those of the whole model.
`shard_plans.py` plans Llama-3 shapes on 64 to 1,024 devices.

    python bench/shard.py [--rounds N] [--batch N] [--length N]
    python bench/shard.py --only memory | brute_force

What measures no time are programs of their own: `shard_memory.py` compares predicted and held
memory, and `shard_brute_force.py` the planner with every plan of small problems. `--only` starts
one of them.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

# This folder last, in every process: its graph.py is not the package.
sys.path.sort(key=lambda folder: folder == str(Path(__file__).parent))

import torch
import transformers
from measuring.checked import once
from measuring.record import save
from shard_plans import PEER, axis_by_axis, depth_exponent, in_processes
from shard_plans import limits as plan_limits
from tabulate import tabulate

import chop.passes as passes
from chop import MaseGraph
from chop.distributed import Mesh, fixed_plan, make_plan
from chop.distributed.verify_plan import verify_plan

PROGRAMS = {"memory": "shard_memory.py", "brute_force": "shard_brute_force.py"}
"""Program of each part that measures no time."""
LIMITS = {"depth_exponent": 1.2, "seconds_at_12_layers": 10.0}
MESH = (2,)


def bert(layers: int, batch: int, length: int, **settings: int) -> MaseGraph:
    """An annotated BERT classifier with random weights."""
    config = transformers.BertConfig(num_hidden_layers=layers, **settings)
    ids = torch.randint(0, 1000, (batch, length))
    labels = torch.zeros(batch, dtype=torch.long)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    model = transformers.BertForSequenceClassification(config).eval()
    graph = MaseGraph(model, hf_input_names=list(inputs))
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph, {"dummy_in": inputs})
    graph.dummy_in = inputs
    return graph


def planning(graph: MaseGraph, training: bool, rounds: int) -> dict[str, Any]:
    """Least time to plan, and the plan against the whole model on one device."""
    whole = fixed_plan(graph, Mesh(MESH), lambda value: None, training=training)
    runs = [
        once(
            "plan",
            lambda: make_plan(graph, Mesh(MESH), training=training),
            lambda plan: 0 < plan.cost.step_seconds <= whole.cost.step_seconds,
        )
        for _ in range(rounds)
    ]
    plan = runs[-1].result
    return {
        "plan_seconds": min(run.seconds for run in runs),
        "is_exact": plan.is_exact,
        "step_ratio": plan.cost.step_seconds / whole.cost.step_seconds,
        "memory_ratio": plan.cost.memory_bytes / whole.cost.memory_bytes,
        "memory_bytes": plan.cost.memory_bytes,
        "parameter_bytes": plan.cost.parameter_bytes,
        "collectives": plan.cost.collectives,
    }


def run(batch: int, length: int) -> dict[str, Any]:
    """A plan run on two processes of this machine."""
    graph = bert(4, batch, length, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    plan = make_plan(graph, Mesh(MESH, latency=(1e-6,), flops=1e11, memory_bandwidth=1e10))
    found = verify_plan(graph, plan, graph.dummy_in or {})
    whole = sum(p.numel() * p.element_size() for p in graph.model.parameters())
    return {**found.record(), "whole_bytes": whole, "planned_bytes": plan.cost.parameter_bytes}


def large_plans() -> dict[str, Any]:
    """Plans of Llama-3 shapes, and what planning one axis given the other loses."""
    records = in_processes()
    bounds = plan_limits(records)
    print(tabulate([(n, *pair) for n, pair in bounds.items()], ("measure", "value", "at most")))
    return {
        "large": records,
        "large_limits": bounds,
        "large_depth_exponent": depth_exponent(records),
        "axis_by_axis": axis_by_axis(),
        "peer": PEER,
    }


def main() -> int:
    """Measure, print tables, write bench/results/shard.json; 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--only", choices=PROGRAMS, help="run this part, and measure no time")
    options = parser.parse_args()
    if options.only:
        program = Path(__file__).with_name(PROGRAMS[options.only])
        return subprocess.run([sys.executable, str(program)], check=False).returncode
    transformers.logging.set_verbosity_error()
    rows = []
    for layers in (12, 24, 48):
        graph = bert(layers, options.batch, options.length)
        for training in (False, True):
            found = planning(graph, training, options.rounds)
            rows.append({"layers": layers, "training": training, **found})
    print(tabulate([{k: v for k, v in r.items() if k != "collectives"} for r in rows], "keys"))
    times = {r["layers"]: r["plan_seconds"] for r in rows if r["training"]}
    results: dict[str, Any] = {
        "plans": rows,
        "depth_exponent": math.log2(times[48] / times[12]) / 2,
        "seconds_at_12_layers": times[12],
        "run": run(4, 32),
        **large_plans(),
        "input": {"batch": options.batch, "length": options.length, "mesh": MESH},
    }
    limits = [(key, results[key], limit) for key, limit in LIMITS.items()]
    print(tabulate(limits, headers=("measure", "value", "at most"), floatfmt=".3f"))
    print(tabulate(results["run"].items()))
    print(save("shard", {**results, "limits": LIMITS}))
    pairs = [*results["large_limits"].values(), *((results[k], v) for k, v in LIMITS.items())]
    broken = any(value > limit for value, limit in pairs)
    return int(broken or not results["run"]["is_equal"])


if __name__ == "__main__":
    sys.exit(main())
