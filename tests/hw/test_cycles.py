import pytest
from designs import mlp, residual

from chop.errors import HardwareError
from chop.hw.design.design import Wire
from chop.hw.sim.emit import design_files, emit, write_files
from chop.hw.sim.simulate import Simulator, random_inputs
from chop.hw.timing import cycles
from chop.hw.timing.cycles import (
    Stalls,
    balanced,
    interval,
    simulate_control,
    size_fifos,
    with_fifos,
)

# sizes, lanes: the second pair needs FIFOs to reach the bound of its slowest layer
MLPS = {
    "16-32-8": ((16, 32, 8), (4, 4, 4)),
    "16-64-32-8": ((16, 64, 32, 8), (4, 8, 4, 2)),
    "12-24-6": ((12, 24, 6), (3, 6, 2)),
    "16-16-16": ((16, 16, 16), (16, 16, 16)),
}


@pytest.mark.parametrize("name", MLPS)
def test_balanced_mlp_reaches_the_folding_bound(name):
    design = mlp(*MLPS[name])
    assert interval(balanced(design)) == design.cycles()


def test_an_unbalanced_mlp_is_slower_than_its_slowest_layer():
    design = mlp(*MLPS["16-64-32-8"])
    assert interval(design) > design.cycles()
    assert size_fifos(design)


def test_every_fifo_is_as_shallow_as_it_can_be():
    design = mlp(*MLPS["16-64-32-8"])
    depths = size_fifos(design)
    for wire, depth in depths.items():
        shallower = {**depths, wire: depth - 1}
        kept = {w: d for w, d in shallower.items() if d}
        assert interval(with_fifos(design, kept)) > design.cycles()


def test_residual_without_fifo_deadlocks_and_says_where():
    with pytest.raises(HardwareError, match=r"deadlocks in cycle \d+: beats wait behind .*fork"):
        simulate_control(residual(), tensors=2)


def test_residual_with_computed_depths_runs_at_the_bound():
    design = residual()
    assert interval(balanced(design)) == design.cycles()


def test_random_depths_below_the_computed_one_are_not_enough():
    design = residual(size=16)
    depths = size_fifos(design)
    needed = depths[Wire("data_in_0_fork", 1)]
    for depth in range(1, needed):
        shallow = with_fifos(design, {**depths, Wire("data_in_0_fork", 1): depth})
        assert interval(shallow) > design.cycles()


@pytest.mark.sim
def test_the_rtl_deadlocks_where_the_model_says_so(tmp_path):
    design = residual()
    write_files(tmp_path, design_files(design))  # `emit` refuses it
    simulator = Simulator(design, tmp_path)
    with pytest.raises(HardwareError, match="no beat moved any more"):
        simulator.run(random_inputs(design, 2))


def all_beats(design, tensors):
    ports = (*design.inputs.values(), *design.output_streams().values())
    return tensors * sum(stream.beats for stream in ports)


@pytest.mark.sim
@pytest.mark.parametrize("name", [pytest.param("16-64-32-8", marks=pytest.mark.slow), "12-24-6"])
def test_mlp_runs_in_the_predicted_cycles(name, tmp_path):
    for k, design in enumerate((mlp(*MLPS[name]), balanced(mlp(*MLPS[name])))):
        simulator = Simulator(design, emit(design, tmp_path / str(k)))
        for stalls in (Stalls(), Stalls(0.6, 0.7, 5)):
            verdict = simulator.run(random_inputs(design, 20), stalls).require_exact()
            assert verdict.pace.beats == all_beats(design, 20)


@pytest.mark.sim
def test_residual_is_exact_under_stalls_and_in_the_predicted_cycles(tmp_path):
    design = balanced(residual())
    simulator = Simulator(design, emit(design, tmp_path))
    for stalls in (Stalls(), Stalls(0.4, 0.8, 6), Stalls(0.9, 0.3, 7)):
        verdict = simulator.run(random_inputs(design, 30), stalls).require_exact()
        assert verdict.pace.beats == all_beats(design, 30)


def test_depths_that_are_too_small_together_grow():
    class Together:  # enough alone, beside deep ones; not both of one beat
        def holds(self, depths, best):
            return min(depths.values()) > 1

    small, large = Wire("gearbox"), Wire("fork", 1)
    assert cycles._enough(Together(), {large: 60, small: 1}, 8.0) == {large: 60, small: 2}
