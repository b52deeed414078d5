"""Search an architecture with Optuna, keep the model in the trial, compress the best."""

from pathlib import Path

import dill
import optuna
import torch.nn as nn
from optuna.samplers import RandomSampler
from transformers import AutoConfig, AutoModelForSequenceClassification

from chop import MaseGraph
from chop.nn.modules import Identity
from chop.pipelines import CompressionPipeline
from chop.tools import get_tokenized_dataset, get_trainer
from chop.tools.utils import deepsetattr

optuna.logging.set_verbosity(optuna.logging.WARNING)
dataset, tokenizer = get_tokenized_dataset(
    dataset="imdb", checkpoint="bert-base-uncased", return_tokenizer=True
)
search_space = {
    "num_layers": [1, 2],
    "num_heads": [2, 4],
    "hidden_size": [16, 32],
    "intermediate_size": [32, 64],
    "linear_layer_choices": [nn.Linear, Identity],
}


def construct_model(trial):
    config = AutoConfig.from_pretrained("prajjwal1/bert-tiny")
    for param in ("num_layers", "num_heads", "hidden_size", "intermediate_size"):
        index = trial.suggest_int(param, 0, len(search_space[param]) - 1)
        setattr(config, param, search_space[param][index])
    model = AutoModelForSequenceClassification.from_config(config)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and layer.in_features == layer.out_features:
            kind = trial.suggest_categorical(f"{name}_type", search_space["linear_layer_choices"])
            if kind == Identity:
                deepsetattr(model, name, Identity())
    return model


def objective(trial):
    model = construct_model(trial)
    trainer = get_trainer(
        model=model,
        tokenized_dataset=dataset,
        tokenizer=tokenizer,
        evaluate_metric="accuracy",
        num_train_epochs=1,
    )
    trainer.train()
    trial.set_user_attr("model", model)
    return trainer.evaluate()["eval_accuracy"]


study = optuna.create_study(
    direction="maximize", study_name="bert-tiny-nas-study", sampler=RandomSampler()
)
study.optimize(objective, n_trials=1, timeout=60 * 60 * 24)
best_model = study.best_trial.user_attrs["model"].cpu()
with open(f"{Path.home()}/tutorial_5_best_model.pkl", "wb") as file:
    dill.dump(best_model, file)
mg = MaseGraph(best_model)
operands = ("data_in", "weight", "bias")
widths = {f"{o}_{k}": v for o in operands for k, v in (("width", 8), ("frac_width", 4))}
mg, _ = CompressionPipeline()(
    mg,
    pass_args={
        "quantize_transform_pass": {
            "by": "type",
            "default": {"config": {"name": None}},
            "linear": {"config": {"name": "integer", **widths}},
        },
        "prune_transform_pass": {
            "weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
            "activation": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
        },
    },
)
mg.export(f"{Path.home()}/tutorial_5_nas_compressed", save_format="state_dict")
mg.export()
assert MaseGraph.from_checkpoint("mase_graph").fx_graph is not None
