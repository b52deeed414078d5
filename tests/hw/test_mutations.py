"""The verdict can fail: each of these faults in RTL, wiring or memories must be noticed."""

import shutil
from pathlib import Path

import pytest
from covering import slow_unless
from mutants import (
    FILES,
    MUTANTS,
    OTHER_MODULES,
    choose,
    module_names,
    mutants_of,
    with_mutants,
    zoo,
)
from mutation_run import unnoticed_mutants

from chop.errors import HardwareError
from chop.hw.design.component import COMPONENTS
from chop.hw.design.folders import component_folders, rtl_sources
from chop.hw.sim import verilate
from chop.hw.sim.emit import emit
from chop.hw.sim.exercise import check_memories, exercise, profiles
from chop.hw.sim.simulate import Simulator, random_inputs
from chop.hw.timing.cycles import balanced

NAMES = sorted({m.what for m in MUTANTS})
KEPT = {*{(m.module, m.is_statement): m.what for m in MUTANTS}.values()}
"""A mutant of an expression and one of a statement in every module: those of `make test`."""
TENSORS = 6


@pytest.fixture(scope="module")
def design():
    return balanced(zoo())


@pytest.fixture(scope="module")
def sound(design, tmp_path_factory):
    """The simulator of the design with every mutant in it and none turned on."""
    directory = emit(design, tmp_path_factory.mktemp("sound"))
    numbers = with_mutants(directory, MUTANTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(verilate._LEVELS, "fast", "-O1")  # runs for every mutant
        return Simulator(design, directory), numbers


@pytest.fixture
def copied(sound, tmp_path):
    """The sound simulator at a copy of its memories, free to be spoilt."""
    simulator, _ = sound
    shutil.copytree(simulator.directory / "mem", tmp_path / "mem")
    shutil.copy(simulator.directory / "design.json", tmp_path)
    return simulator.at(tmp_path)


def is_noticed(simulator, design):
    """Whether the standard run says that something is wrong."""
    try:
        exercise(simulator, random_inputs(design, TENSORS))
    except HardwareError:
        return True
    return False


def is_noticed_in_values(simulator, design):
    """Whether it shows in the outputs, without a look at the files."""
    verdict = simulator.run(random_inputs(design, TENSORS), profiles(design.cycles())[0])
    return verdict.mismatches > 0


def test_there_are_a_hundred_mutants_and_every_module_of_control_has_some(design, tmp_path):
    assert len(NAMES) >= 100
    text = "".join(p.read_text() for p in (emit(design, tmp_path) / "rtl").glob("*.sv"))
    used = module_names(text) - {"fixed_conv", "fixed_divide", "fixed_matmul"}  # have no state
    assert used <= {m.module for m in MUTANTS}


def test_mutants_are_found_in_component_folders_by_their_file_names():
    assert all(file.parent in component_folders().values() for file in FILES.values())
    assert FILES["fixed_linear mxint"].name == "mxint_mutants.toml"
    assert not list(Path(__file__).parent.rglob("*.toml"))


@pytest.mark.parametrize("name", FILES)
def test_every_mutant_has_its_place_in_the_module(name):
    text = rtl_sources()[FILES[name].parent.name].read_text()
    assert [m.what for m in mutants_of(name) if m.span(text) is None] == []


@pytest.mark.sim
def test_nothing_is_noticed_without_a_mutant(sound, design):
    simulator, numbers = sound
    assert sorted(numbers) == NAMES, "every mutant finds its place in the RTL"
    assert exercise(simulator, random_inputs(design, TENSORS)).is_exact


@pytest.mark.share(2)
@pytest.mark.sim
@pytest.mark.parametrize(
    "name", slow_unless(NAMES, KEPT.__contains__), ids=[name.replace(" ", "-") for name in NAMES]
)
def test_mutant_is_noticed(name, sound, design, copied):
    choose(copied.directory, sound[1][name])
    assert is_noticed(copied, design)


@pytest.mark.sim
@pytest.mark.parametrize("module", [m for m in OTHER_MODULES if mutants_of(m)] or [None])
def test_mutants_of_modules_in_no_design_are_noticed_by_the_cases(module, tmp_path):
    if module is None:
        pytest.skip("all modules with mutants are in a design: a new folder is tried here")
    kinds = [cls for cls in COMPONENTS.values() if cls.module == module]
    cases = [case for cls in kinds for case in cls.cases()]
    assert unnoticed_mutants(mutants_of(module), cases, tmp_path) == []


@pytest.mark.sim
@pytest.mark.parametrize("memory", ["fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"])
def test_a_wrong_bit_in_a_memory_is_noticed(memory, design, copied):
    """The highest bit of the first element; the simulator reads the file when it runs."""
    path = copied.directory / "mem" / f"{memory}.mem"
    words = path.read_text().split()
    flipped = int(words[0], 16) ^ 0x80 if memory != "fc2_bias" else int(words[0], 16) ^ 0x40
    words[0] = f"{flipped:0{len(words[0])}x}"
    path.write_text("\n".join(words) + "\n")
    assert is_noticed_in_values(copied, design)
    with pytest.raises(HardwareError, match=rf"{memory}.mem: not the memory of design.json"):
        check_memories(copied.directory)


@pytest.mark.sim
def test_swapped_weight_tiles_are_noticed(design, copied):
    path = copied.directory / "mem" / "fc1_weight.mem"
    words = path.read_text().split()
    path.write_text("\n".join([words[1], words[0], *words[2:]]) + "\n")
    assert is_noticed_in_values(copied, design)


@pytest.mark.sim
def test_a_wrong_entry_that_no_input_reaches_is_noticed(design, copied):
    path = copied.directory / "mem" / "tanh_table.mem"
    words = path.read_text().split()
    words[-1] = f"{int(words[-1], 16) ^ 1:0{len(words[-1])}x}"
    path.write_text("\n".join(words) + "\n")
    assert is_noticed(copied, design)
