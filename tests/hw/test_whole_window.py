"""Convolutions without multipliers: a window in each cycle, the same numbers as with an array."""

import pytest
import torch

from chop.errors import ChopError
from chop.hw.design.samples import stream
from chop.hw.library.components import Conv2d, Linear, ShiftAdd, TableSum, WholeWindow
from chop.hw.library.sliding_window import Geometry
from chop.hw.library.whole_window import due_steps
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import Simulator, random_inputs
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from tests.hw.test_shift_add import annotated


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(1, 3, 3, padding=1)
        self.down = torch.nn.Conv2d(3, 2, (2, 3), stride=2)
        self.head = torch.nn.Linear(2 * 3 * 2, 3)

    def forward(self, x):
        return self.head(torch.flatten(self.down(torch.relu(self.stem(x))), 1))


def graph_of():
    torch.manual_seed(0)
    return annotated(Net(), torch.randn(1, 1, 6, 6))


@pytest.mark.parametrize("how", ["shift_add", "tables"])
def test_convolutions_take_whole_windows_and_are_the_model(how):
    graph = graph_of()
    lowered = lower(graph, Parallelism(8, multiplier={"*": how}))
    kind = {"shift_add": ShiftAdd, "tables": TableSum}[how]
    assert all(isinstance(c, kind) for c in map(lowered.components.get, ("stem", "down", "head")))
    windows = [s for s in lowered.design.stages if isinstance(s.component, WholeWindow)]
    assert [s.name for s in windows] == ["stem_window", "down_window"]
    verify(graph, lowered, None)


def test_a_design_mixes_convolutions_of_both_kinds():
    graph = graph_of()
    graph, told = add_hardware_metadata_analysis_pass(graph, {"multiplier": {"stem": "shift_add"}})
    lowered = lower(graph, Parallelism(4, multiplier={"stem": "shift_add"}))
    kinds = [type(lowered.components[name]) for name in ("stem", "down", "head")]
    assert kinds == [ShiftAdd, Conv2d, Linear]
    assert told["multipliers"] > 0
    verify(graph, lowered, None)


def test_an_image_takes_its_pixels_and_the_padding_that_is_left():
    assert WholeWindow(stream(8, 8, 1, lanes=1), (3, 3), padding=(1, 1)).cycles() == 64 + 8 + 1
    assert WholeWindow(stream(8, 8, 1, lanes=1), (3, 3)).cycles() == 64
    steps = list(due_steps(Geometry((5, 4), (3, 3), (1, 1), (1, 1))))
    assert steps == sorted(set(steps))


def test_windows_that_cannot_be_are_refused():
    with pytest.raises(ChopError, match="one beat, the stream has 1 lanes"):
        WholeWindow(stream(5, 4, 2, lanes=1), (3, 3))
    with pytest.raises(ChopError, match="padding of 2 columns with a kernel of 3"):
        WholeWindow(stream(5, 4, 1, lanes=1), (3, 3), padding=(2, 2))
    with pytest.raises(ChopError, match=r"stem.*external weights"):
        lower(graph_of(), Parallelism(4, multiplier={"*": "shift_add"}), weights="external")


@pytest.mark.slow
@pytest.mark.sim
def test_a_convolution_without_multipliers_is_exact_in_rtl(tmp_path):
    lowered = lower(graph_of(), Parallelism(8, multiplier={"*": "shift_add"}))
    simulator = Simulator(lowered.design, emit(lowered.design, tmp_path))
    simulator.run(random_inputs(lowered.design, 20)).require_exact()
