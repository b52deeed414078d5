"""Buffers of a native program share memory only where no thread can need both."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from chop.kernels.step_code import Instruction
from chop.kernels.step_memory import ALIGNMENT, share_memory

COUNT = 60


def program(draw: random.Random) -> tuple[list[Instruction], list[Tensor]]:
    """Instructions that each write a buffer and read two earlier ones, with waits at random."""
    buffers = [torch.zeros(draw.randrange(1, 200)) for _ in range(COUNT)]
    instructions = []
    for index in range(1, COUNT):
        each = Instruction(waits=draw.random() < 0.5)
        each.out.at = buffers[index].data_ptr()
        near = [max(0, index - draw.randrange(1, 6)) for _ in range(2)]
        each.a.at, each.b.at = (buffers[i].data_ptr() for i in near)
        instructions.append(each)
    return instructions, buffers


def users(instructions: list[Instruction], address: int) -> list[int]:
    return [
        i for i, each in enumerate(instructions) if address in (each.a.at, each.b.at, each.out.at)
    ]


def test_buffers_in_use_at_the_same_time_never_overlap() -> None:
    for seed in range(20):
        instructions, buffers = program(random.Random(seed))
        uses = [users(instructions, x.data_ptr()) for x in buffers]
        pinned = [buffers[7]]
        memory = share_memory(instructions, buffers, pinned)
        places = [(instructions[i - 1].out.at, buffers[i].nbytes) for i in range(1, COUNT)]
        assert places[6][0] == buffers[7].data_ptr()
        assert all(each.a.at != 0 and each.a.at % 4 == 0 for each in instructions)
        for one in range(1, COUNT):
            for other in range(one + 1, COUNT):
                last, first = max(uses[one]), min(uses[other])
                is_apart = any(each.waits for each in instructions[last + 1 : first + 1])
                (a, n), (b, m) = places[one - 1], places[other - 1]
                assert is_apart or a + n <= b or b + m <= a, (seed, one, other)
        total = sum(x.nbytes + ALIGNMENT for x in buffers)
        assert memory.nbytes < 0.7 * total


def test_a_buffer_that_is_read_before_it_is_written_stays() -> None:
    instructions, buffers = program(random.Random(1))
    readers = users(instructions, buffers[0].data_ptr())
    share_memory(instructions, buffers, [])
    assert all(
        buffers[0].data_ptr() in (instructions[i].a.at, instructions[i].b.at) for i in readers
    )
