"""Evaluation of a point of a hardware space: the metric, and the predicted cells and pace.

The design and its cost are computed before the model is measured: a trial that does not fit the
part, or that another one beats for any value of the metric, ends there.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from chop.actions.hardware_formats import Observed, observe_values
from chop.actions.metrics import direction_of
from chop.actions.study_subject import Subject
from chop.errors import ConfigError
from chop.hw.design.design import Design
from chop.hw.flow.predict import Prediction, predict
from chop.hw.flow.route.parts import get_part
from chop.hw.lower import DesignSpec, Lowerer
from chop.hw.lower.design_cache import attached_design
from chop.hw.sim.emit import design_fingerprint
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.pipelines import CompressionPipeline
from chop.search.compression import factor
from chop.search.costs import PREDICTED, HardwareScore, compute_costs, score_design
from chop.search.evaluate import (
    QUANTIZE,
    EvaluationStage,
    ModelEvaluator,
    Params,
    keep_graph,
    made,
    train,
)
from chop.search.hardware_space import HardwareSpace
from chop.search.trial import Pruned, TrialContext

OBJECTIVES = ("frames_per_second", "predicted_lut", "predicted_dsp")
"""Default objectives besides the metric."""
PRUNE = "prune_transform_pass"
HARDWARE = "hardware"
"""Attribute of a trial with its design."""
SHARES = ((1, 1 / 9), (3, 1 / 3), (9, 1.0))
"""Steps of measuring, as pruners have their rungs, and the share of rows measured by then."""
FEWEST_ROWS = 64
"""Fewer rows than these are measured at once."""
BEST = {"maximize": 1.0, "minimize": 0.0}
"""Direction -> best value of any metric."""


class Scored(NamedTuple):
    """A design with its settings, its score, and the costs among the objectives."""

    spec: DesignSpec
    design: Design
    score: HardwareScore
    costs: dict[str, float]


@dataclass(frozen=True)
class HardwareEvaluator(ModelEvaluator):
    """Evaluation that prunes, quantises and folds a copy of a trained model by a `HardwareSpace`.

    With `train_after` it then trains the copy in its formats. A trial stores the attribute
    `hardware`: the settings of the design, its prediction, and its fingerprint, which the emitted
    design has too.
    """

    costs: tuple[str, ...] = OBJECTIVES
    train_after: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if factor(self.space, HardwareSpace) is None:
            raise ConfigError(
                f"HardwareEvaluator.space: no HardwareSpace in {type(self.space).__name__}."
            )

    @property
    def stages(self) -> tuple[EvaluationStage, ...]:
        return ("compress", "train") if self.train_after else ("compress",)

    @property
    def hardware(self) -> HardwareSpace:
        """The part of the space that describes the design."""
        space = factor(self.space, HardwareSpace)
        assert space is not None, "checked when it was made"
        return space

    def __call__(self, params: Params, context: TrialContext) -> dict[str, float]:
        """Return the objectives of a point; raise `Pruned` if it is hopeless."""
        graph = self._compressed(params, context)
        scored = self._scored(graph, params)
        if self._is_settled(params):
            self._require_hope(context, self.ceiling, scored.costs, "before it is measured")
        context.expect(scored.costs)
        if self.train_after:
            train(self, graph, params, context, itertools.count(1), self.recovery)
            scored = self._scored(graph, params)
        context.attribute(HARDWARE, self._record(scored))
        value = self._measure(graph, context, scored.costs)
        if self.keep:
            keep_graph(graph, context)
        return {self.objective: value, **scored.costs}

    def build(self, params: Params, context: TrialContext) -> MaseGraph:
        """Return the finished model of a point, annotated: equal for equal point and seed."""
        graph = self._compressed(params, context)
        if self.train_after:
            train(self, graph, params, context, itertools.count(1), self.recovery)
        add_hardware_metadata_analysis_pass(graph, self.hardware.design_spec(graph, params))
        return graph

    def describe(self, params: Params, seed: int = 0) -> dict[str, Any]:
        """Return the meaning of a point, as plain tables."""
        graph, observed = made(self.subject).graph(seed), _observed(made(self.subject))
        quantize = self.hardware.quantize_args(graph, observed, params)
        pruned = self.hardware.prune_args(params, seed)
        return {
            "stages": list(self.stages),
            "seed": seed,
            QUANTIZE: quantize,
            **({} if pruned is None else {PRUNE: pruned}),
            "add_hardware_metadata_analysis_pass": self.hardware.design_args(params),
        }

    @property
    def ceiling(self) -> float:
        """The best value that the metric is assumed to reach."""
        ceiling = self.hardware.table.ceiling
        if ceiling is not None:
            return ceiling
        if self.train_after:
            return BEST[direction_of(self.objective)]
        return _uncompressed(made(self.subject))

    def _compressed(self, params: Params, context: TrialContext) -> MaseGraph:
        context.attribute("seed", context.seed)
        graph = self._start(params, context)
        rules = self.hardware.quantize_args(graph, _observed(made(self.subject)), params)
        pruned = self.hardware.prune_args(params, context.seed)
        arguments = {QUANTIZE: rules, **({} if pruned is None else {PRUNE: pruned})}
        graph, info = CompressionPipeline()(graph, arguments)
        layers = self.hardware.layers
        context.attribute("formats", {n: r["config"] for n, r in rules.items() if n in layers})
        if PRUNE in info:
            context.attribute("sparsity", info[PRUNE]["sparsity"])
        return graph

    def _scored(self, graph: MaseGraph, params: Params) -> Scored:
        """Annotate a graph and score its design; raise `Pruned` if it does not fit.

        A design that does not fit without its FIFOs does not fit with them: sizing takes most time.
        """
        spec, part = self.hardware.design_spec(graph, params), self.hardware.table.part
        self._require_room(predict(Lowerer(graph, spec).run().design, part))
        add_hardware_metadata_analysis_pass(graph, spec)
        design = attached_design(graph).design
        score = score_design(design, part)
        self._require_room(score.prediction)
        rest = [name for name in self.costs if name not in PREDICTED]
        costs = compute_costs(graph, rest) | {n: PREDICTED[n](score) for n in PREDICTED}
        return Scored(spec, design, score, {name: costs[name] for name in self.costs})

    def _is_settled(self, params: Params) -> bool:
        """Return whether training keeps the cost: sums of shifts depend on the weights."""
        return not self.train_after or "multiplier" not in self.hardware.design_args(params)

    def _record(self, scored: Scored) -> dict[str, Any]:
        prediction = scored.score.prediction
        return {
            "part": self.hardware.table.part,
            "design": design_fingerprint(scored.design),
            "interval": scored.score.interval,
            "predicted": {**prediction.takes(), "mhz": prediction.mhz},
            "predicted_errors": prediction.errors,
            "args": scored.spec.to_config(),
        }

    def _require_room(self, prediction: Prediction) -> None:
        part = get_part(self.hardware.table.part)
        has = part.has()
        over = {k: n for k, n in prediction.takes().items() if n > has.get(k, n)}
        if over:
            excess = ", ".join(f"{n} {kind.upper()} of {has[kind]}" for kind, n in over.items())
            raise Pruned(f"it does not fit {part.name}: {excess} predicted.")

    def _require_hope(
        self, context: TrialContext, best: float, costs: Mapping[str, float], when: str
    ) -> None:
        better = context.beaten_by({self.objective: best, **costs})
        if better is not None:
            raise Pruned(
                f"trial {better} is no worse in any objective even if {self.objective} becomes "
                f"{best:.4g}: ended {when}."
            )

    def _measure(
        self, graph: MaseGraph, context: TrialContext, costs: Mapping[str, float]
    ) -> float:
        """Return the metric; accuracy in steps of rows, while there is hope."""
        subject = made(self.subject)
        rows, part = subject.rows, subject.evaluate_rows
        if self.objective != "accuracy" or part is None or rows < FEWEST_ROWS or self.train_after:
            return float(subject.evaluate(graph))
        right = done = 0
        for step, share in SHARES:
            upto = math.ceil(rows * share)
            right += round(part(graph, done, upto) * (upto - done))
            done = upto
            if done < rows:
                context.report(step, right / done)
                best = min(self.ceiling, (right + rows - done) / rows)
                self._require_hope(context, best, costs, f"after {done} of {rows} rows")
        return right / rows


@functools.lru_cache(maxsize=4)
def _observed(subject: Subject) -> Observed:
    """Return the values of the uncompressed model, once in each process."""
    graph, _ = CompressionPipeline()(subject.graph(0))
    return observe_values(graph, subject.batches())


@functools.lru_cache(maxsize=4)
def _uncompressed(subject: Subject) -> float:
    """Return the metric of the uncompressed model, once in each process."""
    return float(subject.evaluate(subject.graph(0)))
