"""What the hardware back end reaches: exactness, cycles, area and time.

    python bench/hardware.py [--quick]

1. Linear(16 -> 16) + ReLU, 8 bits, 4 x 4 lanes: cycles per vector, cells on xc7.
2. Cycle model against simulation, beat by beat, for every design of the list.
3. All 360 test digits through the MLP's and the residual CNN's RTL: time with the build included.
4. The MLP once through cocotb.
5. The mutation campaign: every mutant must be noticed (left out with --quick).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring.checked import once
from measuring.loading import load
from measuring.record import save

from chop.actions import simulate
from chop.hw.arith.golden import Fixed
from chop.hw.design.design import Design
from chop.hw.design.stream import Stream
from chop.hw.flow.synth import synthesize
from chop.hw.library.components import Linear, Relu, Weights
from chop.hw.lower import Lowered, Parallelism, lower
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import Simulator, random_inputs
from chop.hw.streams.builder import Builder
from chop.hw.timing.cycles import NO_STALLS, Stalls, balanced, interval, simulate_control
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.passes.graph.transforms import (
    emit_bram_transform_pass,
    emit_cocotb_transform_pass,
    emit_internal_rtl_transform_pass,
    emit_verilog_top_transform_pass,
)

ROOT = Path(__file__).resolve().parents[1]


digits_hardware = load("examples/digits_hardware.py")
designs = load("tests/hw/designs.py")
BYTE = Fixed(8, 4)
MLPS = {
    "16-32-8": ((16, 32, 8), (4, 4, 4)),
    "16-64-32-8": ((16, 64, 32, 8), (4, 8, 4, 2)),
    "64-64-64-16": ((64, 64, 64, 16), (8, 8, 4, 4)),
    "16-16-16-16-16": ((16,) * 5, (16,) * 5),
    "12-24-6": ((12, 24, 6), (3, 6, 2)),
}


def linear_relu() -> Design:
    """Linear(16 -> 16) with full-range random weights and bias, and a rectifier."""
    rng = np.random.default_rng(0)
    weight, bias = rng.integers(-128, 128, (16, 16)), rng.integers(-128, 128, 16)
    builder = Builder("top")
    x = builder.input("data_in_0", Stream((16,), 4, BYTE))
    layer = Linear(builder.stream(x), Weights(weight, BYTE, bias, BYTE), BYTE, 4)
    y = builder.add("fc1", layer, x)
    builder.output("data_out_0", builder.add("relu", Relu(builder.stream(y), BYTE), y))
    return builder.build()


def measure_linear(scratch: Path) -> dict[str, Any]:
    """Cycles per vector, exactness and cells of the linear layer."""
    design = linear_relu()
    directory = emit(design, scratch / "linear")
    verdict = Simulator(design, directory).run(random_inputs(design, 2000)).require_exact()
    area = synthesize(directory)
    ends = verdict.timing.tensor_ends("data_out_0", design.output_streams()["data_out_0"].beats)
    return {
        "values_exact": verdict.compared - verdict.mismatches,
        "values_compared": verdict.compared,
        "cycles_per_vector": (ends[-1] - ends[1]) / (len(ends) - 2),
        "first_vector_cycles": ends[0] + 1,
        "xc7": {"lut": area.lut, "ff": area.ff, "dsp": area.dsp, "lutram": area.lutram},
        "bar": {"cycles_per_vector": 16, "lut": 373, "ff": 408, "dsp": 16},
    }


def cycle_designs() -> Iterator[tuple[str, Design]]:
    """The designs whose cycles are predicted, without FIFOs and with those the model sizes."""
    yield "linear 16-16", linear_relu()
    for name, (sizes, lanes) in MLPS.items():
        design = designs.mlp(sizes, lanes)
        yield f"mlp {name}", design
        if interval(design) > design.cycles():
            yield f"mlp {name} with FIFOs", balanced(design)
    yield "residual", balanced(designs.residual())


def measure_cycles(scratch: Path, tensors: int = 50) -> list[dict[str, Any]]:
    """Predicted and simulated cycles, at full rate and under random stalls."""
    rows = []
    for number, (name, design) in enumerate(cycle_designs()):
        simulator = Simulator(design, emit(design, scratch / f"cycles{number}"))
        for stalls in (NO_STALLS, Stalls(0.7, 0.6, 5)):
            verdict = simulator.run(random_inputs(design, tensors), stalls).require_exact()
            seen = [int(t) for t in verdict.timing.outputs["data_out_0"]]
            took = once(
                f"cycle model of {name}",
                lambda design=design, stalls=stalls: simulate_control(design, tensors, stalls),
                lambda predicted, seen=seen: list(predicted.outputs["data_out_0"]) == seen,
            )
            predicted, rate = took.result, took.result.cycles / took.seconds
            rows.append(
                {
                    "design": name,
                    "stalls": stalls != NO_STALLS,
                    "bound": design.cycles(),
                    "interval": interval(design),
                    "simulated_cycles": verdict.cycles,
                    "predicted_cycles": predicted.cycles,
                    "every_beat_as_predicted": True,  # else `once` raises
                    "model_cycles_per_second": round(rate),
                }
            )
    return rows


def measure_digits(scratch: Path, name: str) -> dict[str, Any]:
    """All test images through the RTL of a trained model, from the graph to the verdict."""
    torch.manual_seed(0)
    data = digits_hardware.load()
    graph = digits_hardware.quantize(
        digits_hardware.train(digits_hardware.MODELS[name](), data), data.test_images[:2]
    )

    def built() -> tuple[Lowered, Simulator]:
        lowered = lower(graph, Parallelism(4))
        return lowered, Simulator(lowered.design, emit(lowered.design, scratch / name))

    build = once("build", built, lambda pair: pair[0].design.cycles() > 0)
    lowered, simulator = build.result
    codes = lowered.encode(data.test_images)
    run = once("simulate", lambda: simulator.run(codes), lambda verdict: verdict.require_exact())
    verdict = run.result
    (outputs,) = lowered.decode(verdict.outputs)
    with torch.no_grad():
        software = graph.model(data.test_images)
    predicted = simulate_control(lowered.design, 4)
    beats = len(predicted.outputs["data_out_0"])
    return {
        "model": name,
        "images": len(outputs),
        "values_exact": verdict.compared - verdict.mismatches,
        "values_compared": verdict.compared,
        "right_in_rtl": int((outputs.argmax(1) == data.test_labels).sum()),
        "right_in_software": int((software.argmax(1) == data.test_labels).sum()),
        "cycles": verdict.cycles,
        "interval": interval(lowered.design),
        "bound": lowered.design.cycles(),
        "first_images_as_predicted": [int(t) for t in verdict.timing.outputs["data_out_0"][:beats]]
        == list(predicted.outputs["data_out_0"]),
        "seconds_with_build": build.seconds + run.seconds,
        "simulated_cycles_per_second": round(verdict.cycles / run.seconds),
    }


def measure_cocotb(scratch: Path) -> dict[str, Any]:
    """The MLP through the emitted cocotb bench, on a few images."""
    torch.manual_seed(0)
    data = digits_hardware.load()
    graph = digits_hardware.quantize(digits_hardware.DigitsMlp().eval(), data.test_images[:2])
    add_hardware_metadata_analysis_pass(graph, {"max_parallelism": 4})
    args = {"project_dir": scratch / "cocotb"}
    emit_verilog_top_transform_pass(graph, args)
    emit_internal_rtl_transform_pass(graph, args)
    emit_bram_transform_pass(graph, args)
    emit_cocotb_transform_pass(graph, {**args, "inputs": data.test_images[:10]})
    run = once(
        "cocotb",
        lambda: simulate(scratch / "cocotb", simulator="cocotb"),
        lambda result: result.tests > 0,  # a failed test raises
    )
    result: Any = run.result
    return {"simulator": result.simulator, "tests_passed": result.tests, "seconds": run.seconds}


def measure_mutants() -> dict[str, Any]:
    """The mutation campaign of the tests: every fault tried, and whether it was noticed."""
    tests = "tests/hw/test_mutations.py"
    command = [sys.executable, "-m", "pytest", "-q", tests, "-n", "2", "-rA"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    tried = {
        line.split("::", 1)[1]: line.startswith("PASSED")
        for line in lines
        if line.startswith(("PASSED ", "FAILED ")) and "::" in line
    }
    return {"passed": done.returncode == 0, "summary": lines[-1], "noticed": tried}


def main() -> None:
    """Measure everything, print it, keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out the mutation campaign")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        results: dict[str, Any] = {
            "linear_16_16": measure_linear(scratch),
            "cycles": measure_cycles(scratch),
            "digits": [measure_digits(scratch, name) for name in ("mlp", "cnn")],
            "cocotb": measure_cocotb(scratch),
        }
        if not quick:
            results["mutants"] = measure_mutants()
    for name, found in results.items():
        print(name)
        for row in found if isinstance(found, list) else [found]:
            print("   ", row)
    if not quick:
        print(save("hardware", results))


if __name__ == "__main__":
    main()
