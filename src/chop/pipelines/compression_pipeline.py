"""Quantise and prune in one call."""

from __future__ import annotations

from typing import ClassVar

from chop.passes import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    prune_transform_pass,
    quantize_transform_pass,
)
from chop.passes.base import PassFunction
from chop.pipelines.auto import AutoPipeline, Step

COMPRESSION_STEPS = (
    Step(init_metadata_analysis_pass, "missing", "init"),
    Step(add_common_metadata_analysis_pass, "missing", "common"),
    Step(quantize_transform_pass),
    Step(prune_transform_pass),
)
"""Annotate the graph if necessary, quantise, prune."""


class CompressionPipeline(AutoPipeline):
    """Quantisation and pruning by the arguments; missing metadata is added.

        pipe = CompressionPipeline()
        mg, _ = pipe(mg, pass_args={
            "quantize_transform_pass": {"by": "type", "linear": {"config": config}},
            "prune_transform_pass": {"weight": {"sparsity": 0.5}},
        })

    Either order keeps both: pruned weights stay zero in every format, and pruned layers keep
    their format.
    """

    STEPS: ClassVar[tuple[Step | PassFunction | str, ...]] = COMPRESSION_STEPS
