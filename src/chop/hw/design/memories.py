"""Files beside the RTL: memories, weights that ports receive, test vectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chop.errors import HardwareError
from chop.files import read_text
from chop.hw.arith.golden import Ints
from chop.hw.design.component import Memory
from chop.hw.design.design import Design, Interface, whole_flights
from chop.hw.design.stream import Stream

Files = dict[str, str]
"""Text by path relative to the hardware directory."""


def memory_text(memory: Memory) -> str:
    r"""Return hexadecimal words for $readmemh, one line each.

    >>> memory_text(Memory("weight", (1, 255), 9))
    '001\\n0ff\\n'
    """
    digits = (memory.width + 3) // 4
    return "".join(f"{word:0{digits}x}\n" for word in memory.words)


def memory_files(design: Design) -> Files:
    """Return one file for each constant memory, and for each port that receives weights."""
    files = {
        f"mem/{stage.name}_{memory.name}.mem": memory_text(memory)
        for stage in design.stages
        for memory in stage.component.memories()
    }
    return files | {f"mem/{name}.mem": memory_text(sent(design, name)) for name in design.sent}


def sent(design: Design, name: str) -> Memory:
    """Return the words that the outside streams into the port `name`, repeatedly, in this order."""
    stream = design.inputs[name]
    return Memory(name, tuple(stream.words(design.sent[name])), stream.beat_width)


def vector_files(design: Design, inputs: Mapping[str, Ints]) -> Files:
    """Return test vectors: one hexadecimal word per beat, for inputs and expected outputs.

    Inputs that carry weights have none: their words are with the memories.
    """
    data = {name: stream for name, stream in design.inputs.items() if name not in design.sent}
    streams = {**data, **design.output_streams()}
    codes = whole_flights({**inputs, **design.golden(inputs)}, design.in_flight)
    return {
        f"test/{name}.mem": memory_text(Memory(name, tuple(s.words(codes[name])), s.beat_width))
        for name, s in streams.items()
    }


def read_vectors(directory: Path, streams: Mapping[str, Stream]) -> dict[str, Ints]:
    """Return the codes in the test vectors of `streams`."""
    return {
        name: read_codes(directory / "test" / f"{name}.mem", name, stream, (-1, *stream.shape))
        for name, stream in streams.items()
    }


def read_inputs(directory: Path, interface: Interface) -> dict[str, Ints]:
    """Return the codes in the test vectors of all inputs, with the weights that some receive."""
    data = {n: s for n, s in interface.inputs.items() if n not in interface.sent}
    vectors = read_vectors(directory, data)
    tensors = len(next(iter(vectors.values())))
    for name, shape in interface.sent.items():
        stream = interface.inputs[name]
        codes = read_codes(directory / "mem" / f"{name}.mem", name, stream, shape)
        vectors[name] = np.broadcast_to(codes, (tensors, *stream.shape))
    return vectors


def read_codes(path: Path, name: str, stream: Stream, shape: tuple[int, ...]) -> Ints:
    """Return the codes of the words in the file `path`."""
    if not path.exists():
        raise HardwareError(f"{path}: no such file. Run emit_cocotb_transform_pass first.")
    try:
        words = [int(line, 16) for line in read_text(path, HardwareError).split()]
        return stream.codes(words).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise HardwareError(f"{path}: not the words of '{name}' ({error}).") from error
