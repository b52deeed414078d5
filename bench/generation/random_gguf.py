"""A Llama of 0.49 B parameters with random weights, as a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, INNER, LAYERS, HEADS, KEY_HEADS, WORDS = 1024, 4864, 24, 16, 4, 32000
HEAD_SIZE = HIDDEN // HEADS
WEIGHTS = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KEY_HEADS * HEAD_SIZE, HIDDEN),
    "attn_v": (KEY_HEADS * HEAD_SIZE, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}
"""The matrices of a layer, by their names in llama.cpp."""


def write_random(path: Path, type_name: str) -> None:
    """Write the model with all matrices in one GGUF type; its layers share their values."""
    kind = gguf.GGMLQuantizationType[type_name]
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Any:
        values = random.standard_normal((rows, columns), dtype=np.float32) / columns**0.5
        return gguf.quants.quantize(values, kind)

    out = gguf.GGUFWriter(str(path), "llama")
    _describe(out)
    ones = np.ones(HIDDEN, dtype=np.float32)
    shared = {name: matrix(*shape) for name, shape in WEIGHTS.items()}
    for name in ("token_embd", "output"):
        out.add_tensor(f"{name}.weight", matrix(WORDS, HIDDEN), raw_dtype=kind)
    out.add_tensor("output_norm.weight", ones)
    for i in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            out.add_tensor(f"blk.{i}.{name}.weight", ones)
        for name, data in shared.items():
            out.add_tensor(f"blk.{i}.{name}.weight", data, raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _describe(out: Any) -> None:
    """Write the shapes of the model."""
    out.add_block_count(LAYERS)
    out.add_context_length(1024)
    out.add_embedding_length(HIDDEN)
    out.add_feed_forward_length(INNER)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KEY_HEADS)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_rope_dimension_count(HEAD_SIZE)
    out.add_vocab_size(WORDS)
    out.add_tokenizer_model("no_vocab")
