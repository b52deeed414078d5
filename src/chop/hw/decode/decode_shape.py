"""Integer Llama without weights: its engine can be sized, synthesised and timed, not simulated."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from chop.hw.decode.block_codes import WIDTH, BlockCodes, BlockMatrix
from chop.hw.decode.decode_model import (
    MATRICES,
    DecodeModel,
    DecodeOptions,
    LayerCodes,
    NormCodes,
    check_sizes,
)
from chop.hw.decode.llama_weights import LlamaShape
from chop.nn.quantizers.arithmetic.function import fit_lines
from chop.nn.quantizers.integer import Integer

VECTOR_FRAC = 10
"""Fractional bits of all vectors: the speed of an engine does not depend on them."""
MATRIX_FRAC = 20
RESIDUAL_WIDTH = 24
"""Bits of the residual stream without another choice: those that SmolLM2-135M needs."""
LAYER_VECTORS = ("x_1", "query", "key", "value", "attended", "x_2", "up", "middle")
SHARED_VECTORS = ("hidden", "scores", "gate", "x", "logits")

SHAPES = {
    "smollm2-135m": LlamaShape(49152, 576, 1536, 30, 9, 3, 64, 1e-5),
    "llama-3.2-1b": LlamaShape(128256, 2048, 8192, 16, 32, 8, 64, 1e-5),
}
"""Name -> sizes of published models."""


def shape_model(shape: LlamaShape, options: DecodeOptions | None = None) -> DecodeModel:
    """Return an integer Llama of these sizes, with tensors that have no storage."""
    options = options or DecodeOptions()
    check_sizes(shape, options)
    fracs = dict.fromkeys(SHARED_VECTORS, VECTOR_FRAC)
    number = Integer(WIDTH, fracs["gate"])
    return DecodeModel(
        shape=shape,
        options=options,
        embedding=_empty(shape.vocab, shape.hidden),
        rotations=_empty(options.max_length, shape.head_dim // 2, 2),
        layers=(_layer(shape, options),) * shape.layers,
        norm=_norm(shape),
        head=_matrix(shape.vocab, shape.hidden, options),
        fracs=fracs,
        residual_width=options.residual_width or RESIDUAL_WIDTH,
        silu=fit_lines(functional.silu, number, number),
    )


def _layer(shape: LlamaShape, options: DecodeOptions) -> LayerCodes:
    attended, cached = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    rows = {"query": attended, "key": cached, "value": cached, "gate": shape.intermediate,
            "up": shape.intermediate}  # fmt: skip
    columns = {"output": attended, "down": shape.intermediate}
    matrices = {
        name: _matrix(rows.get(name, shape.hidden), columns.get(name, shape.hidden), options)
        for name in MATRICES
    }
    return LayerCodes(
        _norm(shape), _norm(shape), matrices, dict.fromkeys(LAYER_VECTORS, VECTOR_FRAC)
    )


def _norm(shape: LlamaShape) -> NormCodes:
    return NormCodes(_empty(shape.hidden), VECTOR_FRAC)


def _matrix(rows: int, columns: int, options: DecodeOptions) -> BlockMatrix:
    blocks = columns // options.block
    codes = BlockCodes(_empty(rows, blocks, options.block), _empty(rows, blocks))
    is_fixed = options.weight_format == "integer"
    return BlockMatrix(codes, MATRIX_FRAC, options.weight_width, is_fixed)


def _empty(*sizes: int) -> Tensor:
    return torch.empty(sizes, dtype=torch.int64, device="meta")
