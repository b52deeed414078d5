"""Small designs on boards, and the host program that was emitted with them."""

import importlib.util

from chop.hw.arith.golden import Fixed
from chop.hw.boards.board_files import emit_board
from chop.hw.boards.board_table import get_board
from chop.hw.design.stream import Stream
from chop.hw.library.components import Relu
from chop.hw.library.fixed_arithmetic import Add
from chop.hw.sim.emit import emit, vector_files, write_files
from chop.hw.sim.simulate import random_inputs
from chop.hw.streams.builder import Builder
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)


def annotated(model, x):
    """The graph of `model` with its metadata."""
    graph, _ = init_metadata_analysis_pass(MaseGraph(model.eval(), dummy_in=x))
    return add_common_metadata_analysis_pass(graph)[0]


def one_beat(stream=None):
    """ReLU of a stream; by default of three small numbers."""
    stream = stream or Stream((3,), 1, Fixed(3, 0))
    builder = Builder("top")
    x = builder.input("data_in_0", stream)
    relu = Relu(builder.stream(x), stream.format)
    builder.output("data_out_0", builder.add("relu", relu, x))
    return builder.build()


def two_ports():
    """Two inputs that must arrive together, and two outputs; beats end in the middle of a byte."""
    builder, number = Builder("top"), Fixed(5, 2)
    x, y, z = (builder.input(f"data_in_{k}", Stream((4, 6), 3, number)) for k in range(3))
    total = Add(builder.stream(x), builder.stream(y), number)
    builder.output("data_out_0", builder.add("add", total, x, y))
    builder.output("data_out_1", builder.add("relu", Relu(builder.stream(z), number), z))
    return builder.build()


def emitted(design, folder, *, tensors=4, board="ulx3s", **options):
    """Emit a design with test vectors and its board project; return the hardware directory."""
    hardware = emit(design, folder / "hardware")
    write_files(hardware, vector_files(design, random_inputs(design, tensors)))
    emit_board(hardware, get_board(board), **options)
    return hardware


def host_program(hardware):
    """Import the emitted host program."""
    spec = importlib.util.spec_from_file_location("host", hardware / "board" / "host.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
