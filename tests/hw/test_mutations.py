"""The verdict can fail: each of these faults in RTL, wiring or memories must be noticed."""

import shutil
from dataclasses import dataclass

import pytest
from designs import residual

from chop.errors import HardwareError
from chop.hw.cycles import Stalls, balanced
from chop.hw.emit import emit
from chop.hw.simulate import Simulator, random_inputs

STALLS = (Stalls(), Stalls(0.5, 0.5, 11))


@dataclass(frozen=True)
class Mutant:
    """One fault: in `file`, `old` becomes `new`."""

    what: str
    file: str
    old: str
    new: str


MUTANTS = [
    Mutant("rounding is floor", "rtl/fixed_cast.sv", "floored[0] && !is_tie", "floored[0]"),
    Mutant(
        "half is not added",
        "rtl/fixed_cast.sv",
        "assign raised  = wide + HALF",
        "assign raised  = wide",
    ),
    Mutant(
        "half does not ride in",
        "rtl/fixed_linear.sv",
        "(ACC_FRAC - BIAS_PRECISION_1)) + HALF",
        "(ACC_FRAC - BIAS_PRECISION_1))",
    ),
    Mutant("wrong shift", "rtl/fixed_cast.sv", "raised >>> DROPPED", "raised >>> (DROPPED - 1)"),
    Mutant(
        "saturation wraps",
        "rtl/fixed_cast.sv",
        "is_in_range ? low_bits :",
        "1'b1 || is_in_range ? low_bits :",
    ),
    Mutant(
        "saturates to the wrong end",
        "rtl/fixed_cast.sv",
        "sign ? LOWEST : HIGHEST",
        "sign ? HIGHEST : LOWEST",
    ),
    Mutant("unsigned product", "rtl/fixed_dot_product.sv", "<= x * w;", "<= x * $unsigned(w);"),
    Mutant(
        "a lane is added twice",
        "rtl/fixed_dot_product.sv",
        "+ SUM_WIDTH'(product_q);",
        "+ SUM_WIDTH'(product_q) + SUM_WIDTH'(product_q);",
    ),
    Mutant(
        "bias is left out",
        "rtl/fixed_linear.sv",
        "sum + (sum_first ? start :",
        "sum + (sum_first ? HALF :",
    ),
    Mutant(
        "a bias is taken with every beat",
        "rtl/fixed_linear.sv",
        "assign bias_ready = sum_valid && sum_first && skid_ready",
        "assign bias_ready = sum_valid && skid_ready",
    ),
    Mutant(
        "the accumulator is not restarted",
        "rtl/fixed_linear.sv",
        "(sum_first ? start :",
        "(sum_first && sum_last ? start :",
    ),
    Mutant(
        "the replay begins at the wrong slot",
        "rtl/fixed_linear.sv",
        "is_last && !is_last_pass ? base_q : read_next",
        "read_next",
    ),
    Mutant(
        "one pass too few",
        "rtl/fixed_linear.sv",
        "out_fold_q == OUT_FOLD_WIDTH'(OUT_FOLDS - 1)",
        "out_fold_q == OUT_FOLD_WIDTH'(OUT_FOLDS - 2 + 32'(OUT_FOLDS == 1))",
    ),
    Mutant(
        "the vector is freed too early",
        "rtl/fixed_linear.sv",
        "assign free            = issue && is_last_pass",
        "assign free            = issue",
    ),
    Mutant(
        "a slot is overwritten",
        "rtl/fixed_linear.sv",
        "assign data_in_0_ready = level_q != LEVEL_WIDTH'(SLOTS)",
        "assign data_in_0_ready = 1'b1",
    ),
    Mutant(
        "ready is stuck at zero",
        "rtl/skid_buffer.sv",
        "assign data_in_0_ready  = !held_valid_q",
        "assign data_in_0_ready  = 1'b0 & !held_valid_q",
    ),
    Mutant(
        "ready is stuck at one",
        "rtl/skid_buffer.sv",
        "assign data_in_0_ready  = !held_valid_q",
        "assign data_in_0_ready  = 1'b1 | !held_valid_q",
    ),
    Mutant(
        "a held beat is dropped",
        "rtl/skid_buffer.sv",
        "held_valid_q ? held_q : data_in_0;",
        "data_in_0;",
    ),
    Mutant(
        "an offer is withdrawn",
        "rtl/skid_buffer.sv",
        "assign data_out_0_valid = out_valid_q",
        "assign data_out_0_valid = out_valid_q && data_out_0_ready",
    ),
    Mutant(
        "a beat is repeated",
        "rtl/fifo.sv",
        "if (pop) read_q <= read_q == LAST_SLOT ? '0 : read_q + 1'b1",
        "if (pop) read_q <= read_q",
    ),
    Mutant(
        "a full queue takes more",
        "rtl/fifo.sv",
        "count_q != COUNT_WIDTH'(DEPTH)",
        "count_q != COUNT_WIDTH'(DEPTH + 1)",
    ),
    Mutant(
        "gearbox lanes are swapped",
        "rtl/gearbox.sv",
        "data_in_0[unit*UNIT_WIDTH+:UNIT_WIDTH]",
        "data_in_0[(IN_UNITS-1-unit)*UNIT_WIDTH+:UNIT_WIDTH]",
    ),
    Mutant(
        "join does not wait",
        "rtl/stream_join.sv",
        "data_in_0_valid && data_in_1_valid",
        "data_in_0_valid || data_in_1_valid",
    ),
    Mutant(
        "one branch runs ahead",
        "rtl/stream_fork.sv",
        "assign data_in_0_ready = &branch_ready",
        "assign data_in_0_ready = |branch_ready",
    ),
    Mutant(
        "relu keeps the sign",
        "rtl/fixed_relu.sv",
        "is_negative ? '0 :",
        "is_negative && 1'b0 ? '0 :",
    ),
    Mutant("add subtracts", "rtl/fixed_add.sv", ": a + b;", ": a - b;"),
    Mutant(
        "operands are crossed",
        "rtl/top.sv",
        ".weight          (fc1_weight)",
        ".weight          ({fc1_weight[31:0], fc1_weight[63:32]})",
    ),
    Mutant("a layer reads another's bias", "rtl/top.sv", "mem/fc2_bias.mem", "mem/fc1_bias.mem"),
    Mutant(
        "the weights start one word late",
        "rtl/rom_source.sv",
        "address_q        <= '0;\n    end\n  end",
        "address_q        <= ADDRESS_WIDTH'(1);\n    end\n  end",
    ),
]


@pytest.fixture(scope="module")
def design():
    return balanced(residual())


@pytest.fixture(scope="module")
def sound(design, tmp_path_factory):
    """The emitted design and its simulator, which finds nothing wrong."""
    directory = emit(design, tmp_path_factory.mktemp("sound"))
    simulator = Simulator(design, directory)
    assert not is_noticed(simulator, design)
    return simulator


def is_noticed(simulator, design):
    """Whether the verdict is that something is wrong, under full rate or under stalls."""
    for stalls in STALLS:
        try:
            if not simulator.run(random_inputs(design, 24), stalls).is_exact:
                return True
        except HardwareError:
            return True
    return False


def test_the_list_has_fifteen_mutants_or_more_and_none_twice():
    assert len({(m.file, m.new) for m in MUTANTS}) == len(MUTANTS) >= 15


@pytest.mark.sim
@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.what.replace(" ", "-") for m in MUTANTS])
def test_mutant_is_killed(mutant, design, sound, tmp_path):
    for part in ("rtl", "mem"):
        shutil.copytree(sound.directory / part, tmp_path / part)
    path = tmp_path / mutant.file
    assert path.read_text().count(mutant.old) >= 1
    path.write_text(path.read_text().replace(mutant.old, mutant.new))
    assert is_noticed(Simulator(design, tmp_path), design)


@pytest.mark.sim
@pytest.mark.parametrize("memory", ["fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"])
def test_a_wrong_bit_in_a_memory_is_noticed(memory, design, sound, tmp_path):
    """The highest bit of the first element; the simulator reads the file when it runs."""
    shutil.copytree(sound.directory / "mem", tmp_path / "mem")
    path = tmp_path / "mem" / f"{memory}.mem"
    words = path.read_text().split()
    flipped = int(words[0], 16) ^ 0x80 if memory != "fc2_bias" else int(words[0], 16) ^ 0x40
    words[0] = f"{flipped:0{len(words[0])}x}"
    path.write_text("\n".join(words) + "\n")
    assert is_noticed(sound.at(tmp_path), design)


@pytest.mark.sim
def test_swapped_weight_tiles_are_noticed(design, sound, tmp_path):
    shutil.copytree(sound.directory / "mem", tmp_path / "mem")
    path = tmp_path / "mem" / "fc1_weight.mem"
    words = path.read_text().split()
    path.write_text("\n".join([words[1], words[0], *words[2:]]) + "\n")
    assert is_noticed(sound.at(tmp_path), design)
