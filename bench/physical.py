"""Designs on a part: routed clock over seeds, cells, slowest path, bitstream, images per second.

    python bench/physical.py linear
    python bench/physical.py mlp
    python bench/physical.py cnn
    python bench/physical.py vit --target-mhz 120 --seeds 1
    python bench/physical.py components

`linear`: Linear(16 -> 16) + ReLU, 8 bits, 4 x 4 lanes, on ecp5-25k. `mlp`, `cnn`: the networks of
examples/digits_hardware.py; `vit`: that of hardware_transformer.py; all three on ecp5-85k.
`components`: the clock of single components. Pins are serial: three for each stream. Netlists are
simulated on a few images, at full rate and with stalls, and every bit must be right.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from hardware import linear_relu
from hardware_transformer import trained_vit
from measuring.checked import once
from measuring.loading import load
from measuring.record import save_section

from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.design import Design
from chop.hw.design.samples import codes
from chop.hw.design.stream import Stream
from chop.hw.flow.route.flow import Routed, RouteOptions, records, route
from chop.hw.library.components import (
    AvgPool,
    BatchNorm,
    Conv2d,
    Fifo,
    HardSwish,
    LayerNorm,
    LeakyRelu,
    Linear,
    Matmul,
    MaxPool,
    Mul,
    Softmax,
)
from chop.hw.library.fixed_linear import sample_weights
from chop.hw.library.fixed_norm import Affine
from chop.hw.lower import Lowered, Parallelism, lower
from chop.hw.sim.component_check import bench_design
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import random_inputs
from chop.hw.timing.cycles import interval

digits_hardware = load("examples/digits_hardware.py")
BYTE = Fixed(8, 4)
SIMULATED = 4
"""Images that go through a netlist."""


@dataclass(frozen=True)
class Subject:
    """A design, and inputs of it."""

    design: Design
    inputs: Mapping[str, Ints]


def linear(args: argparse.Namespace) -> Subject:
    """The layer of bench/hardware.py."""
    design = linear_relu()
    return Subject(design, random_inputs(design, 20))


def digits(name: str, args: argparse.Namespace) -> Subject:
    """A network trained on the digits."""
    torch.manual_seed(0)
    data = digits_hardware.load()
    model = digits_hardware.train(digits_hardware.MODELS[name](), data)
    graph = digits_hardware.quantize(model, data.test_images[:2])
    return _subject(lower(graph, Parallelism(4)), data)


def vit(args: argparse.Namespace) -> Subject:
    """The vision transformer, trained in the hardware's own arithmetic."""
    graph, data, _ = trained_vit(args.trained)
    return _subject(lower(graph, Parallelism(2)), data)


def _subject(lowered: Lowered, data: Any) -> Subject:
    return Subject(lowered.design, lowered.encode(data.test_images[:SIMULATED]))


SUBJECTS: dict[str, tuple[str, Callable[[argparse.Namespace], Subject]]] = {
    "linear": ("ecp5-25k", linear),
    "mlp": ("ecp5-85k", lambda args: digits("mlp", args)),
    "cnn": ("ecp5-85k", lambda args: digits("cnn", args)),
    "vit": ("ecp5-85k", vit),
}


def measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """From the design to its bitstream."""
    part, make = SUBJECTS[args.section]
    subject = make(args)
    design = subject.design
    run = once(
        args.section,
        lambda: _route(design, scratch, args.device or part, args, subject.inputs),
        lambda routed: routed.mhz > 0 and routed.bitstream.stat().st_size > 0,
    )
    routed = run.result
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(routed.bitstream, args.keep / f"{args.section}{routed.bitstream.suffix}")
    pace = interval(design)
    return {
        **_told(routed),
        "bitstream_bytes": routed.bitstream.stat().st_size,
        "cycles_between_tensors": pace,
        "tensors_per_second": routed.mhz * 1e6 / pace,
        "multipliers_predicted": design.cost().multipliers,
        "seconds": run.seconds,
    }


def _route(
    design: Design,
    scratch: Path,
    part: str,
    args: argparse.Namespace,
    inputs: Mapping[str, Ints] | None,
) -> Routed:
    hardware = emit(design, scratch)
    return route(
        hardware,
        design.interface(),
        part,
        RouteOptions(tuple(args.seeds), args.target_mhz, args.simulate, args.jobs, args.logic_mhz),
        stages=[stage.name for stage in design.stages],
        vectors=None if inputs is None else (inputs, design.golden(inputs)),
        progress=lambda text: print(f"    {text}", flush=True),
    )


def _told(routed: Routed) -> dict[str, Any]:
    return {
        **records(routed),
        "bitstream": routed.bitstream.name,
        "path": [asdict(step) for step in routed.path],
    }


def components() -> dict[str, Any]:
    """What limited the clock, each alone."""

    def rows(*shape: int, lanes: int = 1) -> Stream:
        return Stream(shape, lanes, BYTE)

    eight = rows(64, lanes=2)
    norm = (codes(BYTE, 8), codes(BYTE, 8, seed=8), BYTE, BYTE)
    convolution = sample_weights(8, 27)
    return {
        "Linear, 16 input lanes": Linear(rows(16, lanes=16), sample_weights(16, 16), BYTE, 1),
        "Linear, 64 input lanes": Linear(rows(64, lanes=64), sample_weights(16, 64), BYTE, 1),
        "convolution 3x3 on 28x28x3": Conv2d(
            rows(28, 28, 3), (3, 3), padding=(1, 1), weights=convolution, format=BYTE, lanes=1
        ),
        "average pooling 3x3": AvgPool(rows(9, 9, 4), (3, 3), (3, 3), format=BYTE),
        "global average pooling 7x7": AvgPool(rows(7, 7, 4), (7, 7), (7, 7), format=BYTE),
        "hardswish": HardSwish(eight, BYTE),
        "product": Mul(eight, eight, BYTE),
        "batch norm": BatchNorm(rows(8, 8, lanes=2), BYTE, *norm),
        "leaky ReLU": LeakyRelu(eight, BYTE),
        "maximum pooling 2x2": MaxPool(rows(8, 8, 8, lanes=4), (2, 2), (2, 2), format=BYTE),
        "Linear, weights in block RAM": Linear(rows(32, lanes=2), sample_weights(32, 32), BYTE, 2),
        "layer norm, rows of 32": LayerNorm(
            rows(16, 32, lanes=2),
            Affine(codes(BYTE, 32), BYTE, codes(BYTE, 32, seed=8), BYTE),
            BYTE,
        ),
        "softmax, rows of 16": Softmax(rows(16, 16, lanes=2), Fixed(8, 7, is_signed=False)),
        "matrix product 16x16x16": Matmul(
            rows(16, 16, lanes=2), rows(16, 16, lanes=2), BYTE, lanes=2
        ),
        "FIFO of 256 beats": Fifo(rows(64, lanes=2), 256),
    }


def measure_components(args: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """The clock of each."""
    found = []
    for number, (name, component) in enumerate(components().items()):
        print(name, flush=True)
        part = args.device or "ecp5-85k"
        routed = _route(bench_design([component]), scratch / str(number), part, args, None)
        told = _told(routed)
        kept = {k: told[k] for k in ("part", "clocks", "mhz", "mhz_worst", "used", "packed")}
        stages = list(dict.fromkeys(step["where"] for step in told["path"]))
        predicted = component.cost().multipliers
        found.append({"component": name, **kept, "multipliers_predicted": predicted,
                      "slowest_path": [stages[0], stages[-1]]})  # fmt: skip
        print("   ", found[-1]["clocks"], found[-1]["used"], flush=True)
    return found


def main() -> None:
    """Measure a section and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("section", choices=[*SUBJECTS, "components"])
    parser.add_argument("--device", help="another part: see `mase list parts`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--target-mhz", type=float, default=200.0)
    parser.add_argument("--logic-mhz", type=float, default=100.0, help="what logic is mapped for")
    parser.add_argument("--jobs", type=int, default=1, help="seeds placed at a time")
    parser.add_argument("--simulate", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--trained", type=Path, default=Path("out/transformer"))
    parser.add_argument("--keep", type=Path, help="a folder for the bitstream")
    args = parser.parse_args()
    run = measure_components if args.section == "components" else measure
    with tempfile.TemporaryDirectory() as scratch:
        results = run(args, Path(scratch))
    print(results)
    print(save_section("physical", args.section, results))


if __name__ == "__main__":
    main()
