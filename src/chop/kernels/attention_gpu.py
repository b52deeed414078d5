"""Attention of few queries on a GPU, in Triton: each key and value is read once.

A program owns the query heads that share a head of keys, and one part of the keys. It writes the
largest score, the sum and the mean of its part; the last program of a head to finish combines the
parts in order, so that the result does not depend on timing.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from chop.kernels.device import multiprocessors, tickets_for

NO_MASK, ADDED, ALLOWED = (tl.constexpr(i) for i in range(3))
KEYS_AT_ONCE = 64
TILE_BYTES = 1 << 14
"""Most bytes of the keys of a step: three steps are in flight."""
MOST_PARTS = 32
"""Most parts of the keys: the last program reads them all."""


@triton.jit
def _attention_kernel(
    query, key, value, mask, out, partial, tickets,
    key_heads, group, queries, keys, size, value_size, part_keys, scale,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    m_batch, m_head, m_row, m_key, o_batch, o_head, o_row,
    SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    PARTS: tl.constexpr, MASK: tl.constexpr, IS_CAUSAL: tl.constexpr,
):  # fmt: skip
    """ROWS rows are the queries of `group` heads, one head after the other."""
    head, part = tl.program_id(0), tl.program_id(1)
    batch, key_head = (head // key_heads).to(tl.int64), (head % key_heads).to(tl.int64)
    r, d, e = tl.arange(0, ROWS), tl.arange(0, SIZE), tl.arange(0, VALUE_SIZE)
    own, row = (key_head * group + r // queries).to(tl.int64), (r % queries).to(tl.int64)
    has_row, has_d, has_e = r < group * queries, d < size, e < value_size
    q_at = query + batch * q_batch + own[:, None] * q_head + row[:, None] * q_row + d[None, :]
    q = tl.load(q_at, mask=has_row[:, None] & has_d[None, :], other=0.0)
    k_of = key + batch * k_batch + key_head * k_head
    v_of = value + batch * v_batch + key_head * v_head
    m_of = mask + batch * m_batch + own * m_head + row * m_row
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mean = tl.zeros((ROWS, VALUE_SIZE), tl.float32)
    first = part * part_keys
    for start in range(first, min(first + part_keys, keys), KEYS):
        n = (start + tl.arange(0, KEYS)).to(tl.int64)
        has = n < keys
        k_at, v_at = k_of + n[None, :] * k_row + d[:, None], v_of + n[:, None] * v_row + e[None, :]
        k = tl.load(k_at, mask=has[None, :] & has_d[:, None], other=0.0)
        v = tl.load(v_at, mask=has[:, None] & has_e[None, :], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        scores = _masked(
            scores, m_of, n, m_key, row, has[None, :] & has_row[:, None], MASK, IS_CAUSAL
        )
        higher = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # where no key is allowed yet
        weight = tl.exp(scores - level[:, None])
        keep = tl.exp(top - level)
        total = total * keep + tl.sum(weight, 1)
        mean = mean * keep[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        top = higher
    is_last = True
    if PARTS > 1:
        heads = tl.num_programs(0)
        at = ((part * heads + head) * ROWS + r).to(tl.int64)
        ends = partial + PARTS * heads.to(tl.int64) * ROWS * VALUE_SIZE
        tl.store(partial + at[:, None] * VALUE_SIZE + e[None, :], mean)
        tl.store(ends + at * 2, top)
        tl.store(ends + at * 2 + 1, total)
        tl.debug_barrier()  # the whole program has written before its ticket is drawn
        is_last = tl.atomic_add(tickets + head, 1, sem="acq_rel") == PARTS - 1
        if is_last:
            mean, total = _together(partial, ends, heads, head, ROWS, VALUE_SIZE, PARTS)
            tl.store(tickets + head, 0)
    if is_last:
        result = mean / tl.where(total == 0.0, 1.0, total)[:, None]  # 0 where no key was allowed
        y_at = out + batch * o_batch + own[:, None] * o_head + row[:, None] * o_row + e[None, :]
        tl.store(y_at, result.to(out.dtype.element_ty), mask=has_row[:, None] & has_e[None, :])


@triton.jit
def _masked(scores, m_of, n, m_key, row, allowed, MASK: tl.constexpr, IS_CAUSAL: tl.constexpr):
    """Add the mask to the scores; minus infinity where a key is not `allowed`."""
    if MASK == ADDED:
        added = tl.load(m_of[:, None] + n[None, :] * m_key, mask=allowed, other=0.0)
        scores += added.to(tl.float32)
    if MASK == ALLOWED:
        allowed &= tl.load(m_of[:, None] + n[None, :] * m_key, mask=allowed, other=0) != 0
    if IS_CAUSAL:
        allowed &= n[None, :] <= row[:, None]
    return tl.where(allowed, scores, float("-inf"))


@triton.jit
def _together(
    partial, ends, heads, head, ROWS: tl.constexpr, VALUE_SIZE: tl.constexpr, PARTS: tl.constexpr
):
    """Return the weighted sums of all parts, and the sums of their weights."""
    r, e = tl.arange(0, ROWS), tl.arange(0, VALUE_SIZE)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mean = tl.zeros((ROWS, VALUE_SIZE), tl.float32)
    for p in range(PARTS):
        at = ((p * heads + head) * ROWS + r).to(tl.int64)
        part_top = tl.load(ends + at * 2, cache_modifier=".cg")
        of_part = tl.load(ends + at * 2 + 1, cache_modifier=".cg")
        values = tl.load(partial + at[:, None] * VALUE_SIZE + e[None, :], cache_modifier=".cg")
        higher = tl.maximum(top, part_top)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        keep, more = tl.exp(top - level), tl.exp(part_top - level)
        total = total * keep + of_part * more
        mean = mean * keep[:, None] + values * more[:, None]
        top = higher
    return mean, total


def run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    mask_strides: Sequence[int],
    is_causal: bool,
    scale: float,
) -> Tensor:
    """Return the attention of operands that fit; `mask_strides` are of batch, head, query, key."""
    batch, heads, queries, size = query.shape
    _, key_heads, keys, value_size = value.shape
    out = query.new_empty((batch, queries, heads, value_size)).transpose(1, 2)
    programs, group = batch * key_heads, heads // key_heads
    rows, width = _padded(group * queries), _padded(value_size)
    at_once = _keys_at_once(query.element_size() * max(_padded(size), width))
    part_keys = _part_keys(keys, at_once, programs, multiprocessors(query.device))
    parts = triton.cdiv(keys, part_keys)
    partial, tickets = out, out
    if parts > 1:
        room = parts * programs * rows * (width + 2)
        partial = torch.empty(room, dtype=torch.float32, device=query.device)
        tickets = tickets_for(query.device, programs)
    kind = NO_MASK if mask is None else ALLOWED if mask.dtype == torch.bool else ADDED
    mask_or_any = query if mask is None else mask.view(torch.uint8) if kind is ALLOWED else mask
    _attention_kernel[(programs, parts)](
        query, key, value, mask_or_any, out, partial, tickets,
        key_heads, group, queries, keys, size, value_size, part_keys, scale,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *mask_strides,
        *out.stride()[:3],
        SIZE=_padded(size), VALUE_SIZE=width, ROWS=rows, KEYS=at_once, PARTS=parts,
        MASK=kind.value, IS_CAUSAL=is_causal, num_warps=4,
    )  # fmt: skip
    return out


def _padded(size: int) -> int:
    """Return the smallest tile that holds `size`."""
    return max(16, int(triton.next_power_of_2(size)))


def _keys_at_once(row_bytes: int) -> int:
    """Return the keys per step that fit."""
    return max(16, min(KEYS_AT_ONCE, TILE_BYTES // row_bytes))


def _part_keys(keys: int, at_once: int, programs: int, multiprocessors: int) -> int:
    """Return the keys of a program, so that there is one per multiprocessor."""
    chunks = triton.cdiv(keys, at_once)
    parts = min(chunks, MOST_PARTS, max(1, triton.cdiv(multiprocessors, programs)))
    return int(triton.cdiv(chunks, parts)) * at_once
