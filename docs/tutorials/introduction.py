"""Introduction: capture a model as a graph, look at it, annotate it, and write two passes.

python docs/tutorials/introduction.py [--model MODELS/bert-tiny]
"""

from __future__ import annotations

import copy
from collections import Counter

import torch
from lesson import Setting, start, table
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
)

import chop.passes as passes
from chop import MaseGraph


def build(setting: Setting) -> torch.nn.Module:
    """BERT with two layers: pretrained in the full setting, random in the small one."""
    if setting.is_full:
        return AutoModelForSequenceClassification.from_pretrained(setting.model).eval()
    config = BertConfig(
        num_hidden_layers=2, hidden_size=128, num_attention_heads=2, intermediate_size=512
    )
    return BertForSequenceClassification(config).eval()


def example(setting: Setting) -> dict[str, torch.Tensor]:
    """Two sentences as tokens."""
    if setting.is_full:
        tokenizer = AutoTokenizer.from_pretrained(setting.model)
        return tokenizer(["AI may take over the world one day", "This is it"], return_tensors="pt")
    return {
        "input_ids": torch.randint(0, 30522, (2, 9)),
        "attention_mask": torch.ones(2, 9, dtype=torch.long),
    }


def annotate(mg: MaseGraph, setting: Setting) -> MaseGraph:
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(
        mg, pass_args={"dummy_in": example(setting), "add_value": False}
    )
    return mg


def describe(node) -> str:
    common = node.meta["mase"]["common"]
    lines = [f"{node.name}: {common['mase_type']}, {common['mase_op']}"]
    for name, value in {**common["args"], **common["results"]}.items():
        lines.append(f"  {name:<12}{value['shape']} {value['type']} {value['precision']}")
    return "\n".join(lines)


def count_dropout_analysis_pass(mg, pass_args=None):
    count = 0
    for node in mg.fx_graph.nodes:
        if node.op == "call_module" and "dropout" in node.target:
            count += 1
    return mg, {"dropout_count": count}


def remove_dropout_transform_pass(mg, pass_args=None):
    for node in list(mg.fx_graph.nodes):
        if node.op == "call_module" and "dropout" in node.target:
            node.replace_all_uses_with(node.args[0])
            mg.fx_graph.erase_node(node)
    mg.recompile()
    return mg, {}


def erase_without_rewiring(mg: MaseGraph) -> str:
    """What torch.fx says to a pass that forgets the users of a node."""
    dropout = next(n for n in mg.fx_graph.nodes if "dropout" in str(n.target))
    try:
        mg.fx_graph.erase_node(dropout)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("torch.fx let go of a node that is in use")


def draw_attention(mg: MaseGraph, setting: Setting) -> None:
    part, _ = passes.extract_subgraph_transform_pass(
        copy.deepcopy(mg),
        {
            "inputs": ["bert_embeddings_dropout", "expand_2"],
            "outputs": ["bert_encoder_layer_0_attention_output_layer_norm"],
        },
    )
    part.draw(setting.out / "attention.svg")


def main(setting: Setting) -> None:
    """Capture, draw, annotate, count, remove, save."""
    model = build(setting)
    mg = MaseGraph(model, hf_input_names=["input_ids", "attention_mask"])
    mg.draw(setting.out / "bert.svg")

    kinds = Counter(node.op for node in mg.fx_graph.nodes)
    setting.show("kinds", table(kinds.most_common(), ["op", "nodes"]))

    mg = annotate(mg, setting)
    draw_attention(mg, setting)
    classifier = next(node for node in mg.fx_graph.nodes if node.target == "classifier")
    setting.show("classifier", describe(classifier))
    types = Counter(node.meta["mase"]["common"]["mase_type"] for node in mg.fx_graph.nodes)
    setting.show("types", table(types.most_common(), ["MASE type", "nodes"]))

    mg, before = count_dropout_analysis_pass(mg)
    setting.show("refusal", erase_without_rewiring(mg))
    mg, _ = remove_dropout_transform_pass(mg)
    mg, after = count_dropout_analysis_pass(mg)
    setting.show("dropouts", f"before: {before}\nafter:  {after}")

    mg = annotate(mg, setting)
    difference = passes.verify(mg, original=model)["max_abs_difference"]
    setting.show("difference", f"largest difference of the outputs: {difference}")

    mg.export(setting.out / "inference_graph")
    again = MaseGraph.from_checkpoint(setting.out / "inference_graph")
    assert count_dropout_analysis_pass(again)[1] == after


if __name__ == "__main__":
    start(main, "introduction", __doc__)
