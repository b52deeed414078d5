"""Inputs: the inputs you name decide which branches of a model run, and so what is captured.

python docs/tutorials/inputs.py [--model MODELS/bert-tiny]
"""

from __future__ import annotations

import copy

import torch
from introduction import build
from lesson import Setting, start, table

import chop.passes as passes
from chop import MaseGraph
from chop.errors import TraceError

CASES = (
    ["input_ids", "attention_mask", "labels"],
    ["input_ids", "labels"],
    ["input_ids", "attention_mask"],
    ["input_ids"],
)


def describe(mg: MaseGraph) -> list[object]:
    nodes = list(mg.fx_graph.nodes)
    attention = next(node for node in nodes if node.name == "scaled_dot_product_attention")
    mask = attention.kwargs["attn_mask"]
    return [len(nodes), mask or "none", " → ".join(node.name for node in nodes[-4:])]


def draw_tail(mg: MaseGraph, setting: Setting) -> None:
    """From the last hidden state to the loss, cut out of a copy."""
    part, _ = passes.extract_subgraph_transform_pass(
        copy.deepcopy(mg),
        {"inputs": ["bert_pooler_activation", "labels"], "outputs": ["crossentropyloss_0"]},
    )
    part.draw(setting.out / "loss.svg")


def effect_of_the_mask(masked: MaseGraph, unmasked: MaseGraph) -> str:
    """How far the answers differ for a full sentence, and for one that is half padding."""
    ids = torch.randint(5, 1000, (2, 6))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    with torch.no_grad():
        with_mask = masked.model(input_ids=ids, attention_mask=mask).logits
        without = unmasked.model(input_ids=ids).logits
    full, padded = (with_mask - without).abs().amax(1) > 1e-6
    return f"full sentence: answers differ: {bool(full)}\nhalf padding:  {bool(padded)}"


def misspelt(model: torch.nn.Module) -> str:
    try:
        MaseGraph(model, hf_input_names=["input_id"])
    except TraceError as error:
        return str(error)
    raise AssertionError("a misspelt input was accepted")


def main(setting: Setting) -> None:
    """Capture one model four times."""
    model = build(setting)
    graphs = [MaseGraph(model, hf_input_names=names) for names in CASES]
    rows = [[", ".join(names), *describe(mg)] for names, mg in zip(CASES, graphs, strict=True)]
    setting.show("cases", table(rows, ["hf_input_names", "nodes", "mask", "last nodes"]))
    draw_tail(graphs[0], setting)
    setting.show("mask", effect_of_the_mask(graphs[2], graphs[3]))
    setting.show("misspelt", misspelt(model))


if __name__ == "__main__":
    start(main, "inputs", __doc__)
