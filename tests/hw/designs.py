"""Small designs that several tests share."""

from itertools import pairwise

import numpy as np

from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream
from chop.hw.library.components import Add, Linear, Relu, Weights
from chop.hw.streams.builder import Builder

BYTE = Fixed(8, 4)


def random_weights(outputs, inputs, seed=0, number=BYTE, spread=0.5):
    """Weights around zero, so that outputs use their range and some saturate."""
    rng = np.random.default_rng(seed)
    weight = number.encode(rng.normal(0, spread, (outputs, inputs)))
    return Weights(weight, number, number.encode(rng.normal(0, 1, outputs)), number)


def mlp(sizes, lanes, number=BYTE):
    """Linear layers with ReLU between; `lanes` of each of the sizes."""
    builder = Builder("top")
    value = builder.input("data_in_0", Stream((sizes[0],), lanes[0], number))
    for k, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights = random_weights(outputs, inputs, seed=k)
        layer = Linear(Stream((inputs,), lanes[k], number), weights, number, lanes[k + 1])
        value = builder.add(f"fc{k + 1}", layer, value)
        if k < len(sizes) - 2:
            value = builder.add(f"relu{k + 1}", Relu(builder.stream(value), number), value)
    builder.output("data_out_0", value)
    return builder.build()


def residual(size=8, lanes=2, seed=0):
    """x + relu(linear(x)), then a linear layer that takes the whole vector at once."""
    builder = Builder("top")
    residual_block(builder, "data_in_0", "data_out_0", size, lanes, seed)
    return builder.build()


def residual_block(builder, source, target, size=8, lanes=2, seed=0):
    """The stages of `residual`, from a new input to a new output."""
    x = builder.input(source, Stream((size,), lanes, BYTE))
    fine = Fixed(10, 6)
    inner = Linear(builder.stream(x), random_weights(size, size, seed), fine, 2 * lanes)
    y = builder.add("fc1", inner, x)
    y = builder.add("relu", Relu(builder.stream(y), fine), y)
    total = Add(Stream((size,), lanes, fine), builder.stream(x), BYTE)
    z = builder.add("add", total, y, x)
    head = Linear(Stream((size,), size, BYTE), random_weights(4, size, seed + 1), Fixed(6, 2), 1)
    builder.output(target, builder.add("fc2", head, z))
