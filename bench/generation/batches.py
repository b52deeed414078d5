"""Tokens per second at several batch sizes: a Llama with random weights, compiled, static cache.

Each batch size compares packed weights with bfloat16 weights run the same way. The steps, their
check and their time are those of `decode`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from decode import BASE, SHAPES, Step, captured, changed, llama, records_of

BATCHES = (1, 8, 32)
FORMATS = (BASE, f"{BASE}+fused", "mxint8+fused", "mxint4+fused")


def measure(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one record for each batch size and number format."""
    with torch.device(asked.device):
        model = llama(SHAPES[asked.shape])
    base = captured(model)
    runs = {
        name: (base if name == BASE else changed(base, name)).as_transformers() for name in FORMATS
    }
    for batch in BATCHES:
        torch._dynamo.reset()
        steps = {name: Step(run, asked.device, True, batch) for name, run in runs.items()}
        for record in records_of(model, steps, asked, compiled=True):
            yield {"batch": batch, **record, "tokens_per_s": batch / record["ms"] * 1e3}
