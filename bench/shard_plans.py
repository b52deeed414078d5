"""Plans of Llama-3 shapes on large meshes: time from model to plan, memory, proved gap.

`python bench/shard_plans.py 8B` plans one model in this process and prints its record as JSON. The
model is on the meta device: no weights exist. It is the decoder without the language-model head.
`bench/shard.py` runs every row of `MODELS` in a process of its own and stores the records.
"""

from __future__ import annotations

import itertools
import json
import math
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

# This folder last, in every process: its graph.py is not the package.
sys.path.sort(key=lambda folder: folder == str(Path(__file__).parent))

import torch
import transformers
from measuring.checked import once

import chop.passes as passes
from chop import MaseGraph
from chop.distributed import Mesh, hand_plans, make_pipeline, make_plan
from chop.distributed.plan import Plan, price
from chop.distributed.program import program_of
from chop.distributed.solver import solve
from chop.distributed.variables import variables

LINKS = {"bandwidth": (5e10, 4e11)}
"""Bytes per second between nodes (50 GB/s) and inside a node (400 GB/s)."""
MEMORY = 80_000_000_000
"""Bytes of a device."""
SHAPES = {
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32},
    "70B": {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64},
    "405B": {"hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128},
}
LAYERS = {"8B": 32, "70B": 80, "405B": 126}
MODELS: dict[str, dict[str, Any]] = {
    "8B, 8 layers": {"model": "8B", "layers": 8, "rows": 64},
    "8B, 16 layers": {"model": "8B", "layers": 16, "rows": 64},
    "8B": {"model": "8B", "rows": 64, "limit": 5.0},
    "8B in 56 GB": {"model": "8B", "rows": 64, "memory": 56_000_000_000, "limit": 5.0},
    "8B in 24 GB": {"model": "8B", "rows": 64, "memory": 24_000_000_000, "limit": 5.0},
    "8B, overlap": {"model": "8B", "rows": 64, "limit": 5.0, "overlaps": True},
    "8B, 2,048 devices": {"model": "8B", "rows": 2048, "shape": (32, 64)},
    "70B": {"model": "70B", "rows": 64, "limit": 20.0},
    "405B": {
        "model": "405B",
        "rows": 8,
        "stages": 16,
        "micro_batches": 32,
        "limit": 60.0,
    },
}
"""Rows of one (micro-)batch of 4,096 tokens; mesh 8×8, per stage; `limit`: seconds to the plan.

The limit is one of processor time: wall time depends on what else the machine does. 405B on 16×8×8
devices is a pipeline of 16 stages on 8×8 devices each.
"""
PEER = {
    "source": "autoparallel, Llama-3-8B on a two-axis mesh, published by its authors",
    "seconds": 46.8,
    "gibibytes": 2.76,
}
GAP = 0.005
"""Largest gap that is allowed, as a share of the step time."""


def llama(model: str, rows: int, layers: int | None = None) -> tuple[Any, torch.Tensor]:
    """Return a decoder on the meta device, and token ids."""
    transformers.logging.set_verbosity_error()
    config = transformers.LlamaConfig(
        **SHAPES[model],
        num_hidden_layers=layers or LAYERS[model],
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
        use_cache=False,
    )
    with torch.device("meta"):
        decoder = transformers.LlamaModel(config).to(torch.bfloat16)
        return decoder, torch.zeros(rows, 4096, dtype=torch.long)


def captured(decoder: Any, ids: torch.Tensor) -> MaseGraph:
    """Return the annotated graph of a decoder."""
    graph = MaseGraph(decoder, dummy_in={"input_ids": ids})
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph)
    return graph


def measured(name: str) -> dict[str, Any]:
    """Plan one row of `MODELS`; return its times, memory, cost and gap."""
    row = MODELS[name]
    decoder, ids = llama(row["model"], row["rows"], row.get("layers"))
    links = {**LINKS, "overlaps": row.get("overlaps", False)}
    mesh = Mesh(row.get("shape", (8, 8)), memory=row.get("memory", MEMORY), **links)
    capture = once("capture", lambda: captured(decoder, ids), lambda g: len(g.nodes) > 0)
    graph = capture.result
    stages = row.get("stages", 1)
    if stages == 1:
        done = once(name, lambda: make_plan(graph, mesh), lambda plan: plan.gap <= GAP)
        cost = cost_of(done.result, graph)
    else:
        counts = {"stages": stages, "micro_batches": row["micro_batches"]}
        done = once(
            name, lambda: make_pipeline(graph, mesh, **counts), lambda p: len(p.stages) == stages
        )
        cost = {k: v for k, v in done.result.record().items() if k != "stages"}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # kibibytes on Linux
    return {
        "model": name,
        "devices": mesh.devices * stages,
        "capture_seconds": capture.seconds,
        "plan_seconds": done.seconds,
        "plan_processor_seconds": done.processor_seconds,
        "seconds": capture.seconds + done.seconds,
        "processor_seconds": capture.processor_seconds + done.processor_seconds,
        "peak_gibibytes": peak,
        "weights": sum(p.numel() for p in decoder.parameters()),
        **cost,
    }


def cost_of(plan: Plan, graph: MaseGraph) -> dict[str, Any]:
    """Return the cost of a plan and how much slower the hand plans are."""
    others = hand_plans(graph, plan.mesh)
    step = plan.cost.step_seconds
    limit = plan.mesh.memory or math.inf
    fitting = {n: o.cost.step_seconds for n, o in others.items() if o.cost.memory_bytes <= limit}
    assert all(plan.bound_seconds <= seconds for seconds in fitting.values()), fitting
    return {
        "step_seconds": step,
        "bound_seconds": plan.bound_seconds,
        "gap": plan.gap,
        "memory_bytes": plan.cost.memory_bytes,
        "recomputed_segments": len(plan.recomputed),
        "hand_plans": {n: o.cost.step_seconds / step for n, o in others.items()},
        "hand_plans_that_fit": sorted(fitting),
    }


def axis_by_axis() -> list[dict[str, Any]]:
    """Compare the joint programme with planning one axis given the other, by the same cost."""
    rows = []
    for bandwidth in ((1e11, 1e11), (1e10, 4e11)):
        graph = captured(*llama("8B", 8, 2))
        program, mesh = program_of(graph), Mesh((8, 8), bandwidth=bandwidth)
        seconds = []
        for order in itertools.permutations((0, 1)):
            chosen: dict[int, Any] = {}
            for axis in order:
                choices = variables(program, mesh, axis, chosen, training=True)
                chosen[axis] = solve(choices, 1e-18).chosen
            seconds.append(price(program, mesh, chosen, training=True).step_seconds)
        joint = make_plan(graph, mesh)
        row = {"bandwidth": bandwidth, "axis_by_axis_seconds": min(seconds)}
        rows.append({**row, "joint_seconds": joint.cost.step_seconds, "gap": joint.gap})
    return rows


def in_processes() -> list[dict[str, Any]]:
    """Return the record of every model, each measured in a new process."""
    records = []
    for name in MODELS:
        command = [sys.executable, str(Path(__file__)), name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        records.append(json.loads(done.stdout.splitlines()[-1]))
    return records


def depth_exponent(records: list[dict[str, Any]]) -> float:
    """Return the exponent with which the time to plan 8B grows from 8 to 32 layers."""
    seconds = {r["model"]: r["plan_processor_seconds"] for r in records}
    return math.log2(seconds["8B"] / seconds["8B, 8 layers"]) / 2


def limits(records: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return measured value and limit by name."""
    bounded = {r["model"]: r for r in records if "limit" in MODELS[r["model"]]}
    times = {
        f"{n}, processor seconds": (r["processor_seconds"], MODELS[n]["limit"])
        for n, r in bounded.items()
    }
    memory = {f"{n}, GiB": (r["peak_gibibytes"], 2.0) for n, r in bounded.items() if "8B" in n}
    gaps = {f"{n}, gap": (r["gap"], GAP) for n, r in bounded.items()}
    return times | memory | gaps


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1])))
