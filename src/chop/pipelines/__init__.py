"""Pipelines of passes, with arguments by pass name."""

from chop.pipelines.auto import AutoPipeline, Step
from chop.pipelines.compression_pipeline import COMPRESSION_STEPS, CompressionPipeline

__all__ = ["COMPRESSION_STEPS", "AutoPipeline", "CompressionPipeline", "Step"]
