"""Runs faults of `mutation_engine` against the test of the components that have them.

A group is one build: modules to put faults into, and components whose cases notice them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mutants import EQUIVALENT, with_mutants
from mutants import choose as choose_mutant
from mutation_engine import Fault, built_in, choose, faults, sample

from chop.errors import HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.design.component import COMPONENTS, Component
from chop.hw.design.folders import component_folders
from chop.hw.design.mutants import Mutant
from chop.hw.design.samples import BYTE, NARROW, stream
from chop.hw.design.switched import Switched
from chop.hw.library.components import LayerNorm, Linear, Weights
from chop.hw.library.fixed_linear import sample_weights
from chop.hw.library.fixed_norm import Affine
from chop.hw.sim.component_check import ComponentCheck, bench_design, enough_tensors
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import Simulator, Verdict


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


def long_rows() -> Component:
    """Rows so long that the shift of an inverse root leaves no bit of a product to spare."""
    return LayerNorm(
        stream(8192, lanes=32, number=NARROW), Affine.none(8192), Fixed(24, 16), eps=0.0
    )


TOGETHER = {
    "fixed_norm": "norm",
    "fixed_softmax": "softmax",
    "row_buffer": "softmax",
    **dict.fromkeys(("fixed_linear", "fixed_dot_product"), "linear"),
    **dict.fromkeys(("rom_source", "rom_bank_source"), "linear"),
    **dict.fromkeys(("fixed_to_mxint", "mxint_to_fixed"), "blocks"),
    **dict.fromkeys(("fixed_matmul", "tile_buffer", "stream_route"), "matmul"),
    **dict.fromkeys(("fixed_pool", "fixed_divide", "fixed_hard_activation"), "pool"),
    **dict.fromkeys(("sliding_window", "whole_window", "fixed_conv"), "window"),
    **dict.fromkeys(("fixed_arithmetic", "stream_join"), "arithmetic"),
    **dict.fromkeys(("fixed_cast", "stream_cast", "fixed_batch_norm", "fixed_relu"), "casts"),
    **dict.fromkeys(("fixed_leaky_relu",), "casts"),
    **dict.fromkeys(("fixed_lut", "fixed_piecewise", "fixed_embedding"), "tables"),
    **dict.fromkeys(("fixed_shift_add", "fixed_table_sum"), "constants"),
    **dict.fromkeys(("lookup_tables", "thermometer"), "lookups"),
    **dict.fromkeys(("fifo", "gearbox", "skid_buffer", "stream_concat", "stream_fork"), "movers"),
    **dict.fromkeys(("stream_reorder", "stream_slice"), "movers"),
}
"""Builds by component folder; a folder that is not here is a build of its own."""
ELSEWHERE = {"stream_route", "serial_in", "serial_out", "ram_source"}
"""Modules whose faults no component shows: `test_sharing` and `test_reload` do, or no design."""
EXTRA = {"norm": long_rows, "linear": switched}
"""Further components of a build."""


def groups() -> dict[str, Group]:
    """Return the builds: each has the modules with faults and the components of its folders."""
    modules: dict[str, list[str]] = {}
    components: dict[str, list[str]] = {}
    for folder in component_folders().values():
        name = TOGETHER.get(folder.name, folder.name)
        if folder.name not in ELSEWHERE and faults(folder.name):
            modules.setdefault(name, []).append(folder.name)
    for name, cls in COMPONENTS.items():
        if cls.__module__.startswith("chop."):
            folder = TOGETHER.get(cls.module, cls.module)
            components.setdefault(folder, []).append(name)
    return {
        name: Group(
            tuple(modules.get(name, ())),
            tuple(components[name]),
            (EXTRA[name](),) if name in EXTRA else (),
        )
        for name in components
    }


GROUPS = groups()
CAMPAIGN = 45
"""Faults of a group that are tried in all: as many of each module as its share in the group."""


class Bench:
    """A group with its faults in the RTL; the simulator is built when it is first used."""

    def __init__(self, group: Group, chosen: Sequence[Fault], directory: Path) -> None:
        self.faults, self.directory = list(chosen), directory
        self.design = bench_design(group.cases())
        emit(self.design, directory)
        paths = (*directory.glob("rtl/*.sv"), *directory.glob("mem/*"))
        self.sound = [path.read_bytes() for path in sorted(paths)]
        """Files without the faults."""
        self.numbers = built_in(directory, self.faults)
        self.check = ComponentCheck(self.design, enough_tensors(self.design))

    @cached_property
    def simulator(self) -> Simulator:
        """Build the simulator."""
        return Simulator(self.design, self.directory, is_quick=True)

    def verdicts(self, fault: Fault | None) -> list[Verdict]:
        """Verdicts of the components with `fault` on; raises where something is not right."""
        choose(self.simulator.directory, self.numbers[fault.name] if fault else 0)
        return self.check.run(self.simulator)

    def is_noticed(self, fault: Fault) -> bool:
        """Whether the test of the components fails with `fault` on."""
        try:
            self.verdicts(fault)
        except HardwareError:
            return True
        return False

    def survivors(self) -> Iterator[Fault]:
        """Faults that nothing notices, and that have an effect."""
        for fault in self.faults:
            if fault.name not in EQUIVALENT and not self.is_noticed(fault):
                yield fault


@dataclass(frozen=True)
class Result:
    """The outcome of a campaign: how many faults were noticed, and what is not as it should be."""

    noticed: list[Fault]
    equivalent: list[Fault]
    unnoticed: list[str]
    needless: list[str]


def campaign(group: Group, directory: Path) -> Result:
    """Try every fault of a group."""
    bench = Bench(group, group_faults(group, CAMPAIGN), directory)
    bench.verdicts(None)
    noticed = [fault for fault in bench.faults if bench.is_noticed(fault)]
    rest = [fault for fault in bench.faults if fault not in noticed]
    return Result(
        noticed,
        [fault for fault in rest if fault.name in EQUIVALENT],
        [f"{fault.name}: {fault}" for fault in rest if fault.name not in EQUIVALENT],
        [fault.name for fault in noticed if fault.name in EQUIVALENT],
    )


def group_faults(group: Group, count: int) -> list[Fault]:
    """About `count` faults of the modules of a group, the same ones always."""
    total = sum(len(faults(module)) for module in group.modules)
    parts = {m: max(2, round(count * len(faults(m)) / total)) for m in group.modules}
    return [fault for module, part in parts.items() for fault in sample(module, part)]


def unnoticed_mutants(
    mutants: Sequence[Mutant], cases: Sequence[Component], directory: Path
) -> list[str]:
    """Return the mutants that the test of `cases` does not notice; raise if one has no place."""
    design = bench_design(cases)
    numbers = with_mutants(emit(design, directory), mutants)
    assert sorted(numbers) == sorted(mutant.what for mutant in mutants), "a mutant has no place"
    simulator = Simulator(design, directory, is_quick=True)
    check = ComponentCheck(design, enough_tensors(design))
    check.run(simulator)

    def is_noticed(number: int) -> bool:
        choose_mutant(directory, number)
        try:
            check.run(simulator)
        except HardwareError:
            return True
        return False

    return [what for what, number in numbers.items() if not is_noticed(number)]
