"""`mase eval`: evaluate a model on a dataset."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions
from chop.errors import ConfigError

if TYPE_CHECKING:
    from chop.cli.data import Data
    from chop.ir.graph import MaseGraph

EXAMPLES = (
    "mase eval out/train --dataset digits",
    "mase eval out/quantize --dataset digits --json",
    "mase eval ./llama --metric perplexity --dataset ./text --test-rows 64",
    "mase eval out/quantize --metric token_agreement --against ./llama --dataset ./text",
    "mase eval ./llama --dataset ./text --max-token-len 1024 --stride 512 --all-rows",
    "mase eval out/quantize --tasks arc_easy,hellaswag --test-rows 200",
)
AGREEMENT = "token_agreement"
LANGUAGE = ("perplexity", AGREEMENT)
"""Metrics of running text."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig(ModelOptions, DataOptions, OutputOptions):
    """Reference."""

    keeps_packed: ClassVar[bool] = True

    against: Annotated[str | None, "Reference model for the metric token_agreement."] = None
    stride: Annotated[
        int | None,
        "Tokens between the starts of windows of running text, which overlap if it is less than "
        "--max-token-len: each token is then predicted from at least the difference. Default: no "
        "overlap.",
    ] = None
    tasks: Annotated[
        tuple[str, ...],
        "Tasks of lm-eval for a language model, instead of a dataset: arc_easy,hellaswag … Needs "
        "pip install 'lm-eval<0.5'.",
    ] = ()
    task_folder: Annotated[
        Path | None, "Folder of your own tasks, YAML files of lm-eval; their data may be local."
    ] = None
    shots: Annotated[
        int | None, "Worked examples before each question of a task. Default: the task's own."
    ] = None
    out: Path = Path("out/eval")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tasks and (self.dataset or self.against):
            raise ConfigError("tasks: they have data of their own; leave out dataset and against.")
        if not self.tasks and (self.task_folder or self.shots is not None):
            raise ConfigError("task_folder and shots are for tasks: give --tasks too.")
        if self.stride is not None and not 0 < self.stride <= (self.max_token_len or self.stride):
            raise ConfigError(
                f"stride: {self.stride}. Allowed: 1 to the tokens of a window (max_token_len: "
                f"{self.max_token_len})."
            )
        if self.shots is not None and self.shots < 0:
            raise ConfigError(f"shots: {self.shots}. Allowed: 0 or more.")


def run(config: EvalConfig, session: Session) -> dict[str, Any]:
    """Return the loss and the metric on the test rows, or the metrics of tasks."""
    from chop.cli.source import describe, load_with_data
    from chop.cli.train_and_measure import measured, rows_to_measure

    if config.tasks:
        return _on_tasks(config, session)
    source, data, graph = load_with_data(_by_stride(config), "eval")
    data = _with_context(config, data)
    reference = _reference(config, data)
    data = rows_to_measure(session, graph, data, config)
    with session.console.progress(f"evaluate on {len(data.test)} rows"):
        metrics = measured(session, graph, data, config, reference)
    for name, value in metrics.items():
        session.console.say(f"{name}: {value:.4f}")
    return {**describe(graph, source), "rows": len(data.test), "eval": metrics}


def _by_stride(config: EvalConfig) -> EvalConfig:
    """Return a configuration whose rows are as long as the stride; context is added to them."""
    if config.stride is None:
        return config
    if config.measure not in LANGUAGE:
        raise UsageError(f"--stride is for running text, got --metric {config.measure}.")
    return dataclasses.replace(config, max_token_len=config.stride, stride=None, test_rows=None)


def _with_context(config: EvalConfig, data: Data) -> Data:
    """Return the data with windows of `max_token_len` tokens that start every `stride`."""
    from chop.cli.data import TEST, Data
    from chop.dataset.row_selection import draw_rows
    from chop.dataset.strided import StridedRows

    if config.stride is None:
        return data
    assert config.max_token_len is not None, "the inferred default"
    rows = StridedRows(data.test, config.max_token_len)
    if config.test_rows is not None:
        rows = draw_rows(rows, config.test_rows, config.data_seed)
    return Data({**data.splits, TEST: rows}, data.tokenizer)


def _on_tasks(config: EvalConfig, session: Session) -> dict[str, Any]:
    """Return the metrics of a language model on tasks of lm-eval."""
    import torch

    from chop.actions.language_tasks import check_tasks, measure_tasks
    from chop.cli import text_generation as text
    from chop.cli.source import describe, find_source

    check_tasks(config.tasks, config.task_folder)
    source = find_source(config)
    text.check_language(config, source)
    graph = text.graph_with_cache(source, torch.float32, session)
    tokenizer = text.load_tokenizer_of(config, source)
    session.start_work()
    with session.console.progress(f"evaluate on {', '.join(config.tasks)}"):
        rows = measure_tasks(
            graph, tokenizer, config.tasks, folder=config.task_folder, rows=config.test_rows,
            shots=config.shots, batch_size=config.eval_batch_size or 8,
        )  # fmt: skip
    session.console.table(rows, floatfmt=".4f")
    return {**describe(graph, source), "tasks": rows}


def _reference(config: EvalConfig, data: Data) -> MaseGraph | None:
    from chop.cli.source import find_source, load_graph

    if config.against is None:
        if config.measure == AGREEMENT:
            raise UsageError(f"--metric {AGREEMENT} compares with another model: give --against.")
        return None
    if config.measure != AGREEMENT:
        raise UsageError(f"--against is for --metric {AGREEMENT}, got --metric {config.measure}.")
    other = dataclasses.replace(config, model=config.against)
    return load_graph(other, find_source(other, is_alone=False), data)
