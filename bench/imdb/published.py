"""Accuracies that course reports publish for the same measurements with BERT-tiny on IMDb."""

from __future__ import annotations

BASE = {"report A": 0.8344, "report B": 0.8140}
"""Fine-tuned, float."""
WIDTHS = {
    4: (0.5000, 0.5000),
    6: (0.6894, 0.8233),
    8: (0.7332, 0.8328),
    12: (0.8088, 0.8347),
    16: (0.8137, 0.8350),
    24: (0.8141, 0.8346),
    32: (0.8139, 0.8346),
}
"""Width -> PTQ, QAT (report B)."""
TEN_BITS = (0.8158, 0.8404)
"""PTQ and QAT with 5 integer and 5 fraction bits (report A)."""
SPARSITIES = {0.3: (0.7676, 0.8322), 0.5: (0.5149, 0.8151), 0.7: (0.4990, 0.7535)}
"""Sparsity -> random, l1-norm, pruned at 16 bits and fine-tuned (report B); 0.8350 unpruned."""
