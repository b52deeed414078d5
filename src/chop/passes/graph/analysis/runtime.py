"""How long a graph takes for a batch, and how often it is right."""

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
    """What to run on.

    `data_module`: gives `test_dataloader()`, or with `test` false `val_dataloader()`; without one,
    the inputs of the trace are run. `num_batches`: stop after so many; `num_warmup_batches`: run
    so many first, without timing. The other keys are as programs give them.
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
    """Time the model on batches, in evaluation mode; with labels, count how often it is right.

    `info` has `batches`, `latency_ms` (the median of a batch), `rows_per_second` and, where the
    data has labels, `accuracy`.
    """
    times, right, rows = [], [], 0
    with torch.inference_mode(), evaluation_mode(graph.model):
        for inputs, labels in _repeated(graph, args):
            seconds, output = _timed(graph, inputs)
            times.append(seconds)
            rows += _rows(inputs)
            if labels is not None:
                right.append(_scores(output).argmax(-1).cpu() == labels)
    measured = times[_warmup(args) :] or times
    info: dict[str, Any] = {
        "batches": len(measured),
        "latency_ms": 1000 * statistics.median(measured),
        "rows_per_second": rows / sum(times),
    }
    if right:
        info["accuracy"] = float(torch.cat(right).float().mean())
    show("\n" + draw_table([info], tuple(info)))
    return graph, info


def _warmup(args: RuntimeArgs) -> int:
    given = args.num_GPU_warmup_batches
    return args.num_warmup_batches if given is None else given


def _repeated(
    graph: MaseGraph, args: RuntimeArgs
) -> Iterable[tuple[dict[str, Any], Tensor | None]]:
    """So many batches as were asked for, after those of the warm-up, from the first on again."""
    wanted = args.num_batches + _warmup(args)
    while wanted > 0:
        before = wanted
        for batch in _batches(args):
            if wanted == 0:
                return
            labels = _labels(batch)
            yield bind_inputs(graph, _given(batch), "runtime"), labels
            wanted -= 1
        if wanted == before:
            raise ConfigError("runtime.data_module: gives no batch.")


def _batches(args: RuntimeArgs) -> Iterable[Any]:
    if args.data_module is None:
        return [None]
    module = args.data_module
    batches: Iterable[Any] = module.test_dataloader() if args.test else module.val_dataloader()
    return batches


def _given(batch: Any) -> Any:
    is_pair = isinstance(batch, tuple | list)
    return batch[0] if is_pair else batch


def _labels(batch: Any) -> Tensor | None:
    if isinstance(batch, tuple | list):
        return torch.as_tensor(batch[1])
    return (
        torch.as_tensor(batch[LABELS]) if isinstance(batch, Mapping) and LABELS in batch else None
    )


def _timed(graph: MaseGraph, inputs: Mapping[str, Any]) -> tuple[float, Any]:
    device = device_of(graph.model)
    start = time.perf_counter()
    output = graph.model(**inputs)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, output


def _rows(inputs: Mapping[str, Any]) -> int:
    first = next((v for v in inputs.values() if isinstance(v, Tensor) and v.dim()), None)
    return 1 if first is None else first.shape[0]


def _scores(output: Any) -> Tensor:
    if isinstance(output, Mapping):
        output = output["logits"]
    scores: Tensor = output[0] if isinstance(output, tuple) else output
    return scores
