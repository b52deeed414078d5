"""Small designs whose AXI ports several tests use."""

from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.library.components import Relu
from chop.hw.library.fixed_arithmetic import Add
from chop.hw.streams.builder import Builder

NUMBER = Fixed(5, 2)


def one_beat():
    """A design of one small beat: TDATA is one byte, and every transfer has TLAST."""
    builder = Builder("top")
    x = builder.input("data_in_0", Stream((3,), 1, Fixed(3, 0)))
    builder.output("data_out_0", builder.add("relu", Relu(builder.stream(x), Fixed(3, 0)), x))
    return builder.build()


def two_inputs():
    """A design with two inputs, whose beats of 15 bits end in the middle of a byte."""
    builder = Builder("top")
    x, y = (builder.input(f"data_in_{k}", Stream((4, 6), 3, NUMBER)) for k in range(2))
    total = Add(builder.stream(x), builder.stream(y), NUMBER)
    builder.output("data_out_0", builder.add("add", total, x, y))
    return builder.build()
