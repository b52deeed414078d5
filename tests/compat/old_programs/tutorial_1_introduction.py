"""Capture, annotate, passes of one's own that erase nodes, export, load."""

from pathlib import Path

from transformers import AutoModelForSequenceClassification, AutoTokenizer

import chop.passes as passes
from chop import MaseGraph
from chop.tools import get_logger

logger = get_logger("mase_logger")
logger.setLevel("INFO")


def count_dropout_analysis_pass(mg, pass_args={}):  # noqa: B006
    found = [n for n in mg.fx_graph.nodes if n.op == "call_module" and "dropout" in n.target]
    for node in found:
        logger.info("%s", node.target)
    return mg, {"dropout_count": len(found)}


def remove_dropout_transform_pass(mg, pass_args={}):  # noqa: B006
    for node in list(mg.fx_graph.nodes):
        if node.op == "call_module" and "dropout" in node.target:
            node.replace_all_uses_with(node.args[0])
            mg.fx_graph.erase_node(node)
    return mg, {}


mg = MaseGraph(AutoModelForSequenceClassification.from_pretrained("prajjwal1/bert-tiny"))
mg.draw("bert-base-uncased.svg")
mg.draw(file="again.svg")
tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
texts = ["a good film", "a bad film"]
dummy_input = tokenizer(texts, return_tensors="pt")
mg, _ = passes.init_metadata_analysis_pass(mg)
mg, _ = passes.add_common_metadata_analysis_pass(
    mg, pass_args={"dummy_in": dummy_input, "add_value": False}
)
mg, counted = count_dropout_analysis_pass(mg)
assert counted["dropout_count"] > 0
mg, _ = remove_dropout_transform_pass(mg)
mg, counted = count_dropout_analysis_pass(mg)
assert counted["dropout_count"] == 0
mg.export(f"{Path.home()}/tutorial_1")
again = MaseGraph.from_checkpoint(f"{Path.home()}/tutorial_1")
assert len(again.fx_graph.nodes) == len(mg.fx_graph.nodes)
