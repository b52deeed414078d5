"""Prune a loaded, quantised graph, then train it."""

from pathlib import Path

import chop.passes as passes
from chop import MaseGraph
from chop.tools import get_tokenized_dataset, get_trainer

mg = MaseGraph.from_checkpoint(f"{Path.home()}/tutorial_3_qat")
dataset, tokenizer = get_tokenized_dataset(
    dataset="imdb", checkpoint="bert-base-uncased", return_tokenizer=True
)
pruning_config = {
    "weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
    "activation": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
}
mg, _ = passes.prune_transform_pass(mg, pass_args=pruning_config)
trainer = get_trainer(
    model=mg.model,
    tokenized_dataset=dataset,
    tokenizer=tokenizer,
    evaluate_metric="accuracy",
    num_train_epochs=2,
)
trainer.evaluate()
trainer.train()
assert "eval_accuracy" in trainer.evaluate()
