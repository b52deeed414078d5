"""Designs with mutants built in, chosen by a number in a file.

Each mutant (`chop.hw.design.mutants`) replaces a text of a module by a choice between the old and
the new one, so a single build serves all of them: the file `mutant.mem` says which one is on, 0 for
none.
"""

import re

import numpy as np
from designs import BYTE, random_weights, residual_block

from chop.hw.arith.golden import Fixed
from chop.hw.design.mutants import Mutant as Mutant
from chop.hw.design.mutants import mutant_files, read_equivalents, read_mutants
from chop.hw.design.stream import Stream
from chop.hw.library.components import (
    AvgPool,
    BatchNorm,
    Concat,
    Conv2d,
    Embedding,
    Fifo,
    Linear,
    Lut,
    Matmul,
    MaxPool,
    Mul,
    Reorder,
    Slice,
)
from chop.hw.sim.emit import top_text, used_components
from chop.hw.streams.builder import Builder

FILES = mutant_files()
EQUIVALENT = {
    name: reason for file in FILES.values() for name, reason in read_equivalents(file).items()
}
"""Generated faults that change nothing a design can show: the reason, by the fault's name."""


def mutants_of(*names):
    """Return the mutants of these files."""
    return [mutant for name in names for mutant in read_mutants(FILES[name])]


ROW_MODULES = ("fixed_softmax", "fixed_norm", "fixed_piecewise", "row_buffer")
BLOCK_MODULES = ("fixed_to_mxint", "mxint_to_fixed", "fixed_linear mxint")
SHARED_MODULES = ("stream_route", "rom_bank_source")
CROSSED = Mutant(
    "operands are crossed",
    "top",
    "fc1_weight",
    "{fc1_weight[31:0], fc1_weight[63:32]}",
    ".weight          (fc1_weight)",
)

_CHOICE = "mutation::chosen[0]"
_PACKAGE = "package mutation;\n  logic [15:0] chosen[1];\nendpackage\n"
_READ = '  initial $readmemh("mem/mutant.mem", mutation::chosen);\n'


def with_mutants(directory, mutants):
    """Build the choice between `mutants` into the RTL of `directory`; the numbers, by name."""
    numbers = {}
    # a module of the design reads the number: stages without registers need no skid buffer
    has_buffer = (directory / "rtl" / "skid_buffer.sv").exists()
    reader = "skid_buffer" if has_buffer else mutants[0].module
    for path in sorted((directory / "rtl").glob("*.sv")):
        text = path.read_text()
        places = {}
        for mutant in (m for m in mutants if m.module == path.stem):
            span = mutant.span(text)
            if span is not None:
                assert mutant.what not in numbers, f"{mutant.what} is there twice"
                numbers[mutant.what] = len(numbers) + 1
                places.setdefault(span, []).append(mutant)
        following = len(text)
        for (start, end), here in sorted(places.items(), reverse=True):
            assert end <= following, f"{here[0].what} overlaps another mutant"
            following = start
            text = text[:start] + _choice(text[start:end], here, numbers) + text[end:]
        if path.stem == reader:
            text = text.replace("\nendmodule", f"\n{_READ}\nendmodule")
        path.write_text(text)
    (directory / "rtl" / "a_mutation.sv").write_text(_PACKAGE)
    choose(directory, 0)
    return numbers


def _choice(old, mutants, numbers):
    for mutant in mutants:
        is_on = f"{_CHOICE} == 16'd{numbers[mutant.what]}"
        if mutant.is_statement:
            old = f"if ({is_on}) begin {mutant.new} end else begin {old} end"
        else:
            old = f"({is_on} ? ({mutant.new}) : ({old}))"
    return old


def choose(directory, number):
    """Turn on the mutant of that number, 0 for none."""
    file = directory / "mem" / "mutant.mem"
    file.parent.mkdir(exist_ok=True)  # a design without memories has none
    file.write_text(f"{number:04x}\n")


def zoo():
    """A residual block, and beside it a network with every kind of buffer and table."""
    builder = Builder("top")
    residual_block(builder, "data_in_0", "data_out_0")
    rng = np.random.default_rng(5)
    pairs = ((3, 3), (1, 1), (1, 1))
    x = builder.input("data_in_1", Stream((5, 6, 2), 1, BYTE))
    conv = Conv2d(builder.stream(x), *pairs, weights=random_weights(3, 18, 3), format=BYTE, lanes=3)
    y = builder.add("conv", conv, x)
    one_lane, three_lanes = Stream((5, 6, 3), 1, BYTE), Stream((5, 6, 3), 3, BYTE)
    scale, shift = rng.integers(8, 32, 3), rng.integers(-32, 32, 3)
    y = builder.add("norm", BatchNorm(one_lane, BYTE, scale, shift, BYTE, BYTE), y)
    y = builder.add("queue", Fifo(one_lane, 5), y)
    y = builder.add("tanh", Lut(three_lanes, Fixed(8, 6), np.tanh), y)
    image = Stream((5, 6, 3), 1, Fixed(8, 6))  # pooling leaves the last row out
    best = builder.add("best", MaxPool(image, (2, 2), (2, 2), format=image.format), y)
    mean = builder.add("mean", AvgPool(image, (2, 2), (2, 2), format=image.format), y)
    small = builder.stream(best)
    edges = AvgPool(small, (2, 2), (1, 1), (1, 1), format=BYTE, counts_padding=False)
    builder.output("data_out_2", builder.add("edges", edges, best))
    y = builder.add("product", Mul(small, small, BYTE), best, mean)
    order = tuple(int(k) for k in rng.permutation(18))
    y = builder.add("order", Reorder(Stream((18,), 2, BYTE), order, (18,)), y)
    head = Linear(Stream((18,), 3, BYTE), random_weights(5, 18, 4), BYTE, 1)
    builder.output("data_out_1", builder.add("head", head, y))
    _products(builder)
    numbers = builder.input("data_in_6", Stream((5,), 1, Fixed(3, 0, is_signed=False)))
    rows = Embedding(builder.stream(numbers), rng.integers(-99, 99, (6, 6)), BYTE, 2)
    builder.output("data_out_5", builder.add("words", rows, numbers))
    z = builder.input("data_in_2", Stream((18,), 2, BYTE))
    builder.output("data_out_3", builder.add("deep", Fifo(builder.stream(z), 256), z))
    return builder.build()


def _products(builder):
    """(x @ y.T) @ z for two heads, beside the rest."""
    x, y, z = (
        builder.input(f"data_in_{k}", Stream((2, rows, 4), 2, BYTE))
        for k, rows in ((3, 3), (4, 6), (5, 6))
    )
    scores = Matmul(builder.stream(x), builder.stream(y), BYTE, True, 2)
    s = builder.add("scores", scores, x, y)
    mixed = Matmul(Stream((2, 3, 6), 3, BYTE), builder.stream(z), BYTE, False, 2)
    y = builder.add("mixed", mixed, s, z)
    one, token = Stream((1, 4), 2, BYTE), np.array([5, -7, 11, 3])
    tokens = Stream((6, 4), 2, BYTE)
    y = builder.add("token", Concat(tokens, one, (24, 4), (7, 4), True, token), y)
    builder.output("data_out_4", builder.add("part", Slice(Stream((28,), 2, BYTE), 2, (24,)), y))


def module_names(text):
    """Modules that `text` instantiates."""
    return set(re.findall(r"^  (\w+) #\($", text, re.M))


ZOO_MODULES = sorted({*FILES} & {*used_components(top_text(zoo()))} - {*ROW_MODULES})
MUTANTS = [*mutants_of(*ZOO_MODULES), CROSSED]
OTHER_MODULES = sorted({*FILES} - {*ZOO_MODULES, *ROW_MODULES, *BLOCK_MODULES, *SHARED_MODULES})
"""Modules of no design here: their mutants are tried on the cases of their components."""
