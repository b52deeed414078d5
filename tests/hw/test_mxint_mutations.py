"""Each of these faults in the casts to and from MXINT and in products of blocks must be noticed."""

import shutil

import pytest
from mutants import choose, with_mutants
from mxint_mutants import MXINT_MUTANTS, blocks

from chop.errors import HardwareError
from chop.hw.sim.emit import emit
from chop.hw.sim.exercise import exercise
from chop.hw.sim.simulate import Simulator, random_inputs

pytestmark = pytest.mark.slow
NAMES = [mutant.what for mutant in MXINT_MUTANTS]
TENSORS = 32


@pytest.fixture(scope="module")
def design():
    return blocks()


@pytest.fixture(scope="module")
def sound(design, tmp_path_factory):
    """The simulator of the design with every mutant in it and none turned on."""
    directory = emit(design, tmp_path_factory.mktemp("blocks"))
    numbers = with_mutants(directory, MXINT_MUTANTS)
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
