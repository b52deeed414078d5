"""bert-tiny on reviews: what it reads, and its graphs in fixed point."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformer_digits import quantized_graph
from transformer_formats import fixed_rules
from transformer_models import Bert
from transformers import AutoModelForSequenceClassification

from chop import MaseGraph
from chop.dataset import load_token_arrays
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import (
    decompose_attention_transform_pass,
    fix_sizes_transform_pass,
    quantize_transform_pass,
    remove_dropout_transform_pass,
)

BERT_WIDTHS: dict[str, dict[str, int]] = {
    **{op: {} for op in ("linear", "layer_norm", "softmax", "gelu", "tanh", "matmul", "add")},
    "embedding": {},
}


def reviews(data: Path, part: str, chosen: str, count: int, length: int) -> tuple[Tensor, ...]:
    """Ids, what is padding, and classes of `count` reviews: the shortest, or evenly from all."""
    arrays = load_token_arrays(data / "tokens", length)[part]
    order = np.argsort(arrays.lengths, kind="stable")[:count]
    if chosen == "even":
        order = np.linspace(0, len(arrays) - 1, count).astype(int)
    ids = torch.zeros(count, length, dtype=torch.long)
    for row, place in enumerate(order):
        tokens = arrays.tokens(int(place)).astype(np.int64)
        ids[row, : len(tokens)] = torch.from_numpy(tokens)
    lengths = torch.from_numpy(arrays.lengths[order].astype(np.int64))
    labels = torch.from_numpy(np.asarray(arrays.labels)[order].astype(np.int64))
    return ids, torch.arange(length) >= lengths[:, None], labels


def tiny_bert(args: argparse.Namespace, repeated: str = "") -> tuple[Bert, MaseGraph]:
    """The classifier, and its graph in fixed point whose places come from training reviews."""
    torch.manual_seed(0)  # of a head that is not in the folder
    found = AutoModelForSequenceClassification.from_pretrained(args.model).eval()
    model = Bert(found, args.length).eval()
    calibration = reviews(args.data, "train", "even", 64, args.length)[:2]
    return model, quantized_graph(copy.deepcopy(model), calibration, BERT_WIDTHS, repeated)


def review_accuracy(model: Any, rows: tuple[Tensor, ...]) -> float:
    """The part of the reviews whose class the model finds."""
    right = 0
    with torch.no_grad():
        for ids, padding, labels in zip(*(each.split(125) for each in rows), strict=True):
            right += int((model(ids, padding).argmax(1) == labels).sum())
    return right / len(rows[0])


def some_reviews(args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Half of them the shortest of the test set, with padding, half evenly from all."""
    half = args.simulated // 2
    parts = [reviews(args.data, "test", kind, half, args.length) for kind in ("short", "even")]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def captured_bert(args: argparse.Namespace) -> MaseGraph:
    """transformers' own model as captured, prepared for hardware, in fixed point."""
    torch.manual_seed(0)  # of a head that is not in the folder
    model = AutoModelForSequenceClassification.from_pretrained(args.model).eval()
    ids, padding, _ = reviews(args.data, "train", "even", 64, args.length)
    graph = MaseGraph(model, dummy_in={"input_ids": ids, "attention_mask": (~padding).long()})
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    for prepare in (
        remove_dropout_transform_pass,
        fix_sizes_transform_pass,
        decompose_attention_transform_pass,
    ):
        graph, _ = prepare(graph)
    rules = fixed_rules(graph, (ids, (~padding).long()), BERT_WIDTHS)
    graph, _ = quantize_transform_pass(graph, rules)
    return graph
