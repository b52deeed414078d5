import doctest

import numpy as np
import pytest
from designs import BYTE, residual

from chop.errors import ConfigError, HardwareError
from chop.hw.arith.golden import Fixed
from chop.hw.design import design as design_module
from chop.hw.design.design import Design, Stage, Wire
from chop.hw.design.stream import Stream
from chop.hw.library.components import (
    Add,
    Concat,
    Embedding,
    HardSigmoid,
    LeakyRelu,
    Linear,
    Lut,
    Matmul,
    MaxPool,
    Relu,
    Reorder,
    Slice,
    SlidingWindow,
    Weights,
    WithConstant,
)
from chop.hw.streams.builder import Builder

VECTOR = Stream((4,), 2, BYTE)
MATRIX = Stream((4, 4), 2, BYTE)


def relu(name, source):
    return Stage(name, Relu(VECTOR, BYTE), (source,))


def test_the_example_in_the_documentation_runs():
    assert doctest.testmod(design_module).failed == 0


def test_builder_puts_a_fork_before_two_users_and_a_gearbox_between_parallelisms():
    modules = [stage.component.module for stage in residual().stages]
    assert modules.count("stream_fork") == 1
    assert modules.count("gearbox") == 2


@pytest.mark.parametrize(
    ("stages", "outputs", "told"),
    [
        ([relu("a", Wire("x")), relu("b", Wire("x"))], {"y": Wire("b")}, "it needs a fork"),
        ([relu("a", Wire("b")), relu("b", Wire("x"))], {"y": Wire("a")}, "no earlier stage gives"),
        ([relu("a", Wire("x"))], {}, "nothing uses the output of a"),
    ],
)  # fmt: skip
def test_a_design_that_is_not_wired_well_is_refused(stages, outputs, told):
    with pytest.raises(HardwareError, match=told):
        Design("top", {"x": VECTOR}, tuple(stages), outputs).check()


def test_a_stream_of_another_width_is_refused():
    wide = Stage("a", Relu(Stream((4,), 4, BYTE), BYTE), (Wire("x"),))
    with pytest.raises(HardwareError, match=r"stage 'a': expected Stream.*'x' gives"):
        Design("top", {"x": VECTOR}, (wide,), {"y": Wire("a")}).check()


def test_builder_refuses_a_name_twice_and_a_tensor_of_another_size():
    builder = Builder("top")
    x = builder.input("x", VECTOR)
    with pytest.raises(HardwareError, match=r"the name 'x' is taken"):
        builder.input("x", VECTOR)
    with pytest.raises(HardwareError, match=r"stage 'r' takes \(6,\), 'x' gives \(4,\)"):
        builder.add("r", Relu(Stream((6,), 2, BYTE), BYTE), x)


def test_a_stage_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(HardwareError, match=r"no stage 'fc3'. Did you mean 'fc"):
        residual().stage("fc3")


def _weights(outputs, inputs):
    import numpy as np

    return Weights(np.ones((outputs, inputs), dtype=np.int64), BYTE)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Linear(VECTOR, _weights(4, 4), BYTE, 3), "must divide 4 outputs, got 3"),
        (lambda: Linear(VECTOR, _weights(4, 6), BYTE, 2), "weights take 6 inputs, the stream has"),
        (lambda: Relu(VECTOR, Fixed(6, 2)), "fixed_relu: the format stays Q8.4, got Q6.2"),
        (lambda: LeakyRelu(VECTOR, BYTE, slope=-1), "slope and slope_frac must be 0 or more"),
        (lambda: HardSigmoid(Stream((4,), 2, Fixed(8, -1)), BYTE), "frac_width must be 0 or more"),
        (lambda: Lut(Stream((4,), 2, Fixed(20, 4)), BYTE), "a table needs an input of 1 … 16 bits"),
        (lambda: Add(VECTOR, Stream((4,), 4, BYTE), BYTE), "operands must have one shape and"),
        (lambda: Reorder(VECTOR, (0, 0, 1, 2), (4,)), "order must name each of 4 elements once"),
        (lambda: Reorder(VECTOR, (0, 4), (2,)), "order must name elements from 0 to 3"),
        (lambda: Matmul(VECTOR, VECTOR, BYTE), "must be matrices with the same leading dimensions"),
        (lambda: Matmul(MATRIX, Stream((3, 4), 2, BYTE), BYTE), "inner sizes must be equal"),
        (lambda: Matmul(MATRIX, MATRIX, BYTE, lanes=4), "data_in_1 must have the lanes of what"),
        (lambda: Slice(MATRIX, 1, (4, 2)), "first and size must be whole beats of 2"),
        (lambda: Slice(MATRIX, 4, (4, 2)), "elements 4 to 5 of 4"),
        (lambda: Concat(MATRIX, Stream((4, 4), 1, BYTE), (4, 4), (4, 8)), "one format and"),
        (lambda: Concat(MATRIX, MATRIX, (4, 8), (4, 8)), r"blocks \(4, 8\) must divide"),
        (lambda: WithConstant(Add(VECTOR, VECTOR, BYTE), np.arange(3)), "got 3 constants for 4"),
        (lambda: Embedding(VECTOR, np.zeros((4, 4)), BYTE), "must be unsigned and whole"),
        (lambda: SlidingWindow(Stream((4, 4, 1), 1, BYTE), (2, 2), padding=(2, 2)), "does not fit"),
        (lambda: MaxPool(Stream((4, 4, 1), 1, BYTE), (2, 2), format=Fixed(4)), "the format stays"),
    ],
)  # fmt: skip
def test_a_component_with_sizes_that_cannot_be_is_refused(make, told):
    with pytest.raises(ConfigError, match=told):
        make()
