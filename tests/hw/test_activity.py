"""Toggles per stage: exact counts of single nets, constant inputs, twice the work."""

import json

import numpy as np
import pytest
from designs import mlp

from chop.actions.simulation import measure_activity
from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.library.components import Relu
from chop.hw.sim.activity import (
    OUTSIDE,
    Activity,
    Net,
    StageActivity,
    by_stage,
    count_activity,
    count_nets,
    owner,
)
from chop.hw.sim.emit import emit, vector_files, write_files
from chop.hw.sim.simulate import random_inputs
from chop.hw.streams.builder import Builder

NUMBER = Fixed(8, 4)


def two_paths():
    builder = Builder("top")
    for k in range(2):
        x = builder.input(f"data_in_{k}", Stream((8,), 2, NUMBER))
        relu = Relu(builder.stream(x), NUMBER)
        builder.output(f"data_out_{k}", builder.add(f"relu_{k}", relu, x))
    return builder.build()


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    design = two_paths()
    return design, emit(design, tmp_path_factory.mktemp("paths") / "hardware")


def inputs_of(design, tensors, seed=0):
    """Return random numbers for the second path, and always the same one for the first."""
    inputs = random_inputs(design, tensors, seed)
    return {**inputs, "data_in_0": np.full_like(inputs["data_in_0"], 21)}


@pytest.mark.sim("verilator")
def test_a_stage_with_a_constant_input_has_no_toggles_of_data(paths):
    design, hardware = paths
    activity = count_activity(hardware, design.interface(), inputs_of(design, 9))
    assert activity.stage("relu_0").data_toggles == 0
    assert activity.stage("relu_1").data_toggles > 100
    bits = [activity.stage(name).bits for name in ("relu_0", "relu_1")]
    assert bits[0] > 30 and abs(bits[0] - bits[1]) <= 1  # a constant may be one net of both
    assert activity.tensors == 8 and activity.cycles == 8 * 4


@pytest.mark.sim("verilator")
def test_twice_the_tensors_toggle_about_twice_as_often(paths):
    design, hardware = paths
    counts = [
        count_activity(hardware, design.interface(), inputs_of(design, n)).stage("relu_1").toggles
        for n in (13, 25)
    ]
    assert counts[1] == pytest.approx(2 * counts[0], rel=0.15)


@pytest.mark.sim("verilator")
def test_the_toggles_of_an_output_are_the_changed_bits_of_its_beats(paths):
    """The reference counts them in the golden integers, beat by beat."""
    design, hardware = paths
    inputs = inputs_of(design, 6)
    _, nets = count_nets(hardware, design.interface(), inputs)
    (net,) = [net for net in nets if any(name.endswith("top.data_out_1") for name in net.names)]
    beats = design.golden(inputs)["data_out_1"].reshape(-1, 2) & 255
    changed = np.bitwise_xor(beats[4:], beats[3:-1])  # from the last beat of the first tensor
    assert net.bits == 16
    assert net.toggles == sum(int(code).bit_count() for code in changed.flat)


@pytest.mark.slow
@pytest.mark.sim("verilator")
def test_twice_the_outputs_of_a_layer_toggle_about_twice_as_often(tmp_path):
    toggles = []
    for outputs in (16, 32):
        design = mlp((32, outputs), (4, 4))
        hardware = emit(design, tmp_path / str(outputs))
        activity = count_activity(hardware, design.interface(), random_inputs(design, 9))
        toggles.append(activity.stage("fc1").toggles)
    assert toggles[1] == pytest.approx(2 * toggles[0], rel=0.2)


@pytest.mark.sim("verilator")
def test_the_counts_of_a_project_are_stored_as_an_estimate(paths, tmp_path):
    design, _ = paths
    hardware = emit(design, tmp_path / "hardware")
    write_files(hardware, vector_files(design, random_inputs(design, 1)))
    activity = measure_activity(tmp_path)
    stored = json.loads((hardware / "sim/activity.json").read_text())
    assert stored["note"].startswith("estimate:") and stored["tensors"] == activity.tensors == 1
    assert [row["stage"] for row in stored["stages"]] == [row.stage for row in activity.stages]


# -- nets and stages -------------------------------------------------------------------------------

STAGES = ("fc1", "fc1_relu", "fc2")
OWNERS = {
    "of one stage": (("t.u_fc1.sum_q",), "fc1"),
    "the longest name": (("t.u_fc1_relu.data_q",), "fc1_relu"),
    "its memory": (("t.u_fc1_weight_source.data_out",), "fc1"),
    "data between two": (("t.x", "t.u_fc2.data_in_0", "t.u_fc1.data_out_0"), "fc1"),
    "ready between two": (("t.u_fc1.data_out_0_ready", "t.u_fc2.data_in_0_ready"), "fc2"),
    "an input": (("t.data_in_0", "t.u_fc1.data_in_0"), "fc1"),
    "outside": (("t.unused",), OUTSIDE),
}


@pytest.mark.parametrize("case", OWNERS)
def test_a_net_belongs_to_the_stage_that_drives_it(case):
    names, expected = OWNERS[case]
    assert owner(Net(1, 1, names), STAGES) == expected


def test_clocks_are_not_counted_and_single_bits_are_control():
    nets = [
        Net(900, 1, ("t.clk", "t.u_fc1.clk")),
        Net(7, 8, ("t.u_fc1.data_out_0",)),
        Net(2, 1, ("t.u_fc1.data_out_0_valid",)),
    ]
    assert by_stage(nets, STAGES) == (StageActivity("fc1", 9, 7, 2),)


def test_shares_are_of_all_toggles():
    rows = (StageActivity("a", 10, 30, 0), StageActivity("b", 10, 8, 2))
    records = Activity(2, 5, rows).rows()
    assert [record["energy share (estimate)"] for record in records] == ["75.0%", "25.0%"]
    assert records[0]["data toggles / tensor"] == 15 and records[1]["toggles / bit / cycle"] == 0.2
