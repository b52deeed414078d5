"""Tasks of lm-eval, the usual set of benchmarks of language models, run on a graph.

lm-eval runs the graph as a model of transformers (`MaseGraph.as_transformers`), so its figures are
those of its own program for Hugging Face models.
"""

from __future__ import annotations

import contextlib
import difflib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chop.dataset.tokenized import reading
from chop.errors import ConfigError, DataError, MissingDependencyError
from chop.ir.graph import MaseGraph

DEVIATION = "_stderr"
"""End of lm-eval's names of standard deviations."""


def measure_tasks(
    graph: MaseGraph,
    tokenizer: Any,
    tasks: Sequence[str],
    *,
    folder: str | Path | None = None,
    rows: int | None = None,
    shots: int | None = None,
    batch_size: int = 8,
) -> list[dict[str, Any]]:
    """Return the metrics of each task: task, metric, value, deviation and rows.

    `folder`: YAML files of tasks, beside lm-eval's own. `rows`: number of rows of each task, the
    first ones. `shots`: worked examples before each question; default: the task's own number.
    """
    harness = _harness()
    manager = _task_manager(harness, tasks, folder)
    model = harness.model_class(
        pretrained=graph.as_transformers(), tokenizer=tokenizer, batch_size=batch_size
    )
    with _reading(", ".join(tasks)), contextlib.redirect_stderr(io.StringIO()):
        measured = harness.evaluate(
            model=model, tasks=list(tasks), task_manager=manager, limit=rows, num_fewshot=shots,
            log_samples=False, bootstrap_iters=0,
        )  # fmt: skip
    counts = measured.get("n-samples", {})
    return [
        row
        for task, values in measured["results"].items()
        for row in _rows(task, values, counts.get(task, {}).get("effective"))
    ]


class _Harness(NamedTuple):
    """The parts of lm-eval that are used."""

    evaluate: Any
    model_class: Any
    task_manager_class: Any


def _harness() -> _Harness:
    try:
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise MissingDependencyError(
            f"tasks: lm-eval is not installed ({error}). Install it: pip install 'lm-eval<0.5' "
            "accelerate peft."
        ) from error
    return _Harness(simple_evaluate, HFLM, TaskManager)


def check_tasks(tasks: Sequence[str], folder: str | Path | None = None) -> None:
    """Raise if lm-eval is not installed, or if a task is neither lm-eval's nor in `folder`."""
    _task_manager(_harness(), tasks, folder)


def _task_manager(harness: _Harness, tasks: Sequence[str], folder: str | Path | None) -> Any:
    """Return lm-eval's table of tasks. Its own thousands are read only if one of them is asked."""
    make = harness.task_manager_class
    if folder is not None:
        if not any(Path(folder).rglob("*.yaml")):
            raise DataError(f"task_folder: '{folder}' has no YAML file of a task.")
        alone = make(include_path=str(folder), include_defaults=False)
        if set(tasks) <= set(alone.all_tasks):
            return alone
    manager = make(include_path=None if folder is None else str(folder))
    for task in tasks:
        if task not in manager.all_tasks:
            near = difflib.get_close_matches(task, manager.all_tasks, n=3)
            hint = f" Did you mean {', '.join(near)}?" if near else ""
            where = "" if folder is None else f" and of '{folder}'"
            raise ConfigError(f"tasks: no task '{task}' of lm-eval{where}.{hint}")
    return manager


@contextlib.contextmanager
def _reading(tasks: str) -> Iterator[None]:
    """Convert errors of files and of the network to errors that name the tasks."""
    try:
        with reading(tasks):
            yield
    except (OSError, KeyError) as error:
        line = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise DataError(f"tasks: the data of {tasks} cannot be read ({line}).") from error


def _rows(task: str, values: Mapping[str, Any], rows: int | None) -> list[dict[str, Any]]:
    """Return the metrics of a task; lm-eval names them `metric,filter`."""
    named = {key.partition(",")[0]: value for key, value in values.items() if "," in key}
    return [
        {
            "task": task,
            "metric": metric,
            "value": float(value),
            "deviation": _number(named.get(metric + DEVIATION)),
            "rows": rows,
        }
        for metric, value in named.items()
        if not metric.endswith(DEVIATION) and isinstance(value, int | float)
    ]


def _number(value: Any) -> float | None:
    """Return a number; lm-eval writes "N/A" for one that it does not compute."""
    return float(value) if isinstance(value, int | float) else None
