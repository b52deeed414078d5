"""Train, insert adapters, train them, fuse them, evaluate with the same trainer."""

from pathlib import Path

from transformers import AutoModelForSequenceClassification

import chop.passes as passes
from chop import MaseGraph
from chop.passes.module import report_trainable_parameters_analysis_pass
from chop.tools import get_tokenized_dataset, get_trainer

checkpoint = "DeepWokLab/bert-tiny"
dataset, tokenizer = get_tokenized_dataset(
    dataset="imdb", checkpoint=checkpoint, return_tokenizer=True
)
model = AutoModelForSequenceClassification.from_pretrained(checkpoint)
model.config.problem_type = "single_label_classification"
mg = MaseGraph(model, hf_input_names=["input_ids", "attention_mask", "labels"])
mg, _ = passes.init_metadata_analysis_pass(mg)
mg, _ = passes.add_common_metadata_analysis_pass(mg)
_, _ = report_trainable_parameters_analysis_pass(mg.model)
for param in mg.model.bert.embeddings.parameters():
    param.requires_grad = False


def trainer_of(graph, **more):
    return get_trainer(
        model=graph.model,
        tokenized_dataset=dataset,
        tokenizer=tokenizer,
        evaluate_metric="accuracy",
        **more,
    )


trainer = trainer_of(mg)
trainer.evaluate()
trainer.train()
mg.export(f"{Path.home()}/tutorial_2_sft")
mg, _ = passes.insert_lora_adapter_transform_pass(
    mg, pass_args={"rank": 6, "alpha": 1.0, "dropout": 0.5}
)
trainer = trainer_of(mg, num_train_epochs=1)
trainer.train()
before = trainer.evaluate()["eval_accuracy"]
mg, _ = passes.fuse_lora_weights_transform_pass(mg)
assert trainer.evaluate()["eval_accuracy"] == before
mg.export(f"{Path.home()}/tutorial_2_lora")
assert MaseGraph.from_checkpoint(f"{Path.home()}/tutorial_2_lora").model.bert is not None
