"""The six experiments: which studies each has, over which space, measured how.

To add a study: a row in the list of its experiment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from subjects import RECOVERY, Task

from chop.nn.quantizers import FORMATS
from chop.search.architecture import ArchitectureSpace
from chop.search.compression import PruneSpace
from chop.search.evaluate import (
    MODES,
    ArchitectureEvaluator,
    CompressionEvaluator,
    ModelEvaluator,
    PrecisionEvaluator,
)
from chop.search.precision import DEFAULT_SETTINGS, FLOAT, PrecisionSpace
from chop.search.space import Space
from chop.search.training import TrainingSpace

ACCURACY = {"accuracy": "maximize"}
ACCURACY_AND_BITS = {"accuracy": "maximize", "average_bits": "minimize"}
BASE_SEED = 0
PRIORITY = (6, 2, 1, 5, 3, 4)
"""In which order experiments are done."""


@dataclass(frozen=True)
class StudyPlan:
    """A study: `evaluator(task)` measures a point of its space."""

    experiment: int
    label: str
    sampler: str
    trials: int
    evaluator: Callable[[Task], ModelEvaluator]
    objectives: Mapping[str, str] = field(default_factory=lambda: ACCURACY)
    initial: Callable[[Space], Sequence[Mapping[str, Any]]] = lambda space: ()

    @property
    def name(self) -> str:
        """The name of the study in the storage."""
        return f"{self.experiment}-{self.label.replace(' ', '-').replace('>', '')}"


# -- 1 and 2: architectures ---------------------------------------------------------------------

SIZES = {
    "num_hidden_layers": [1, 2, 3],
    "num_attention_heads": [2, 4],
    "hidden_size": [64, 128, 192],
    "intermediate_size": [256, 512, 768],
}
LAYERS = {"attention.output.dense": ["linear", "identity"]}
RATES = {"learning_rate": [2e-4, 3e-4, 5e-4]}
NEAR_BASE = {
    "num_hidden_layers": [1, 2],
    "num_attention_heads": [2, 4],
    "intermediate_size": [256, 512],
}
"""For the compression-aware search."""
OWN_SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 128,
    "intermediate_size": 512,
    "learning_rate": 3e-4,
}
"""The pretrained model's, and the rate it is fine-tuned with: every study begins there."""
EIGHT_BITS = {
    "integer": {"width": 8, "frac_width": [4, 5, 6]},
    "mxint": {"width": [6, 8]},
    "block_fp": {"width": [6, 8]},
}


@functools.cache
def architectures(task: Task) -> ArchitectureEvaluator:
    """Sizes, layers left out, and the learning rate."""
    space = ArchitectureSpace(task.pretrained, SIZES, layers=LAYERS) * TrainingSpace(RATES)
    return ArchitectureEvaluator(task.subject(), space, ("parameters",))


@functools.cache
def compressed(task: Task, mode: str) -> CompressionEvaluator:
    """An architecture that is trained, quantised and pruned, and perhaps trained again."""
    space = ArchitectureSpace(task.pretrained, NEAR_BASE) * TrainingSpace(RATES)
    if mode != "no compression":
        formats = PrecisionSpace(task.graph, EIGHT_BITS, by="type", joint=True, keep_float=False)
        space = space * formats * PruneSpace({"sparsity": [0.3, 0.5, 0.7], "method": "l1-norm"})
    return CompressionEvaluator(
        task.subject(),
        space,
        ("average_linear_bits",),
        mode=mode,
        recovery={"learning_rate": RECOVERY},
    )


# -- 3 to 6: number formats of the fine-tuned model ---------------------------------------------

LAB_WIDTHS = {"integer": {"width": [8, 16, 32], "frac_width": [2, 4, 8]}}
MIXED: dict[str, Any] = {
    "integer": [{"width": 8, "frac_width": 4}, {"width": 16, "frac_width": 8}],
    "scale_integer": {"width": [6, 8]},
    "binary_residual": {"levels": 4},
    "ternary": {"scaling_factor": True},
    "log": {"width": 8, "exponent_bias": 31},
    "minifloat_ieee": {"width": [8, 10], "exponent_width": 4},
    "minifloat_denorm": {"width": [8, 10], "exponent_width": 4},
    "fp8": {"element": "e4m3"},
    "block_fp": {"width": [6, 8]},
    "block_minifloat": {"width": [6, 8], "exponent_width": 2},
    "block_log": {"width": 6},
    "mxint": {"width": [6, 8]},
    "mxfp": {"element": ["e2m3", "e4m3"]},
}
"""Formats of the mixed search, with one or two settings each."""
FEW_BITS = {
    "mxint": {"width": 8, "weight_width": [2, 3, 4, 5, 6, 8]},
    "block_minifloat": {"width": 8, "exponent_width": 2, "weight_width": [4, 5, 6]},
    "mxfp": {"element": "e4m3", "weight_element": ["e2m1", "e2m3", "e3m2"]},
    "scale_integer": {"width": 8, "weight_granularity": "channel", "weight_width": [4, 5, 6]},
}
"""Few bits for weights, eight for what flows between layers."""


def precision(task: Task, formats: Any, **options: Any) -> PrecisionEvaluator:
    """The fine-tuned model with its layers in `formats`, not trained again."""
    space = PrecisionSpace(task.graph, formats, joint=True, **options)
    subject = task.subject(start=lambda seed: task.kept("train", BASE_SEED))
    costs = ("average_bits", "average_linear_bits")
    return PrecisionEvaluator(subject, space, costs, recovery={"learning_rate": RECOVERY})


@functools.cache
def integers(task: Task) -> PrecisionEvaluator:
    """Every linear layer with a width and a fraction of its own."""
    return precision(task, LAB_WIDTHS, keep_float=False)


@functools.cache
def one_format(task: Task, name: str) -> PrecisionEvaluator:
    """Every linear layer in one format, with settings of its own."""
    return precision(task, {name: DEFAULT_SETTINGS[name]}, keep_float=False)


@functools.cache
def mixed(task: Task) -> PrecisionEvaluator:
    """Every linear layer in a format of its own."""
    return precision(task, MIXED)


@functools.cache
def few_bits(task: Task) -> PrecisionEvaluator:
    """Every linear layer and embedding in few bits."""
    return precision(task, FEW_BITS, ops=("linear", "embedding"))


def each_alone(space: Space) -> list[dict[str, Any]]:
    """Every option, everywhere."""
    assert isinstance(space, PrecisionSpace)
    return [space.uniform(label) for label in space.options if label != FLOAT]


def as_pretrained(space: Space) -> list[dict[str, Any]]:
    """The pretrained architecture, every layer kept; eight bits and few zeros where compressed."""
    known = {**OWN_SIZES, "linear": "mxint(width=8)", "prune.sparsity": 0.3}
    layers = [f"bert.encoder.layer.{i}.attention.output.dense" for i in range(2)]
    point = {**known, **dict.fromkeys(layers, "linear")}
    return [{name: value for name, value in point.items() if name in space.dimensions}]


def good_guess(space: Space) -> list[dict[str, Any]]:
    """Eight bits in shared-exponent formats."""
    assert isinstance(space, PrecisionSpace)
    return [space.uniform(label) for label in ("block_fp(width=8)", "mxint(width=8)")]


def plans() -> list[StudyPlan]:
    """Every study."""

    def with_format(name: str) -> Callable[[Task], ModelEvaluator]:
        return lambda task: one_format(task, name)

    def in_mode(mode: str) -> Callable[[Task], ModelEvaluator]:
        return lambda task: compressed(task, mode)

    return [
        *(
            StudyPlan(1, s, s, 24, architectures, initial=as_pretrained)
            for s in ("grid", "random", "tpe")
        ),
        *(StudyPlan(2, mode, "tpe", 12, in_mode(mode), initial=as_pretrained) for mode in MODES),
        *(StudyPlan(3, s, s, 60, integers) for s in ("random", "tpe")),
        *(StudyPlan(4, name, "tpe", 12, with_format(name), initial=each_alone) for name in FORMATS),
        *(StudyPlan(5, s, s, 80, mixed, initial=good_guess) for s in ("random", "tpe")),
        *(
            StudyPlan(6, s, s, 120, few_bits, ACCURACY_AND_BITS, each_alone)
            for s in ("nsga2", "tpe")
        ),
    ]
