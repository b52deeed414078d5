"""Evaluations of points of model spaces.

Each is a frozen dataclass that can be sent to other processes. A trial starts from its own copy of
the subject's graph, passes through stages ("train", "compress"), and is measured at the end.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn
from transformers import PreTrainedModel

from chop.actions.study_subject import Subject
from chop.arguments import FUNCTION, an, check
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.pipelines import CompressionPipeline
from chop.registry import suggest
from chop.search.architecture import ArchitectureSpace
from chop.search.compression import factor, pass_args
from chop.search.costs import check_costs, compute_costs
from chop.search.precision import PrecisionSpace
from chop.search.space import ParameterValue, Space
from chop.search.training import TrainingSpace
from chop.search.trial import TrialContext

EvaluationStage = Literal["train", "compress"]
Params = Mapping[str, ParameterValue]
QUANTIZE = "quantize_transform_pass"
CHECKPOINT = "model"
"""Name of the checkpoint in a trial's folder."""
MODES: dict[str, tuple[EvaluationStage, ...]] = {
    "no compression": ("train",),
    "train->compress": ("train", "compress"),
    "train->compress->train": ("train", "compress", "train"),
}
"""Stages by mode: the three curves of a comparison."""


@dataclass(frozen=True)
class ModelEvaluator:
    """Evaluator that runs `stages` on the subject's model and returns its metric and costs.

    `subject`: a Subject, or a function without arguments that returns one; a function can be sent
    to other processes, where it is called once. `space`: the meaning of each dimension of a point:
    architecture, precision, pruning and training, together or alone. `costs`: names of `COSTS`.
    `keep`: export the finished graph to the trial's folder. `recovery`: arguments of training for
    the stages after compression, such as a lower learning rate.

    If the architecture varies too, rules for layers that a model does not have are skipped.
    """

    subject: Subject | Callable[[], Subject]
    space: Space
    costs: tuple[str, ...] = ()
    keep: bool = False
    objective: str = "accuracy"
    recovery: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = type(self).__name__
        check(f"{where}.subject", an(Subject) | FUNCTION, self.subject)
        check(f"{where}.space", an(Space), self.space)
        check_costs(self.costs, f"{where}.costs")

    @property
    def stages(self) -> tuple[EvaluationStage, ...]:
        """Stages of a model before it is measured."""
        return ()

    def __call__(self, params: Params, context: TrialContext) -> dict[str, float]:
        """Return the objectives of a point."""
        graph = self.build(params, context)
        value = float(made(self.subject).evaluate(graph))
        costs = compute_costs(graph, self.costs)
        if self.keep:
            keep_graph(graph, context)
        return {self.objective: value, **costs}

    def build(self, params: Params, context: TrialContext) -> MaseGraph:
        """Return the finished model of a point; it depends on point and seed alone."""
        context.attribute("seed", context.seed)
        steps = itertools.count(1)
        graph = self._start(params, context)
        for number, stage in enumerate(self.stages):
            if stage == "compress":
                graph = _compress(self, graph, params, context)
            else:
                is_recovery = "compress" in self.stages[:number]
                if context.weighs_expected and "compress" not in self.stages[number:]:
                    context.expect(compute_costs(graph, self.costs))
                train(self, graph, params, context, steps, self.recovery if is_recovery else {})
        return graph

    def describe(self, params: Params, seed: int = 0) -> dict[str, Any]:
        """Return the settings of a point as tables: fields, arguments of passes and of training."""
        architecture = factor(self.space, ArchitectureSpace)
        training = factor(self.space, TrainingSpace)
        tables: dict[str, Any] = {"stages": list(self.stages), "seed": seed}
        if architecture is not None:
            tables["architecture"] = {k: params[k] for k in architecture.dimensions if k in params}
        if training is not None:
            tables["training"] = training.training_arguments(params)
        return {**tables, **pass_args(self.space, params, seed)}

    def _start(self, params: Params, context: TrialContext) -> MaseGraph:
        base = made(self.subject).graph(context.seed)
        architecture = factor(self.space, ArchitectureSpace)
        if architecture is None:
            return copy.deepcopy(base)  # a user's function may return the same graph every time
        model, inherited = architecture.build_inherited(params, context.seed)
        context.attribute("inherited", inherited.parameters)
        context.attribute("parameters", inherited.total)
        if isinstance(model, PreTrainedModel):
            names = [str(n.target) for n in base.fx_graph.nodes if n.op == "placeholder"]
            return MaseGraph(model, hf_input_names=names)
        return MaseGraph(model, dummy_in=base.dummy_in, custom_ops=base.custom_ops)


def keep_graph(graph: MaseGraph, context: TrialContext) -> None:
    """Export a trial's model to its folder."""
    graph.export(context.directory / CHECKPOINT)
    context.attribute("checkpoint", str(context.directory / CHECKPOINT))


def train(
    evaluator: ModelEvaluator,
    graph: MaseGraph,
    params: Params,
    context: TrialContext,
    steps: Iterator[int],
    more: Mapping[str, Any],
) -> None:
    """Train a model in place with the settings of the point; report each epoch."""
    subject = made(evaluator.subject)
    space = factor(evaluator.space, TrainingSpace)
    chosen = {**({} if space is None else space.training_arguments(params)), **more}
    if "on_epoch" in inspect.signature(subject.train).parameters:
        chosen["on_epoch"] = lambda epoch, value: context.report(next(steps), value)
    subject.train(graph, context.seed, **chosen)


def _compress(
    evaluator: ModelEvaluator, graph: MaseGraph, params: Params, context: TrialContext
) -> MaseGraph:
    args = pass_args(evaluator.space, params, context.seed)
    if factor(evaluator.space, ArchitectureSpace) is not None and QUANTIZE in args:
        rules = args[QUANTIZE]
        if rules["by"] == "name":  # skip rules for layers that this architecture does not have
            paths = {path for path, m in graph.modules.items() if not isinstance(m, nn.Identity)}
            paths |= {"by", "default"}
            args[QUANTIZE] = {key: rule for key, rule in rules.items() if key in paths}
    formats = factor(evaluator.space, PrecisionSpace)
    if formats is not None:
        context.attribute("formats", formats.layer_configs(params))
    graph, info = CompressionPipeline()(graph, args)
    if "prune_transform_pass" in info:
        context.attribute("sparsity", info["prune_transform_pass"]["sparsity"])
    return graph


def made(subject: Subject | Callable[[], Subject]) -> Subject:
    """Return the subject itself, or the result of its function."""
    return subject if isinstance(subject, Subject) else _call_once(subject)


@functools.cache
def _call_once(maker: Callable[[], Subject]) -> Subject:
    return maker()  # it may load data


@dataclass(frozen=True)
class CompressionEvaluator(ModelEvaluator):
    """Evaluator that trains and compresses, in the order of `mode`; see `MODES`."""

    mode: str = "train->compress->train"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in MODES:
            raise ConfigError(
                f"CompressionEvaluator.mode: unknown '{self.mode}'. {suggest(self.mode, MODES)}"
            )

    @property
    def stages(self) -> tuple[EvaluationStage, ...]:
        return MODES[self.mode]


@dataclass(frozen=True)
class PrecisionEvaluator(ModelEvaluator):
    """Evaluator that compresses a copy of a trained model; `train_after`: then trains it."""

    train_after: bool = False

    @property
    def stages(self) -> tuple[EvaluationStage, ...]:
        return ("compress", "train") if self.train_after else ("compress",)


@dataclass(frozen=True)
class ArchitectureEvaluator(ModelEvaluator):
    """Evaluator that builds a model, inherits weights and trains it."""

    @property
    def stages(self) -> tuple[EvaluationStage, ...]:
        return ("train",)


EVALUATORS: dict[str, Callable[..., ModelEvaluator]] = {
    "compress": PrecisionEvaluator,
    "compress->train": functools.partial(PrecisionEvaluator, train_after=True),
    "train": ArchitectureEvaluator,
    "train->compress": functools.partial(CompressionEvaluator, mode="train->compress"),
    "train->compress->train": functools.partial(
        CompressionEvaluator, mode="train->compress->train"
    ),
}
"""Evaluators by the stages of a trial."""
