"""Quantise, evaluate, train on, export; the saved graph is loaded and pruned as tutorial 4 does."""

from pathlib import Path

from transformers import AutoModelForSequenceClassification

import chop.passes as passes
from chop import MaseGraph
from chop.tools import get_tokenized_dataset, get_trainer

model = AutoModelForSequenceClassification.from_pretrained("prajjwal1/bert-tiny")
model.config.problem_type = "single_label_classification"
mg = MaseGraph(model, hf_input_names=["input_ids", "attention_mask", "labels"])
mg, _ = passes.init_metadata_analysis_pass(mg)
mg, _ = passes.add_common_metadata_analysis_pass(mg)
dataset, tokenizer = get_tokenized_dataset("imdb", "bert-base-uncased", return_tokenizer=True)
operands = ("data_in", "weight", "bias")
widths = {f"{o}_{k}": v for o in operands for k, v in (("width", 8), ("frac_width", 4))}
quantization_config = {
    "by": "type",
    "default": {"config": {"name": None}},
    "linear": {"config": {"name": "integer", **widths}},
}
mg, _ = passes.quantize_transform_pass(mg, pass_args=quantization_config)
trainer = get_trainer(mg.model, dataset, tokenizer, "accuracy", "mase-trainer")
trainer.evaluate()
mg.export(f"{Path.home()}/tutorial_3_ptq")
trainer.train()
assert "eval_accuracy" in trainer.evaluate()
mg.export(f"{Path.home()}/tutorial_3_qat")
