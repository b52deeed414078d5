"""Conversions of layouts: every step is right on all devices, and sends the bytes of its price."""

import itertools

import pytest
import torch

from chop.distributed.conversions import (
    Tensors,
    collectives_of,
    conversion_seconds,
    conversion_steps,
    encode,
)
from chop.distributed.layouts import sharded_dim
from chop.distributed.mesh import Mesh

LAYOUTS = ("R", "P", "S0", "S1")
TENSORS = Tensors(8.0 * 64, 1)
"""64 numbers of 8 bytes."""


def parts_of(x, layouts, shape):
    """The local part of every device, by its place; partial sums add up to `x`."""
    parts = {(): x}
    for layout, count in zip(layouts, shape, strict=True):
        parts = {
            (*place, i): part
            for place, whole in parts.items()
            for i, part in enumerate(divided(whole, layout, count))
        }
    return parts


def divided(whole, layout, count):
    if layout == "P":
        terms = [torch.randn(whole.shape, dtype=whole.dtype) for _ in range(count - 1)]
        return [whole - sum(terms), *terms]
    dim = sharded_dim(layout)
    return [whole] * count if dim is None else whole.chunk(count, dim)


def stepped(parts, step, count):
    """The parts after one step, and the bytes that a device sends."""
    after, sent = {}, 0.0
    for place in parts:
        ring = [parts[(*place[: step.axis], i, *place[step.axis + 1 :])] for i in range(count)]
        size, share = ring[0].numel() * 8, (count - 1) / count
        old, new = sharded_dim(step.before), sharded_dim(step.after)
        whole = ring[place[step.axis]]
        if step.before == "P":
            whole, sent = sum(ring), size * share * (1 if new is not None else 2)
        elif old is not None:
            whole, sent = torch.cat(ring, old), size * (count - 1 if new is None else share)
        after[place] = whole if new is None else whole.chunk(count, new)[place[step.axis]]
    return after, sent


@pytest.mark.parametrize(
    "shape",
    [(2,), (2, 4), (1, 2), (2, 1, 2), pytest.param((2, 2, 2), marks=pytest.mark.slow)],
    ids=str,
)
def test_every_conversion_is_right_and_sends_what_is_priced(shape):
    x = torch.randn(8, 8, dtype=torch.float64)
    mesh = Mesh(shape)
    for before, after in itertools.product(itertools.product(LAYOUTS, repeat=len(shape)), repeat=2):
        if "P" in after:  # its terms are others, and the last step sets zeros
            continue
        parts, sent = parts_of(x, before, shape), [0.0] * len(shape)
        for step in conversion_steps(before, after, shape):
            parts, size = stepped(parts, step, shape[step.axis])
            sent[step.axis] += size
        for place, part in parts_of(x, after, shape).items():
            torch.testing.assert_close(parts[place], part, msg=f"{before} to {after} at {place}")
        priced = [0.0] * len(shape)
        for each in collectives_of(encode([before]), encode([after]), TENSORS, mesh):
            priced[each.axis] += each.sent
        assert priced == pytest.approx(sent), (before, after)


def test_collectives_that_shrink_parts_run_first_and_gathers_last():
    first = conversion_steps(("S0", "R"), ("R", "S2"), (2, 2))
    assert [step.axis for step in first] == [1, 0]
    nested = conversion_steps(("S0", "S0"), ("R", "S0"), (2, 2))  # both split dimension 0
    assert [(step.axis, step.after) for step in nested] == [(1, "R"), (0, "R"), (1, "S0")]


def test_tables_have_the_seconds_of_each_conversion():
    mesh = Mesh((2, 4), bandwidth=(1e6, 1e7))
    layouts = list(itertools.product(LAYOUTS, repeat=2))
    table = conversion_seconds(encode(layouts), encode(layouts), TENSORS, mesh)
    for (i, before), (j, after) in itertools.product(enumerate(layouts), repeat=2):
        alone = collectives_of(encode([before]), encode([after]), TENSORS, mesh)
        assert table[i, j] == pytest.approx(sum(each.seconds for each in alone), abs=1e-15)
