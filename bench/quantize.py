"""How fast the number formats are, as ratios to copying the same tensor in the same run.

    python bench/quantize.py                     # every section this machine can run
    python bench/quantize.py --section cpu --repeats 31

Each section interleaves its programs, so that a busy moment hits all of them, and takes the
minimum and the median. Values and gradients are first compared with the definition, bit for bit.
Results go to bench/results/quantize_<section>.json.

Add a section: a function from `argparse.Namespace` to records, and its row in `SECTIONS`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import torch
from measuring.checked import Timed, Times, compare
from measuring.record import save
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
Programs = dict[str, Timed]

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
    programs: Programs = {"clone": Timed(x.clone, x)}
    targets: dict[str, float | None] = {"clone": None}
    for name, (quantizer, target) in FORMATS.items():
        programs |= forward_and_backward(name, quantizer, x, gradient)
        targets |= {name: target, f"{name} + backward": BACKWARD_TARGET if target else None}
        if quantizer.range != EVERYWHERE:
            added = forward_and_backward(f"{name}, clipped", quantizer, clipped, gradient)
            programs |= added
            targets |= dict.fromkeys(added)
    return ratios(compare(programs, rounds=options.repeats, warm_up=1), "clone", targets)


def forward_and_backward(name: str, quantizer: Quantizer, x: Tensor, gradient: Tensor) -> Programs:
    """Return the two programs of a format on the values of `x`, with their definitions."""
    leaf = x.detach().requires_grad_()

    def backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(quantizer(leaf), leaf, gradient)

    def definition() -> tuple[Tensor, ...]:
        return torch.autograd.grad(quantizer.surrogate(leaf), leaf, gradient)

    return {
        name: Timed(lambda: quantizer(x), lambda: quantizer.quantize(x)),
        f"{name} + backward": Timed(backward, definition),
    }


def calls(options: argparse.Namespace) -> Records:
    """Microseconds of a call on a small weight, where the way to the native code counts."""
    torch.set_num_threads(options.threads)
    x = torch.randn(SMALL_SIZE, SMALL_SIZE)
    programs: Programs = {"clone": Timed(x.clone, x)}
    for name, (quantizer, _) in FORMATS.items():
        programs |= forward_and_backward(name, quantizer, x, torch.ones_like(x))
    times = compare(programs, rounds=20 * options.repeats)
    return [{"program": name, **each.spread()} for name, each in times.items()]


def ratios(times: Mapping[str, Times], base: str, targets: Mapping[str, float | None]) -> Records:
    """Return a record per program: its times, and their ratios to those of `base`."""
    records = []
    for name, each in times.items():
        ratio = each.low / times[base].low
        target = targets[name]
        records.append(
            {
                "program": name,
                "min_ms": 1e3 * each.low,
                "median_ms": 1e3 * each.median,
                "ratio_of_minima": ratio,
                "ratio_of_medians": each.median / times[base].median,
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
    programs: Programs = {"copy": Timed(lambda: out.copy_(x), x)}
    torch._dynamo.config.recompile_limit = 8 * len(FORMATS)  # one function, compiled for each
    for name, (quantizer, _) in FORMATS.items():
        compiled = torch.compile(quantizer.quantize, fullgraph=True, dynamic=False)
        for label, program in ((name, compiled), (f"{name}, called", quantizer)):
            programs[label] = Timed(
                lambda f=program: f(x), lambda q=quantizer: q.quantize(x.cpu()).to(x.device)
            )
    times = compare(programs, rounds=options.repeats, warm_up=3, clock="stream")
    moved = 2 * x.numel() * x.element_size()
    return [bandwidth(name, each, times["copy"], moved) for name, each in times.items()]


def bandwidth(name: str, times: Times, copy: Times, moved: int) -> dict[str, Any]:
    """Return the record of a program that moves as many bytes as the copy does."""
    share, target = copy.median / times.median, GPU_TARGETS.get(name)
    return {
        "program": name,
        "median_ms": 1e3 * times.median,
        "terabytes_per_second": moved / times.median / 1e12,
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


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--section", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the tensor")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tune-allocator", action="store_true", help="keep freed memory")
    return parser.parse_args()


def main() -> None:
    """Run the sections, print a table for each, save the records."""
    options = parse_options()
    for section in options.section:
        if section in NEEDS_CUDA and not torch.cuda.is_available():
            print(f"{section}: skipped, there is no CUDA device here")
            continue
        records = SECTIONS[section](options)
        print(tabulate(records, headers="keys", floatfmt=".2f"))
        settings = {"threads": torch.get_num_threads(), "size": options.size}
        settings |= {"compiler": find_compiler(), "has_kernels": kernels.library() is not None}
        print(f"saved {save(f'quantize_{section}', {'settings': settings, 'records': records})}")


if __name__ == "__main__":
    main()
