"""Weights of an integer Llama as plain data, for the independent reference."""

from __future__ import annotations

from typing import Any

from chop.hw.decode.block_codes import BlockMatrix
from chop.hw.decode.decode_model import DecodeModel, LayerCodes, NormCodes


def plain_weights(model: DecodeModel) -> dict[str, Any]:
    """Return the data that `chop.hw.reference.plain_llama.PlainLlama` reads."""
    lines, shape = model.silu, model.shape
    return {
        **model.fracs,
        "residual_width": model.residual_width,
        "block": model.options.block,
        "cache_width": model.options.cache_width,
        "eps": shape.eps,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "embedding": model.embedding.tolist(),
        "rotations": model.rotations.tolist(),
        "layers": [_layer(layer) for layer in model.layers],
        "norm": _norm(model.norm),
        "head": _matrix(model.head),
        "silu": {
            "bases": list(lines.bases),
            "slopes": list(lines.slopes),
            "low_bits": lines.low_bits,
            "dropped": lines.frac_width - model.fracs["gate"],
        },
    }


def _layer(layer: LayerCodes) -> dict[str, Any]:
    matrices = {name: _matrix(matrix) for name, matrix in layer.matrices.items()}
    norms = {"norm_1": _norm(layer.norm_1), "norm_2": _norm(layer.norm_2)}
    return {**matrices, **norms, "fracs": layer.fracs}


def _norm(norm: NormCodes) -> dict[str, Any]:
    return {"codes": norm.codes.tolist(), "frac": norm.frac_width}


def _matrix(matrix: BlockMatrix) -> dict[str, Any]:
    mantissas, exponents = matrix.blocks.mantissas.tolist(), matrix.blocks.exponents.tolist()
    rows = [list(zip(*row, strict=True)) for row in zip(mantissas, exponents, strict=True)]
    return {"rows": rows, "frac": matrix.frac_width}
