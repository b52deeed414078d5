"""LoRA: fine-tune a model by two thin matrices beside each layer, then fold them in.

python docs/tutorials/lora.py [--model MODELS/bert-tiny --data DATA/imdb]
"""

from __future__ import annotations

import torch
from lesson import Setting, Task, start, table, text_task

import chop.passes as passes
from chop import MaseGraph
from chop.passes.module import report_trainable_parameters_analysis_pass

HEAD = ["bert.pooler", "classifier"]


def trainable(mg: MaseGraph) -> int:
    _, info = report_trainable_parameters_analysis_pass(mg.model)
    return info["trainable"]


def freeze_embeddings(mg: MaseGraph) -> None:
    for parameter in mg.model.bert.embeddings.parameters():
        parameter.requires_grad = False


def whole(task: Task) -> tuple[int, float]:
    """Train every layer but the embeddings."""
    mg = task.graph()
    freeze_embeddings(mg)
    trainer = task.trainer(mg)
    trainer.train()
    return trainable(mg), trainer.evaluate()["eval_accuracy"]


def adapted(task: Task, rank: int) -> tuple[int, float, float]:
    mg = task.graph()
    mg, _ = passes.insert_lora_adapter_transform_pass(
        mg,
        pass_args={"rank": rank, "alpha": 2.0 * rank, "dropout": 0.0, "modules_to_save": HEAD},
    )
    count = trainable(mg)
    trainer = task.trainer(mg)
    trainer.train()
    before = trainer.evaluate()["eval_accuracy"]
    mg, _ = passes.fuse_lora_weights_transform_pass(mg)
    return count, before, trainer.evaluate()["eval_accuracy"]


def insertion_changes_nothing(task: Task) -> bool:
    mg = task.graph()
    mg.model.eval()
    batch = task.trainer(mg).get_eval_dataloader()
    inputs = next(iter(batch))
    with torch.no_grad():
        before = mg.model(**inputs).logits
        mg, _ = passes.insert_lora_adapter_transform_pass(mg, pass_args={"rank": 4})
        return torch.equal(mg.model(**inputs).logits, before)


def main(setting: Setting) -> None:
    """Train whole layers, then adapters of a few ranks."""
    task = text_task(setting)
    setting.show("insertion", f"same output, bit for bit: {insertion_changes_nothing(task)}")
    ranks = (1, 2, 4, 8) if setting.is_full else (1, 4)
    # a graph shares its parameters with the model it came from: each run gets a model of its own
    count, accuracy = whole(text_task(setting))
    rows = [["every layer but the embeddings", count, accuracy, accuracy]]
    for rank in ranks:
        rows.append([f"adapters of rank {rank}", *adapted(text_task(setting), rank)])
    setting.show("ranks", table(rows, ["what trains", "parameters", "accuracy", "once fused"]))


if __name__ == "__main__":
    start(main, "lora", __doc__)
