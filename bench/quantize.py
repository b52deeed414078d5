"""How fast the number formats are, as ratios to copying the same tensor in the same run.

    python bench/quantize.py                     # every section this machine can run
    python bench/quantize.py --section cpu --repeats 31

Each section interleaves its programs, so that a busy moment hits all of them, and takes the
minimum and the median. Results go to bench/results/quantize_<section>.json.

Add a section: a function from `argparse.Namespace` to records, and its row in `SECTIONS`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

from chop.native import find_compiler, tune_allocator
from chop.nn.quantizers import (
    FP8,
    MXFP,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    Quantizer,
    kernels,
)
from chop.nn.quantizers.quantizer import EVERYWHERE

Records = list[dict[str, Any]]
Programs = Mapping[str, Callable[[], object]]

FORMATS: dict[str, tuple[Quantizer, float | None]] = {
    "integer 8.4": (Integer(8, 4), 1.5),
    "fp8 e4m3": (FP8("e4m3"), 1.5),
    "fp8 e5m2": (FP8("e5m2"), 1.5),
    "minifloat_ieee e4m3": (MinifloatIEEE(8, 4), 1.5),
    "minifloat_denorm e4m3": (MinifloatDenorm(8, 4), 1.5),
    "log 8": (Log(8), 1.5),
    "mxint 8": (MXInt(8), 1.5),
    "block_fp 8": (BlockFP(8), 1.5),
    "mxfp e4m3": (MXFP("e4m3"), 2.0),
    "mxfp e2m1": (MXFP("e2m1"), 2.0),
    "block_minifloat 8": (BlockMinifloat(8, 4), None),
    "block_log 8": (BlockLog(8), None),
}
"""The formats measured, and the largest ratio to a copy that the forward pass may have."""
BACKWARD_TARGET = 3.0
CLIPPED_SHARE = 0.01
SMALL_SIZE = 768
GPU_TARGETS = dict.fromkeys(
    ["integer 8.4", "mxint 8", "block_fp 8", "minifloat_ieee e4m3", "minifloat_denorm e4m3"], 0.9
)
"""The share of the copy bandwidth that a format must reach."""
QUEUED = 16
"""Runs timed together on a GPU."""


def interleave(programs: Programs, repeats: int) -> dict[str, list[float]]:
    """Seconds of each run of each program; the first round, which warms up, is dropped."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats + 1):
        for name, program in programs.items():
            start = time.perf_counter()
            kept = program()
            seconds[name].append(time.perf_counter() - start)
            del kept  # freed outside the clock, for the copy and the formats alike
    return {name: times[1:] for name, times in seconds.items()}


def cpu(options: argparse.Namespace) -> Records:
    """Forward, and forward with backward, against `tensor.clone()`.

    No element lies outside the range of its format, and the gradient passes as it is; the programs
    that say "clipped" have one in a hundred outside, and the gradient is masked.
    """
    torch.set_num_threads(options.threads)
    if options.tune_allocator:
        tune_allocator()
    x = torch.randn(options.size, options.size)
    gradient = torch.randn_like(x)
    clipped = torch.where(torch.rand_like(x) < CLIPPED_SHARE, 1e30 * x.sign(), x)
    programs: dict[str, Callable[[], object]] = {"clone": x.clone}
    targets: dict[str, float | None] = {"clone": None}
    for name, (quantizer, target) in FORMATS.items():
        programs |= forward_and_backward(name, quantizer, x, gradient)
        targets |= {name: target, f"{name} + backward": BACKWARD_TARGET if target else None}
        if quantizer.range != EVERYWHERE:
            added = forward_and_backward(f"{name}, clipped", quantizer, clipped, gradient)
            programs |= added
            targets |= dict.fromkeys(added)
    return ratios(interleave(programs, options.repeats), "clone", targets)


def forward_and_backward(
    name: str, quantizer: Quantizer, x: Tensor, gradient: Tensor
) -> dict[str, Callable[[], object]]:
    """The two programs of a format on the values of `x`."""
    leaf = x.detach().requires_grad_()
    return {
        name: lambda: quantizer(x),
        f"{name} + backward": lambda: torch.autograd.grad(quantizer(leaf), leaf, gradient),
    }


def calls(options: argparse.Namespace) -> Records:
    """Microseconds of a call on a small weight, where the way to the native code counts."""
    torch.set_num_threads(options.threads)
    x = torch.randn(SMALL_SIZE, SMALL_SIZE)
    programs: dict[str, Callable[[], object]] = {"clone": x.clone}
    for name, (quantizer, _) in FORMATS.items():
        programs |= forward_and_backward(name, quantizer, x, torch.ones_like(x))
    seconds = interleave(programs, 20 * options.repeats)
    return [
        {"program": name, "min_us": 1e6 * min(t), "median_us": 1e6 * statistics.median(t)}
        for name, t in seconds.items()
    ]


def ratios(
    seconds: Mapping[str, list[float]], base: str, targets: Mapping[str, float | None]
) -> Records:
    """A record per program: its times, and their ratios to those of `base`."""
    records = []
    for name, times in seconds.items():
        ratio = min(times) / min(seconds[base])
        target = targets[name]
        records.append(
            {
                "program": name,
                "min_ms": 1e3 * min(times),
                "median_ms": 1e3 * statistics.median(times),
                "ratio_of_minima": ratio,
                "ratio_of_medians": statistics.median(times) / statistics.median(seconds[base]),
                "target": target,
                "is_met": None if target is None else ratio <= target,
            }
        )
    return records


def gpu(options: argparse.Namespace) -> Records:
    """Our kernel ("called") and the compiled definition, inference both, against a copy; the values
    are checked against the definition on the CPU."""
    x = torch.randn(2 * options.size, 2 * options.size, device="cuda")
    out = torch.empty_like(x)
    programs: dict[str, Callable[[], object]] = {"copy": lambda: out.copy_(x)}
    is_equal = {"copy": True}
    torch._dynamo.config.recompile_limit = 8 * len(FORMATS)  # one function, compiled for each
    for name, (quantizer, _) in FORMATS.items():
        compiled = torch.compile(quantizer.quantize, fullgraph=True, dynamic=False)
        for label, program in ((name, compiled), (f"{name}, called", quantizer)):
            is_equal[label] = same_values(program(x).cpu(), quantizer, x.cpu())
            programs[label] = lambda f=program: f(x)
    seconds = interleave_on_gpu(programs, options.repeats)
    moved = 2 * x.numel() * x.element_size()
    return [bandwidth(name, times, seconds["copy"], moved) | {"is_bit_equal": is_equal[name]}
            for name, times in seconds.items()]  # fmt: skip


def same_values(y: Tensor, quantizer: Quantizer, x: Tensor) -> bool:
    """Whether y is what the native code or the definition gives on the CPU."""
    return torch.equal(y, quantizer(x))


def interleave_on_gpu(programs: Programs, repeats: int) -> dict[str, list[float]]:
    """Seconds of a run by the device's own clock, of `QUEUED` runs in a row; warm-up is dropped.

    Runs are queued so that the time the host takes to launch one hides behind the one before.
    """
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats + 3):
        for name, program in programs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(QUEUED):
                program()
            end.record()
            torch.cuda.synchronize()
            seconds[name].append(start.elapsed_time(end) / 1e3 / QUEUED)
    return {name: times[3:] for name, times in seconds.items()}


def bandwidth(name: str, times: list[float], copy: list[float], moved: int) -> dict[str, Any]:
    """The record of a program that moves as many bytes as the copy does."""
    share, target = statistics.median(copy) / statistics.median(times), GPU_TARGETS.get(name)
    return {
        "program": name,
        "median_ms": 1e3 * statistics.median(times),
        "terabytes_per_second": moved / statistics.median(times) / 1e12,
        "share_of_copy": share,
        "target": target,
        "is_met": None if target is None else share >= target,
    }


SECTIONS: dict[str, Callable[[argparse.Namespace], Records]] = {
    "cpu": cpu,
    "calls": calls,
    "gpu": gpu,
}
NEEDS_CUDA = ("gpu",)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    has_cuda = torch.cuda.is_available()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.executable).name, *sys.argv]),
        "machine": platform.machine(),
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if has_cuda else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "compiler": find_compiler(),
        "has_native_kernels": kernels.library() is not None,
    }


def processor_name() -> str:
    """The processor as the system calls it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--section", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the tensor")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tune-allocator", action="store_true", help="keep freed memory")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def main() -> None:
    """Run the sections, print a table for each, save the records."""
    options = parse_options()
    options.out.mkdir(parents=True, exist_ok=True)
    for section in options.section:
        if section in NEEDS_CUDA and not torch.cuda.is_available():
            print(f"{section}: skipped, there is no CUDA device here")
            continue
        records = SECTIONS[section](options)
        print(tabulate(records, headers="keys", floatfmt=".2f"))
        saved = options.out / f"quantize_{section}.json"
        saved.write_text(json.dumps({**machine(), "records": records}, indent=1) + "\n")
        print(f"saved {saved}")


if __name__ == "__main__":
    main()
