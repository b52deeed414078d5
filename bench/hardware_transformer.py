"""Transformers in RTL: exactness, accuracy, cycles, area, and the time that all of it takes.

    python bench/hardware_transformer.py vit
    python bench/hardware_transformer.py bert --model out/ptq/bert --data DATA/imdb

`vit`: a vision transformer of two layers on scikit-learn's 8 x 8 digits, trained in floating point,
then with the hardware's own arithmetic; all 360 test images through PyTorch, the integers of the
design and its RTL. `bert`: bert-tiny as `bench/ptq/fine_tune.py` writes it, from the ids of tokens
to the classes of reviews.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from record import save_section
from torch import Tensor, nn
from transformer_formats import fixed_rules
from transformer_models import DigitsVit

from chop import MaseGraph
from chop.hw.cycles import NO_STALLS, Stalls, interval, simulate_control
from chop.hw.emit import emit
from chop.hw.lower import Lowered, Parallelism, lower
from chop.hw.simulate import Simulator, lint
from chop.hw.stream import divisors
from chop.hw.synth import synthesize
from chop.hw.verify import verify
from chop.ir.ops import node_module
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass

ROOT = Path(__file__).resolve().parents[1]


def _load(path: str) -> Any:
    """A module of another folder, by its file."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None, f"{path} is not there"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- digits ----------------------------------------------------------------------------------------


def train(model: nn.Module, data: Any, epochs: int, rate: float) -> None:
    """Train in place; the rate rises and falls once."""
    optimiser = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.02)
    steps = epochs * -(-len(data.train_images) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(data.train_images)).split(64):
            optimiser.zero_grad()
            F.cross_entropy(model(data.train_images[batch]), data.train_labels[batch]).backward()
            optimiser.step()
            schedule.step()
    model.eval()


@torch.no_grad()
def accuracy(model: Any, images: Tensor, labels: Tensor) -> float:
    """The part of the images that the model names rightly."""
    return float((model(images).argmax(1) == labels).double().mean())


VIT_WIDTHS: dict[str, dict[str, int]] = {
    op: {} for op in ("conv2d", "linear", "layer_norm", "softmax", "gelu", "matmul", "add")
}


def quantized_graph(model: nn.Module, inputs: tuple[Tensor, ...], widths: Any) -> MaseGraph:
    """The graph of `model` in fixed point whose places come from `inputs`."""
    graph = MaseGraph(model.eval(), dummy_in=inputs if len(inputs) > 1 else inputs[0])
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    graph, _ = quantize_transform_pass(graph, fixed_rules(graph, inputs, widths))
    return graph


def trained_vit(epochs: int, tuning: int) -> tuple[MaseGraph, Any, dict[str, Any]]:
    """The quantised graph, the digits, and what training reached."""
    torch.manual_seed(0)
    data = _load("examples/digits_hardware.py").load()
    model = DigitsVit()
    train(model, data, epochs, 4e-3)
    told = {"float": accuracy(model, data.test_images, data.test_labels)}
    graph = quantized_graph(model, (data.train_images[:256],), VIT_WIDTHS)
    told["rounded"] = accuracy(graph.model, data.test_images, data.test_labels)
    train(graph.model, data, tuning, 5e-4)
    told["trained_in_integers"] = accuracy(graph.model, data.test_images, data.test_labels)
    return graph, data, told


# -- designs ---------------------------------------------------------------------------------------


def measure_design(
    graph: MaseGraph, lowered: Lowered, inputs: tuple[Tensor, ...], directory: Path
) -> dict[str, Any]:
    """All inputs through golden integers and RTL, and the cycles of both models."""
    design = lowered.design
    started = time.perf_counter()
    emit(design, directory)
    emitted = time.perf_counter()
    simulator = Simulator(design, directory)
    built = time.perf_counter()
    codes = lowered.encode(*inputs)
    verdict = simulator.run(codes).require_exact()
    simulated = time.perf_counter()
    (outputs,) = lowered.decode(verdict.outputs)
    with torch.no_grad():
        software = graph.model(*inputs)
    software = software["logits"] if isinstance(software, dict) else software
    beats = design.output_streams()["data_out_0"].beats
    ends = verdict.timing.tensor_ends("data_out_0", beats)
    return {
        "tensors": len(outputs),
        "values_compared": verdict.compared,
        "values_exact": verdict.compared - verdict.mismatches,
        "values_equal_to_pytorch": int((outputs.float() == software).sum()),
        "lint": lint(directory) or "clean",
        "cycles": verdict.cycles,
        "bound": design.cycles(),
        "interval": interval(design),
        "interval_in_rtl": (ends[-1] - ends[len(ends) // 2]) / (len(ends) - 1 - len(ends) // 2),
        "latency": ends[0] + 1,
        "multipliers": design.cost().multipliers,
        "memory_kbit": design.cost().memory_bits // 1024,
        "fifos": {f"{w.stage}.{w.port}": d for w, d in lowered.depths.items()},
        "as_predicted": [
            _as_predicted(simulator, lowered, codes, stalls)
            for stalls in (NO_STALLS, Stalls(0.7, 0.6, 5))
        ],
        "emit_seconds": emitted - started,
        "build_seconds": built - emitted,
        "simulate_seconds": simulated - built,
        "simulated_cycles_per_second": round(verdict.cycles / (simulated - built)),
    }


def _as_predicted(simulator: Simulator, lowered: Lowered, codes: Any, stalls: Stalls) -> Any:
    """Beats of the first tensors that leave in the cycle that the cycle model says."""
    few = {name: each[:8] for name, each in codes.items()}
    verdict = simulator.run(few, stalls).require_exact()
    told = simulate_control(lowered.design, len(next(iter(few.values()))), stalls)
    found = [int(t) for t in verdict.timing.outputs["data_out_0"]]
    wanted = [int(t) for t in told.outputs["data_out_0"]]
    return {"stalls": stalls != NO_STALLS, "beats": len(wanted), "same": found == wanted}


def cells(directory: Path) -> dict[str, Any]:
    """Yosys' count for 7-series."""
    started = time.perf_counter()
    area = synthesize(directory)
    return {
        "lut": area.lut,
        "ff": area.ff,
        "dsp": area.dsp,
        "lutram": area.lutram,
        "bram": area.bram,
        "seconds": time.perf_counter() - started,
    }


def folding(graph: MaseGraph, cycles: int, most: int) -> Parallelism:
    """Lanes of each product so that a token takes about `cycles`; at most `most` on each side."""
    by_node = {}
    for node in graph.fx_graph.nodes:
        if node.meta["mase"].common.mase_op != "linear":
            continue
        outputs, inputs = node_module(node).weight.shape
        wanted = max(-(-outputs * inputs // cycles), 1)
        pairs = [
            (i, o)
            for i in divisors(inputs)
            for o in divisors(outputs)
            if i * o >= wanted and max(i, o) <= most
        ]
        by_node[node.name] = min(pairs, key=lambda p: (p[0] * p[1], abs(p[0] - p[1]), p))
    return Parallelism(4, by_node)


def measure_vit(scratch: Path, lanes: int = 2) -> dict[str, Any]:
    """From training to cells."""
    graph, data, told = trained_vit(epochs=40, tuning=10)
    started = time.perf_counter()
    lowered = lower(graph, Parallelism(lanes))
    lowering = time.perf_counter() - started
    agreement = verify(graph, lowered, data.test_images)
    found = measure_design(graph, lowered, (data.test_images,), scratch)
    return {
        "accuracy": told,
        "lower_seconds": lowering,
        "verified_values": agreement.values,
        **found,
        "xc7": cells(scratch),
    }


def main() -> None:
    """Measure a section and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("section", choices=("vit",))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = {"vit": measure_vit}[args.section](Path(scratch))
    results["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(results)
    print(save_section("hardware_transformer", args.section, results))


if __name__ == "__main__":
    main()
