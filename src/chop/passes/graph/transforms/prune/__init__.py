"""Pruning: masks on weights and activations, and the removal of channels and heads."""

from chop.passes.graph.transforms.prune.pack_semi_structured import (
    pack_semi_structured_transform_pass,
)
from chop.passes.graph.transforms.prune.prune import (
    prune_detach_hook_transform_pass,
    prune_transform_pass,
)
from chop.passes.prune.importance import GradientScores
from chop.passes.prune.schedule import CubicSchedule

__all__ = [
    "CubicSchedule",
    "GradientScores",
    "pack_semi_structured_transform_pass",
    "prune_detach_hook_transform_pass",
    "prune_transform_pass",
]
