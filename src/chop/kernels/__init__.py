"""Packed weights: pack, unpack and multiply, on CPU and GPU behind one call; attention."""

from chop.kernels.attention import scaled_dot_product_attention
from chop.kernels.layers import QEmbeddingPacked, QLinearInt8, QLinearPacked
from chop.kernels.ops import PackedTensor, pack, packed_embedding, packed_linear, unpack
from chop.kernels.packed_experts import QExpertsPacked
from chop.kernels.packed_formats import GROUP_SIZES, INTEGER_FORMATS, PACKED_FORMATS
from chop.kernels.reference import dequantize_mxint8
from chop.kernels.rounded_activations import round_activations

__all__ = [
    "GROUP_SIZES",
    "INTEGER_FORMATS",
    "PACKED_FORMATS",
    "PackedTensor",
    "QEmbeddingPacked",
    "QExpertsPacked",
    "QLinearInt8",
    "QLinearPacked",
    "dequantize_mxint8",
    "pack",
    "packed_embedding",
    "packed_linear",
    "round_activations",
    "scaled_dot_product_attention",
    "unpack",
]
