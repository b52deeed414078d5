"""Measure the time of a graph per batch, and its accuracy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.trace.environment import evaluation_mode
from chop.passes.base import PassResult, graph_pass
from chop.passes.report_table import draw_table, show
from chop.passes.rewrite.propagate import bind_inputs, device_of

LABELS = "labels"


@dataclass(frozen=True)
class RuntimeArgs:
    """Settings of `runtime_analysis_pass`.

    `data_module`: has `test_dataloader()` and, for `test` false, `val_dataloader()`; without one
    the inputs of the trace are run. `num_batches`: batches to time. `num_warmup_batches`: batches
    run before. The other keys are accepted for older programs.
    """

    data_module: Any = None
    num_batches: int = 20
    num_warmup_batches: int = 3
    test: bool = True
    num_GPU_warmup_batches: int | None = None  # noqa: N815 - as programs spell it
    accelerator: str | None = None
    dataset: Any = None
    model: Any = None
    task: str | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.num_batches < 1:
            raise ConfigError(f"num_batches must be at least 1, got {self.num_batches}.")


@graph_pass("runtime_analysis_pass", RuntimeArgs)
def runtime_analysis_pass(graph: MaseGraph, args: RuntimeArgs) -> PassResult:
    """Time the model on batches in evaluation mode; with labels, measure its accuracy.

    `info` has `batches`, `latency_ms` (the median of a batch), `rows_per_second` and, if the data
    has labels, `accuracy`.
    """
    warmup = args.num_GPU_warmup_batches
    warmup = args.num_warmup_batches if warmup is None else warmup
    times, right, rows, device = [], [], 0, device_of(graph.model)
    with torch.inference_mode(), evaluation_mode(graph.model):
        for batch in _batches(args, args.num_batches + warmup):
            inputs = bind_inputs(graph, _first(batch), "runtime")
            start = time.perf_counter()
            output = graph.model(**inputs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - start)
            first = next((v for v in inputs.values() if isinstance(v, Tensor) and v.dim()), None)
            rows += 1 if first is None else first.shape[0]
            labels = batch.get(LABELS) if isinstance(batch, Mapping) else None
            labels = batch[1] if isinstance(batch, tuple | list) else labels
            if labels is not None:
                scores = _first(output["logits"] if isinstance(output, Mapping) else output)
                right.append(scores.argmax(-1).cpu() == torch.as_tensor(labels))
    measured = times[warmup:] or times
    info: dict[str, Any] = {
        "batches": len(measured),
        "latency_ms": 1000 * statistics.median(measured),
        "rows_per_second": rows / sum(times),
    }
    if right:
        info["accuracy"] = float(torch.cat(right).float().mean())
    show("\n" + draw_table([info], tuple(info)))
    return graph, info


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) else value


def _batches(args: RuntimeArgs, count: int) -> Iterable[Any]:
    """Yield `count` batches; start again at the first after the last."""
    data = args.data_module
    while count > 0:
        before = count
        batches = [None]
        if data is not None:
            batches = data.test_dataloader() if args.test else data.val_dataloader()
        for batch in batches:
            if count == 0:
                return
            yield batch
            count -= 1
        if count == before:
            raise ConfigError("runtime.data_module: gives no batch.")
