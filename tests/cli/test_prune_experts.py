"""`mase prune --experts`."""

import csv

import numpy as np
import pytest
import torch

from chop import MaseGraph


@pytest.fixture
def mixture(tmp_path):
    import transformers

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4}
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**sizes, **heads, max_position_embeddings=64)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path / "mixtral")
    ids = torch.randint(0, 64, (400,), generator=torch.Generator().manual_seed(0)).numpy()
    (tmp_path / "tokens").mkdir()
    for split in ("train", "test"):
        np.savez(tmp_path / "tokens" / f"{split}.npz", ids=ids)
    return f"{tmp_path / 'mixtral'} --task causal-lm", tmp_path / "tokens"


def test_experts_are_removed_and_reported(mase, mixture, tmp_path):
    model, data = mixture
    line = f"prune {model} --experts 3 --dataset {data} --max-token-len 16 --calibration-rows 8"
    ran = mase(f"{line} --json", "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    (removed,) = ran.document["removed"]
    assert removed["share"] < 0.25 and ran.document["loss"]["before"] > 0
    with open(tmp_path / "out" / "experts.csv") as file:
        assert [row["layer"] for row in csv.DictReader(file)] == ["model.layers.0.mlp.experts"]
    graph = MaseGraph.from_checkpoint(tmp_path / "out" / "graph")
    assert graph.model.config.num_local_experts == 3


@pytest.mark.parametrize(
    "line, words",
    [
        ("--experts 3", "--experts counts the tokens of each expert: give --dataset"),
        ("--experts 3 --sparsity 0.5", "experts removes whole experts: prune weights in a second"),
        ("--experts 3 --calibration-rows 0", "calibration_rows must be at least 1, got 0"),
        ("--experts 3 --dataset digits", "prune.experts: the model has no experts"),
    ],
)
def test_wrong_requests_are_refused(mase, trained, line, words, tmp_path):
    ran = mase(f"prune {trained} {line}", "--out", tmp_path / "out")
    assert ran.code == 2 and words in ran.err
