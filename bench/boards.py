"""Networks on FPGA boards: project, simulation over the UART, bitstream, cells and clock.

    python bench/boards.py digits
    python bench/boards.py wake_word --models MODELS
    python bench/boards.py bus

`digits`: the multilayer perceptron of examples/digits_hardware.py. `wake_word`: the network for the
word "alexa" of the package openwakeword 0.5.1 (weights CC BY-NC-SA 4.0), trained by its authors,
with 8-bit weights. Its inputs are the embeddings, by that package, of the recording in the package
pyannote-audio. That recording does not contain the word, so the logits are compared with those of
the float network, and no accuracy is given. Both packages are unpacked in the folder MODELS.

`bus`: random accesses and transfers at the AXI ports of a small design in Icarus, with wrong TLAST
and TKEEP, pauses of every channel and the counters compared after each 2,000 accesses.

The whole board is simulated with the host program, on a clean line and on one that damages and
loses bytes. No real board is used.
"""

from __future__ import annotations

import argparse
import tempfile
import wave
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring.checked import once
from measuring.loading import load
from measuring.record import save_section
from torch import Tensor, nn

from chop.actions.board_project import BoardBuild, build_board
from chop.actions.fixed_point import fitted_fixed_point, observe_ranges
from chop.actions.hardware import emit_hardware
from chop.export import from_onnx
from chop.hw.boards.board_sim import simulate_board
from chop.hw.boards.board_top import payloads
from chop.hw.flow.route.flow import RouteOptions, records
from chop.hw.interfaces.axi_fuzz import fuzz_ports
from chop.hw.interfaces.axi_wrapper import emit_axi
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.passes.graph.transforms import quantize_transform_pass

FRAME_BYTES = 10
"""Bytes of a frame beside its payload."""
BITS_PER_BYTE = 10
"""UART bits of a byte, with start and stop bit."""
FAULT_RATE = 0.0005
HOP_SECONDS = 0.08
"""Time between two windows of the wake-word network."""


@dataclass(frozen=True)
class Network:
    """A quantised graph, its test inputs, the multipliers to use and further facts."""

    graph: MaseGraph
    inputs: Tensor
    max_multipliers: int
    facts: dict[str, Any]
    seconds_per_input: float | None = None


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
    return Network(graph, data.test_images, 24, {"accuracy": right})


def wake_word(args: argparse.Namespace) -> Network:
    """Return the network of the wake word, with the difference of its logits."""
    folder = args.models / "openwakeword/openwakeword/resources/models"
    layer = from_onnx(folder / "alexa_v0.1.onnx").model.get_submodule
    model = nn.Sequential(
        nn.Flatten(), layer("1"), nn.ReLU(), layer("3"), nn.ReLU(), layer("5")
    ).eval()
    rows = embeddings(folder, args.models / "pyannote-audio/pyannote/audio/sample/sample.wav")
    graph = MaseGraph(model, dummy_in=rows[:2])
    rules = fitted_fixed_point(observe_ranges(graph, [rows[::2]]), 8)
    rules["_5"]["config"] |= {"data_out_width": 8, "data_out_frac_width": 2}
    graph, _ = quantize_transform_pass(graph, rules)
    held_out = rows[1::2]
    exact, logits = model(held_out).detach(), graph.model(held_out).detach()
    facts = {
        "windows": len(held_out),
        "logits_from_to": [exact.min().item(), exact.max().item()],
        "mean_difference": (logits - exact).abs().mean().item(),
        "largest_difference": (logits - exact).abs().max().item(),
        "same_verdict": ((logits > 0) == (exact > 0)).float().mean().item(),
    }
    return Network(graph, held_out[: args.windows], 32, facts, HOP_SECONDS)


def embeddings(folder: Path, recording: Path) -> Tensor:
    """Return windows of 16 embeddings of a recording, as openwakeword computes them."""
    import onnxruntime

    with wave.open(str(recording)) as opened:
        sound = np.frombuffer(opened.readframes(opened.getnframes()), "<i2").astype(np.float32)
    sessions = [
        onnxruntime.InferenceSession(str(folder / f"{name}.onnx"))
        for name in ("melspectrogram", "embedding_model")
    ]
    spectrum = sessions[0].run(None, {"input": sound[None]})[0].squeeze() / 10 + 2
    codes = [
        sessions[1].run(None, {"input_1": spectrum[None, k : k + 76, :, None]})[0].reshape(96)
        for k in range(0, len(spectrum) - 76, 8)
    ]
    return torch.from_numpy(np.stack([codes[k : k + 16] for k in range(len(codes) - 16)]))


NETWORKS: dict[str, Callable[[argparse.Namespace], Network]] = {
    "digits": digits,
    "wake_word": wake_word,
}


def measure(network: Network, args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Build the project, run the host program and return what was found."""
    run = once(
        args.section,
        lambda: build_board(
            network.graph,
            scratch,
            board=args.board,
            inputs=network.inputs,
            parallelism={"max_multipliers": network.max_multipliers},
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
    return {
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


def fuzz_bus(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Fuzz the AXI ports of a linear layer; a wrong answer, output or counter raises."""
    torch.manual_seed(0)
    rows = torch.randn(16, 8)
    graph = MaseGraph(nn.Sequential(nn.Linear(8, 6)).eval(), dummy_in=rows)
    rules = fitted_fixed_point(observe_ranges(graph, [rows]), 5)
    graph, _ = quantize_transform_pass(graph, rules)
    add_hardware_metadata_analysis_pass(graph, {"max_parallelism": 3})
    emit_hardware(graph, folder, inputs=rows)
    emit_axi(folder / "hardware")
    return {
        "seed": args.seeds[0],
        **fuzz_ports(folder / "hardware", args.accesses, seed=args.seeds[0]),
    }


def main() -> None:
    """Measure a network and store the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("section", choices=(*NETWORKS, "bus"))
    parser.add_argument("--board", default="ulx3s")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--inferences", type=int, default=1000, help="of each simulation")
    parser.add_argument("--windows", type=int, default=20, help="inputs of the wake-word network")
    parser.add_argument("--models", type=Path, default=Path("models"), help="unpacked packages")
    parser.add_argument("--accesses", type=int, default=100_000, help="reads and writes of `bus`")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if args.section == "bus":
            results = fuzz_bus(args, folder)
        else:
            results = measure(NETWORKS[args.section](args), args, folder)
    print(results)
    print(save_section("boards", args.section, results))


if __name__ == "__main__":
    main()
