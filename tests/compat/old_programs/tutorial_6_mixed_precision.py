"""Search the format of each layer: quantised classes as Optuna's choices."""

from copy import deepcopy
from pathlib import Path

import dill
import optuna
import torch
from optuna.samplers import GridSampler, RandomSampler, TPESampler  # noqa: F401

from chop.nn.quantized.modules.linear import (
    LinearBinary,  # noqa: F401
    LinearBinaryResidualSign,  # noqa: F401
    LinearBinaryScaling,  # noqa: F401
    LinearBlockFP,  # noqa: F401
    LinearBlockLog,  # noqa: F401
    LinearBlockMinifloat,  # noqa: F401
    LinearInteger,
    LinearLog,  # noqa: F401
    LinearMinifloatDenorm,  # noqa: F401
    LinearMinifloatIEEE,  # noqa: F401
)
from chop.tools import get_tokenized_dataset, get_trainer
from chop.tools.utils import deepsetattr

optuna.logging.set_verbosity(optuna.logging.WARNING)
with open(f"{Path.home()}/tutorial_5_best_model.pkl", "rb") as file:
    base_model = dill.load(file)
dataset, tokenizer = get_tokenized_dataset(
    dataset="imdb", checkpoint="bert-base-uncased", return_tokenizer=True
)
choices = [torch.nn.Linear, LinearInteger]


def construct_model(trial):
    trial_model = deepcopy(base_model)
    for name, layer in trial_model.named_modules():
        if not isinstance(layer, torch.nn.Linear):
            continue
        kind = trial.suggest_categorical(f"{name}_type", choices)
        if kind == torch.nn.Linear:
            continue
        kwargs = {"in_features": layer.in_features, "out_features": layer.out_features}
        if kind == LinearInteger:
            operands = ("data_in", "weight", "bias")
            settings = (("width", 8), ("frac_width", 4))
            kwargs["config"] = {f"{o}_{k}": v for o in operands for k, v in settings}
        new_layer = kind(**kwargs)
        new_layer.weight.data = layer.weight.data
        deepsetattr(trial_model, name, new_layer)
    return trial_model


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
assert any("type" in key for key in study.best_trial.params)
