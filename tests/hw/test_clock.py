"""The clock that a design is made for decides its registers; values and model stay exact."""

import copy

import pytest
import torch
from covering import first_and_slow
from hardware_models import fixed_graph

from chop.errors import ConfigError
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.design_cache import attached_design
from chop.hw.sim.emit import emit
from chop.hw.sim.exercise import exercise
from chop.hw.sim.simulate import Simulator
from chop.hw.timing.cycles import simulate_control
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass


class Gated(torch.nn.Module):
    """Two layers that are multiplied, and a way round one of them."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(24, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.fc1(x)
        return self.fc2(y) * y + y


def graph():
    torch.manual_seed(0)
    return fixed_graph(Gated(), torch.randn(2, 24))


def lowered(clock_mhz):
    lanes = {"fc1": (24, 2), "fc2": (2, 2)}
    return lower(graph(), Parallelism(2, lanes, clock_mhz=clock_mhz))


def first_output(design):
    return min(simulate_control(design, 2).outputs["data_out_0"])


@pytest.mark.sim
@pytest.mark.parametrize("clock_mhz", first_and_slow([50, 150]))  # test_mxint.py simulates at 150
def test_values_and_cycles_are_exact_at_a_slow_and_a_fast_clock(clock_mhz, tmp_path):
    found = lowered(clock_mhz)
    simulator = Simulator(found.design, emit(found.design, tmp_path))
    assert exercise(simulator, found.encode(torch.randn(12, 24))).is_exact


def test_a_faster_clock_costs_latency_and_registers():
    slow, usual, fast = (lowered(mhz).design for mhz in (50, 100, 150))
    assert first_output(slow) < first_output(usual) < first_output(fast)
    assert {stage.component.kind for stage in slow.stages} >= {"fifo", "fixed_mul"}
    heads = [
        [s.component.has_head for s in design.stages if s.component.kind == "fifo"]
        for design in (slow, usual)
    ]
    assert not any(heads[0]) and all(heads[1])


def test_the_clock_is_an_option_that_stays_with_the_graph():
    annotated, _ = add_hardware_metadata_analysis_pass(graph(), {"clock_mhz": 50.0})
    (output,) = annotated.fx_graph.find_nodes(op="output")
    assert output.meta["mase"]["hardware"]["design"].clock_mhz == 50.0
    again = attached_design(copy.deepcopy(annotated)).design.stage("fc1").component
    assert again.clock_mhz == 50.0 and again.source.lanes == 4


def test_a_clock_below_nothing_is_refused():
    with pytest.raises(ConfigError, match="clock_mhz must be above 0 MHz, got -1"):
        add_hardware_metadata_analysis_pass(graph(), {"clock_mhz": -1.0})
