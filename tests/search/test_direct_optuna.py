"""Searches that drive Optuna themselves: layer classes as choices, models as attributes."""

import copy

import dill
import optuna
import pytest
import torch
import transformers
from torch import nn

from chop import MaseGraph
from chop.nn.modules import Identity
from chop.nn.quantized.modules.linear import (
    LinearBinary,
    LinearInteger,
    LinearLog,
    LinearMinifloatDenorm,
    LinearMinifloatIEEE,
)
from chop.pipelines import CompressionPipeline
from chop.tools.utils import deepsetattr

SEARCH_SPACE = {
    "num_hidden_layers": [1, 2],
    "num_attention_heads": [2, 4],
    "hidden_size": [16, 32],
    "intermediate_size": [24, 32],
    "linear_layer_choices": [nn.Linear, Identity],
}
QUANTIZATION = {
    "by": "type",
    "default": {"config": {"name": None}},
    "linear": {
        "config": {
            "name": "integer",
            "data_in_width": 8,
            "data_in_frac_width": 4,
            "weight_width": 8,
            "weight_frac_width": 4,
            "bias_width": 8,
            "bias_frac_width": 4,
        }
    },
}
PRUNING = {
    "weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
    "activation": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
}
IDS = torch.randint(0, 60, (2, 8), generator=torch.Generator().manual_seed(0))


def construct_model(trial):
    config = transformers.BertConfig(vocab_size=60, max_position_embeddings=16)
    for name in list(SEARCH_SPACE)[:4]:
        index = trial.suggest_int(name, 0, len(SEARCH_SPACE[name]) - 1)
        setattr(config, name, SEARCH_SPACE[name][index])
    model = transformers.BertForSequenceClassification(config).eval()
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and layer.in_features == layer.out_features:
            new = trial.suggest_categorical(f"{name}_type", SEARCH_SPACE["linear_layer_choices"])
            if new is Identity:
                deepsetattr(model, name, Identity())
    return model


@pytest.mark.slow
def test_an_objective_may_compress_with_the_pipeline_and_keep_its_model(tmp_path):
    def objective(trial):
        mg = MaseGraph(construct_model(trial), hf_input_names=["input_ids"])
        pipe = CompressionPipeline()
        mg, _ = pipe(
            mg,
            pass_args={"quantize_transform_pass": QUANTIZATION, "prune_transform_pass": PRUNING},
        )
        trial.set_user_attr("model", mg.model)
        return float(mg.model(input_ids=IDS)["logits"].sum())

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=3)
    model = study.best_trial.user_attrs["model"].cpu()
    with open(tmp_path / "best_model.pkl", "wb") as file:
        dill.dump(model, file)
    with open(tmp_path / "best_model.pkl", "rb") as file:
        loaded = dill.load(file)
    assert float(loaded(input_ids=IDS)["logits"].sum()) == study.best_value
    assert len(study.trials) == 3


LAYER_CONFIGS = {
    nn.Linear: None,
    LinearInteger: {"width": 8, "frac_width": 4},
    LinearMinifloatIEEE: {"width": 8, "exponent_width": 4, "exponent_bias": 7},
    LinearMinifloatDenorm: {"width": 8, "exponent_width": 4, "exponent_bias": 7},
    LinearLog: {"width": 8, "exponent_bias": 7},
    LinearBinary: {"stochastic": False, "bipolar": True},
}


def mixed_precision(trial, base):
    model = copy.deepcopy(base)
    for name, layer in list(model.named_modules()):
        if not isinstance(layer, nn.Linear):
            continue
        chosen = trial.suggest_categorical(f"{name}_type", list(LAYER_CONFIGS))
        if chosen is nn.Linear:
            continue
        settings = LAYER_CONFIGS[chosen].items()
        config = {f"{o}_{k}": v for o in ("data_in", "weight", "bias") for k, v in settings}
        new = chosen(in_features=layer.in_features, out_features=layer.out_features, config=config)
        new.weight.data = layer.weight.data
        new.bias.data = layer.bias.data
        deepsetattr(model, name, new)
    return model


def test_layer_classes_may_be_choices_of_a_trial():
    config = transformers.BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
    )
    base = transformers.BertForSequenceClassification(config).eval()
    before = {k: v.clone() for k, v in base.state_dict().items()}

    def objective(trial):
        model = mixed_precision(trial, base)
        trial.set_user_attr("model", model)
        return float(model(input_ids=IDS).logits.abs().sum())

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=4)
    used = {type(m) for t in study.trials for m in t.user_attrs["model"].modules()}
    assert len(used & set(LAYER_CONFIGS)) >= 4
    assert all(torch.equal(base.state_dict()[k], v) for k, v in before.items())
