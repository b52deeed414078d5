"""Each of these faults in softmax, the norms, lines and the row buffer must be noticed."""

import shutil

import pytest
from mutants import choose, with_mutants
from row_mutants import ROW_MUTANTS, rows

from chop.errors import HardwareError
from chop.hw.sim.emit import emit
from chop.hw.sim.exercise import exercise
from chop.hw.sim.simulate import Simulator, random_inputs

pytestmark = pytest.mark.slow
NAMES = [mutant.what for mutant in ROW_MUTANTS]
TENSORS = 8


@pytest.fixture(scope="module")
def design():
    return rows()


@pytest.fixture(scope="module")
def sound(design, tmp_path_factory):
    """The simulator of the design with every mutant in it and none turned on."""
    directory = emit(design, tmp_path_factory.mktemp("rows"))
    numbers = with_mutants(directory, ROW_MUTANTS)
    return Simulator(design, directory), numbers


def test_there_are_sixty_mutants():
    assert len(set(NAMES)) == len(NAMES) >= 60


@pytest.mark.sim
def test_nothing_is_noticed_without_a_mutant(sound, design):
    simulator, numbers = sound
    assert sorted(numbers) == sorted(NAMES), "every mutant finds its place in the RTL"
    assert exercise(simulator, random_inputs(design, TENSORS)).is_exact


@pytest.mark.sim
@pytest.mark.parametrize("name", NAMES, ids=[name.replace(" ", "-") for name in NAMES])
def test_mutant_is_noticed(name, sound, design, tmp_path):
    simulator, numbers = sound
    shutil.copytree(simulator.directory / "mem", tmp_path / "mem")
    shutil.copy(simulator.directory / "design.json", tmp_path)
    choose(tmp_path, numbers[name])
    with pytest.raises(HardwareError):
        exercise(simulator.at(tmp_path), random_inputs(design, TENSORS))
