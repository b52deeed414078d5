"""Runs faults of `mutation_engine` against the test of the components that have them.

A group is one build: modules to put faults into, and components whose cases notice them.
"""

import copy
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from equivalent_mutants import EQUIVALENT
from mutation_engine import Fault, built_in, choose, faults, sample

from chop.errors import HardwareError
from chop.hw import verilate
from chop.hw.check import ComponentCheck, bench_design
from chop.hw.component import COMPONENTS, Component
from chop.hw.components import Linear, Weights
from chop.hw.emit import emit
from chop.hw.rtl.fixed_linear import sample_weights
from chop.hw.samples import BYTE, stream
from chop.hw.simulate import Simulator
from chop.hw.switched import Switched


@dataclass(frozen=True)
class Group:
    """Modules with faults, and the components that show them; `extra` makes further ones."""

    modules: tuple[str, ...]
    components: tuple[str, ...]
    extra: tuple[Component, ...] = ()

    def cases(self) -> list[Component]:
        """The components of the group's design."""
        return [case for name in self.components for case in COMPONENTS[name].cases()] + [
            *self.extra
        ]


def switched() -> Component:
    """Two layers that take turns: their constants come from a memory with banks."""
    source, weights = stream(3, 4, lanes=2), sample_weights(6, 4)
    other = Weights(-weights.weight // 2, BYTE, weights.bias, BYTE)
    layers = tuple(Linear(source, each, BYTE, 3) for each in (weights, other))
    return Switched(layers, 2)


GROUPS = {
    "norm": Group(("fixed_norm",), ("fixed_layer_norm", "fixed_rms_norm")),
    "softmax": Group(("fixed_softmax", "row_buffer"), ("fixed_softmax",)),
    "linear": Group(
        ("fixed_linear", "fixed_dot_product", "rom_source", "rom_bank_source"),
        ("fixed_linear", "fixed_linear_packed"),
        (switched(),),
    ),
    "blocks": Group(
        ("mxint_linear", "mxint_matmul", "fixed_to_mxint", "mxint_to_fixed"),
        ("mxint_linear", "mxint_matmul", "fixed_to_mxint", "mxint_to_fixed"),
    ),
    "matmul": Group(("fixed_matmul", "tile_buffer"), ("fixed_matmul", "stream_replay")),
    "pool": Group(
        ("fixed_pool", "fixed_divide", "fixed_hard_activation"),
        ("fixed_max_pool", "fixed_avg_pool", "fixed_hardsigmoid", "fixed_hardswish"),
    ),
    "window": Group(
        ("sliding_window", "whole_window"), ("sliding_window", "whole_window", "fixed_conv2d")
    ),
    "elements": Group(
        (
            *("fixed_arithmetic", "stream_join", "fixed_batch_norm", "fixed_relu", "fixed_cast"),
            *("fixed_leaky_relu", "fixed_lut", "fixed_piecewise", "fixed_embedding"),
        ),
        (
            *("fixed_add", "fixed_mul", "fixed_sub", "fixed_constant_arithmetic", "stream_cast"),
            *("fixed_batch_norm", "fixed_relu", "fixed_leaky_relu", "fixed_lut"),
            *("fixed_piecewise", "fixed_embedding"),
        ),
    ),
    "constants": Group(
        ("fixed_shift_add", "fixed_table_sum"), ("fixed_shift_add", "fixed_table_sum")
    ),
    "movers": Group(
        (
            *("fifo", "gearbox", "skid_buffer", "stream_concat", "stream_fork"),
            *("stream_reorder", "stream_slice"),
        ),
        (
            *("fifo", "gearbox", "skid_buffer", "stream_concat", "stream_fork"),
            *("stream_reorder", "stream_slice"),
        ),
    ),
}


class Bench:
    """A built group, with its faults in it."""

    def __init__(self, group: Group, chosen: Sequence[Fault], directory: Path) -> None:
        self.faults = list(chosen)
        design = bench_design(group.cases())
        emit(design, directory)
        self.numbers = built_in(directory, self.faults)
        self.simulator = Simulator(design, directory)
        self.check = ComponentCheck(design)

    def is_noticed(self, fault: Fault | None) -> bool:
        """Whether the test of the components fails with `fault` on; None: with none."""
        choose(self.simulator.directory, self.numbers[fault.name] if fault else 0)
        try:
            self.check.run(self.simulator)
        except HardwareError:
            return True
        return False


def quota(modules: Sequence[str], count: int) -> list[Fault]:
    """`count` faults of some modules, more of those that have more; few where there are few."""
    total = sum(len(faults(module)) for module in modules)
    parts = {m: max(3, round(count * len(faults(m)) / total)) for m in modules}
    return [fault for module, part in parts.items() for fault in sample(module, part)]


def survivors(bench: Bench) -> Iterator[Fault]:
    """Faults that nothing notices."""
    for fault in bench.faults:
        if not bench.is_noticed(fault):
            yield fault


def unoptimised() -> None:
    """Compile for a short time rather than for a fast simulation: each build runs for seconds."""
    verilate._CXX_FLAGS = tuple("-O0" if f == "-O1" else f for f in verilate._CXX_FLAGS)
