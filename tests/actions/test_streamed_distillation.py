"""Folders of safetensors that follow a teacher, one decoder layer at a time."""

import math

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import mase
from chop.actions.distillation import divergence
from chop.actions.streamed_distillation import (
    BlockRequest,
    check_block_memory,
    distill_blocks,
    plan_blocks,
)
from chop.errors import ChopError, ConfigError, ExportError
from chop.nn.quantizers import parse_format

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def llama(**sizes):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SIZES, **sizes})
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a float model and of the same with half of each matrix pruned, in bfloat16."""
    place = tmp_path_factory.mktemp("models")
    model = llama()
    model.save_pretrained(place / "teacher", max_shard_size="60KB")
    with torch.no_grad():
        for layer in model.model.layers:
            for matrix in (p for p in layer.parameters() if p.dim() == 2):
                matrix[matrix.abs() < matrix.abs().median()] = 0
    model.bfloat16().save_pretrained(place / "pruned", max_shard_size="60KB")
    return place / "pruned", place / "teacher"


def batches(rows=4, count=9, length=20):
    draw = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(0, 96, (rows, length), generator=draw)} for _ in range(count)
    ]


def tensors_of(folder):
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def distance(folder, teacher):
    """Divergence of the models in two folders, on tokens that none was trained with."""
    ids = torch.randint(0, 96, (16, 20), generator=torch.Generator().manual_seed(5))
    load = transformers.AutoModelForCausalLM.from_pretrained
    with torch.no_grad():
        ours, theirs = (load(f, dtype=torch.float32)(ids).logits for f in (folder, teacher))
    return float(divergence(ours, theirs))


def test_a_pruned_model_comes_nearer_to_its_teacher_and_stays_pruned(folders, tmp_path):
    pruned, teacher = folders
    request = BlockRequest(pruned, teacher, steps=60, learning_rate=2e-3)
    report = distill_blocks(plan_blocks(request, batches()), tmp_path / "out")
    assert distance(tmp_path / "out", teacher) < 0.6 * distance(pruned, teacher)
    assert all(row["after"] > row["before"] + 1 for row in report.records)
    before, after = tensors_of(pruned), tensors_of(tmp_path / "out")
    assert before.keys() == after.keys()
    for name, old in before.items():
        new = after[name]
        assert (new.dtype, new.shape) == (old.dtype, old.shape)
        assert torch.equal(new, old) == (".layers." not in name), name
        assert new.dim() < 2 or not new[old == 0].any(), name
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == sorted(
        f.name for f in pruned.iterdir()
    )


@pytest.mark.slow
def test_rounded_matrices_have_values_of_the_format(folders, tmp_path):
    _, teacher = folders
    request = BlockRequest(teacher, teacher, 60, 1e-3, "mxint3/32")
    report = distill_blocks(plan_blocks(request, batches()), tmp_path / "out")
    form, after = parse_format("mxint3/32", "format"), tensors_of(tmp_path / "out")
    matrices = [t for n, t in after.items() if ".layers." in n and t.dim() == 2]
    assert len(matrices) == 14 and all(torch.equal(form(m), m) for m in matrices)
    assert report.records[0]["after"] > report.records[0]["before"] + 0.5


def test_a_layer_that_gets_no_better_keeps_its_weights(folders, tmp_path):
    pruned, teacher = folders
    request = BlockRequest(pruned, teacher, steps=1, learning_rate=10.0)
    report = distill_blocks(plan_blocks(request, batches(count=2)), tmp_path / "out")
    before, after = tensors_of(pruned), tensors_of(tmp_path / "out")
    assert {row["kept"] for row in report.records} == {"nearest"}
    assert all(torch.equal(after[name], old) for name, old in before.items())


def test_an_interrupted_run_goes_on_at_the_layer_it_was_in(folders, tmp_path):
    plan = plan_blocks(BlockRequest(*folders, steps=3), batches(count=3))
    seen = []

    def stop(step, number, count):
        seen.append(number)
        if seen == [1, 2]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distill_blocks(plan, tmp_path / "cut", progress=stop)
    assert not (tmp_path / "cut" / "config.json").exists()
    report = distill_blocks(plan, tmp_path / "cut", progress=stop)
    assert report.layers_resumed == 1 and seen == [1, 2, 2] and len(report.records) == 2
    distill_blocks(plan, tmp_path / "whole")
    one, other = tensors_of(tmp_path / "cut"), tensors_of(tmp_path / "whole")
    assert all(torch.equal(one[name], other[name]) for name in other)
    with pytest.raises(ExportError, match="has a model already"):
        distill_blocks(plan, tmp_path / "cut")


def test_requests_that_cannot_be_are_refused(folders, tmp_path):
    pruned, teacher = folders
    for settings, words in (({"steps": 0}, "steps: 0"), ({"learning_rate": 0.0}, "learning_rate")):
        with pytest.raises(ConfigError, match=words):
            BlockRequest(pruned, teacher, **settings)
    with pytest.raises(ConfigError, match=r"1 batches. Allowed: 2 or more"):
        plan_blocks(BlockRequest(pruned, teacher), batches(count=1))
    llama(vocab_size=48).save_pretrained(tmp_path / "other")
    words = r"teacher: its vocab_size is 48, and that of the model 96\. Allowed: a teacher with the"
    with pytest.raises(ConfigError, match=words):
        plan_blocks(BlockRequest(pruned, tmp_path / "other"), batches())
    plan = plan_blocks(BlockRequest(pruned, teacher), batches())
    with pytest.raises(
        ConfigError, match=r"max_memory: 0.00 GiB, and the run needs .* --batch-siz"
    ):
        check_block_memory(plan, 0, 1000)


def test_the_command_trains_by_blocks(folders, tmp_path):
    text = tmp_path / "tokens"
    text.mkdir()
    for name in ("train", "test"):
        np.savez(text / f"{name}.npz", ids=np.arange(1000) * 7 % 96)
    pruned, teacher = map(str, folders)
    options = {"dataset": str(text), "max_token_len": 16, "max_memory": 8, "steps": 2}
    found = mase.train(pruned, teacher=teacher, out=tmp_path / "out", **options)
    assert len(found["layers"]) == 2 and not math.isnan(found["layers"][1]["after"])
    assert found["peak_bytes"] > 0 and 0 < found["predicted_peak_bytes"] < 8 * 2**30
    with pytest.raises(ChopError, match=r"the teacher 'None' is no folder"):
        mase.train(pruned, out=tmp_path / "no", **options)
    with pytest.raises(ChopError, match=r"temperature: with --max-memory each layer follows"):
        mase.train(pruned, teacher=teacher, out=tmp_path / "no", temperature=2.0, **options)
    with pytest.raises(ConfigError, match=r"steps: it is an option of --max-memory"):
        mase.train("mlp", dataset="digits", out=tmp_path / "no", steps=5)
    with pytest.raises(ConfigError, match=r"label_weight: it is an option of --teacher"):
        mase.train("mlp", dataset="digits", out=tmp_path / "no", label_weight=0.5)
