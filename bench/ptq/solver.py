"""Time of GPTQ for one linear layer, beside a plain reference and llm-compressor's own function.

    python bench/ptq/solver.py [--rows 4096] [--columns 4096] [--samples 128] [--tokens 2048]
        [--device cuda] [--wheels llmcompressor.whl compressed_tensors.whl loguru.whl]

The weights are random; the inputs have a few strong channels and correlated ones. All programs
round to 4-bit integers in groups of 128, with the columns in the order of their importance. The
reference is GPTQ written here from its definition. `--wheels` are pure-Python wheels of
llm-compressor and of what it imports, which need no installation; without them it is left out.

The results are checked first: the reference and llm-compressor have the same scales, so that their
weights must agree, and the error of our layer's outputs must not exceed theirs. Ours includes the
search of the ranges, theirs does not. The results go to bench/results/solver.json, one section for
each device.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring.checked import Timed, WrongResultError, compare
from measuring.record import save_section

from chop.nn.quantizers import parse_format
from chop.passes.ptq.observe.row_sums import plain_sums
from chop.passes.ptq.solve.column_feedback import output_error, rounded_with_feedback
from chop.passes.ptq.solve.weight_grid import weight_grid

GROUP, LEVELS, DAMPING, BLOCK = 128, 7, 0.01, 128
FORMAT = f"int4/{GROUP}"
SAME = 0.02
"""Relative difference that two runs with equal scales may have: elements near the middle between
two values are rounded by the last bit of a sum."""
LIMITS = {"ours_over_llmcompressor": 1.0}


@dataclass(frozen=True)
class Layer:
    """A weight (rows, columns) and the batches of its inputs, in single precision."""

    weight: Tensor
    batches: tuple[Tensor, ...]

    @classmethod
    def random(cls, args: argparse.Namespace) -> Layer:
        """Return random weights and inputs."""
        draw = torch.Generator(args.device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw, device=args.device)

        mix = torch.eye(args.columns, device=args.device) + normal(args.columns, args.columns) * (
            0.5 / args.columns**0.5
        )
        mix *= (1 + 20 * (torch.rand(args.columns, generator=draw, device=args.device) > 0.99))[
            None
        ]
        batches = tuple(normal(args.tokens, args.columns) @ mix for _ in range(args.samples))
        return cls(normal(args.rows, args.columns) * 0.02, batches)

    def hessian(self) -> Tensor:
        """Return the sum of x xᵀ as our passes compute it, in double precision."""
        total = plain_sums(self.batches[0], None)
        for batch in self.batches[1:]:
            total += plain_sums(batch, None)
        assert isinstance(total.hessian, Tensor)
        return total.hessian

    def largest_scales(self) -> Tensor:
        """Return the scale of each row and group that reaches its largest weight."""
        groups = self.weight.unflatten(1, (-1, GROUP))
        return groups.abs().amax(-1) / LEVELS


def ours(layer: Layer, hessian: Tensor) -> Tensor:
    """Return the weight that `gptq_transform_pass` rounds without refinement."""
    grid = weight_grid(parse_format(FORMAT, "format"), layer.weight, "solver")
    values, ranges = rounded_with_feedback(
        layer.weight, hessian, grid, damping=DAMPING, by_importance=True
    )
    return grid.as_stored(values.float(), ranges.float())


def reference(layer: Layer, hessian: Tensor) -> Tensor:
    """Return the weight by GPTQ as published, with static scales and columns by importance."""
    order = hessian.diagonal().argsort(descending=True, stable=True)
    h = hessian.float()[order][:, order]
    h.diagonal().add_(DAMPING * h.diagonal().mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(h))
    upper = torch.linalg.cholesky(inverse, upper=True)
    work, scales = layer.weight[:, order].clone(), layer.largest_scales()
    groups = (order // GROUP).tolist()
    for start in range(0, work.shape[1], BLOCK):
        end = min(start + BLOCK, work.shape[1])
        errors = work.new_empty(len(work), end - start)
        for i in range(start, end):
            scale = scales[:, groups[i]]
            rounded = (work[:, i] / scale).round().clamp(-LEVELS - 1, LEVELS) * scale
            errors[:, i - start] = (work[:, i] - rounded) / upper[i, i]
            work[:, i + 1 : end] -= errors[:, i - start, None] * upper[i, i + 1 : end]
            work[:, i] = rounded
        work[:, end:] -= errors @ upper[start:end, end:]
    return work[:, order.argsort()]


def llmcompressor(wheels: list[Path]) -> Callable[[Layer, Tensor], Tensor]:
    """Return llm-compressor's GPTQ of one weight, from wheels that are not installed."""
    sys.path[:0] = [str(wheel.resolve()) for wheel in wheels]
    whole = next(wheel for wheel in wheels if wheel.name.startswith("llmcompressor"))
    for name in ("llmcompressor", "llmcompressor.modifiers", "llmcompressor.modifiers.gptq"):
        package = types.ModuleType(name)  # its own __init__ imports all of the program
        package.__path__ = [f"{whole.resolve()}/{name.replace('.', '/')}"]
        sys.modules[name] = package
    solver = importlib.import_module("llmcompressor.modifiers.gptq.gptq_quantize")
    quantization = importlib.import_module("compressed_tensors.quantization")
    settings = quantization.QuantizationArgs(
        num_bits=4, strategy="group", group_size=GROUP, symmetric=True, actorder="weight"
    )

    def run(layer: Layer, hessian: Tensor) -> Tensor:
        scales = layer.largest_scales()[None]
        zeros = torch.zeros_like(scales, dtype=torch.int8)
        weight, h = layer.weight[None].clone(), hessian.float()[None]
        result: Tensor = solver.quantize_weight(
            weight, h, scales, zeros, None, settings, BLOCK, DAMPING
        )[0][0]
        return result

    return run


def relative_error(layer: Layer, hessian: Tensor, values: Tensor) -> float:
    """Return the squared error of the outputs, relative to their squares."""
    return output_error(values - layer.weight, hessian) / output_error(layer.weight, hessian)


def timed(
    layer: Layer, hessian: Tensor, programs: dict[str, Callable[[Layer, Tensor], Tensor]]
) -> Iterator[dict[str, Any]]:
    """Check all programs, then time them; yield a row for each."""
    expected = reference(layer, hessian)
    results = {name: run(layer, hessian) for name, run in programs.items()}
    errors = {name: relative_error(layer, hessian, values) for name, values in results.items()}
    if errors["ours"] > min(errors.values()):
        raise WrongResultError(f"ours: the error of the outputs is not the least: {errors}")
    own = results["ours"]
    times = compare(
        {
            name: Timed(
                lambda run=run: run(layer, hessian),  # type: ignore[misc]
                own if name == "ours" else expected,
                0.0 if name == "ours" else SAME,
            )
            for name, run in programs.items()
        },
        rounds=5,
        warm_up=1,
    )
    for name, each in times.items():
        yield {
            "program": name,
            "seconds": each.median,
            "least": each.low,
            "most": max(each.seconds),
            "relative_error": errors[name],
        }


def main() -> None:
    """Check, measure, print, and write bench/results/solver.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--wheels", nargs="*", type=Path, default=[])
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    layer = Layer.random(args)
    programs: dict[str, Callable[[Layer, Tensor], Tensor]] = {"ours": ours, "reference": reference}
    if args.wheels:
        programs["llm-compressor"] = llmcompressor(args.wheels)
    hessian = layer.hessian()
    sums = compare({"sums": Timed(layer.hessian, hessian, 1e-6)}, rounds=5, warm_up=1)["sums"]
    rows = list(timed(layer, hessian, programs))
    print(f"sums over the inputs: {sums.median:.3f} s")
    print(tabulate(rows, headers="keys", floatfmt=".4g"))
    sizes = {k: getattr(args, k) for k in ("rows", "columns", "samples", "tokens")}
    results = {"limits": LIMITS, **sizes, "sums_seconds": sums.median, "programs": rows}
    print(save_section("solver", torch.device(args.device).type, results))


if __name__ == "__main__":
    main()
