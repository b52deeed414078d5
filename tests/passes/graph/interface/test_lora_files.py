"""Adapter files: written and read here, written and read by PEFT."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from compression_models import bert, bert_batch, bert_graph, logits, mlp_graph
from safetensors.torch import load_file, save_file
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import CheckpointError, PassError

TARGETS = {"rank": 4, "alpha": 2.0, "target_modules": ["query", "value", "output.dense"]}


def adapted(saved: tuple[str, ...] = ()) -> MaseGraph:
    """A graph whose adapters have been trained, as far as its weights tell."""
    graph, _ = passes.insert_lora_adapter_transform_pass(
        bert_graph(), TARGETS | {"modules_to_save": saved}
    )
    graph, _ = passes.insert_lora_adapter_transform_pass(
        graph,
        {"rank": 2, "alpha": 3.0, "target_modules": ["pooler.dense"], "modules_to_save": saved},
    )
    torch.manual_seed(1)
    for parameter in graph.model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    return graph


def save(graph: MaseGraph, path: Path) -> Path:
    passes.save_lora_adapter_interface_pass(graph, {"path": path})
    return path


@pytest.mark.parametrize("saved", [(), ("classifier",)])
def test_a_saved_adapter_loads_into_a_fresh_graph(tmp_path: Path, saved: tuple[str, ...]) -> None:
    graph = adapted(saved)
    save(graph, tmp_path)
    fresh, info = passes.load_lora_adapter_interface_pass(bert_graph(), {"path": tmp_path})
    assert torch.equal(logits(fresh.model), logits(graph.model))
    trained = [
        {n for n, p in g.model.named_parameters() if p.requires_grad} for g in (fresh, graph)
    ]
    assert trained[0] == trained[1] and "bert.pooler.dense" in info["adapters"]


def test_loading_into_adapters_that_are_there_takes_the_weights(tmp_path: Path) -> None:
    graph = adapted()
    save(graph, tmp_path)
    wanted = logits(graph.model)
    for layer in graph.model.modules():
        if hasattr(layer, "lora_B"):
            nn.init.zeros_(layer.lora_B.weight)
    graph, _ = passes.load_lora_adapter_interface_pass(graph, {"path": tmp_path})
    assert torch.equal(logits(graph.model), wanted)


@pytest.mark.parametrize("saved", [(), ("classifier",)])
def test_peft_reads_what_we_write(tmp_path: Path, saved: tuple[str, ...]) -> None:
    peft = pytest.importorskip("peft", reason="needs the test extra: pip install masegraph[test]")
    graph = adapted(saved)
    save(graph, tmp_path)
    model = peft.PeftModel.from_pretrained(bert(), tmp_path).eval()
    torch.testing.assert_close(logits(model), logits(graph.model), rtol=1e-5, atol=1e-6)


def test_we_read_what_peft_writes(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the test extra: pip install masegraph[test]")
    config = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        target_modules=["query", "intermediate.dense"],
        rank_pattern={"query": 2},
        alpha_pattern={"query": 5},
        modules_to_save=["classifier"],
    )
    model = peft.get_peft_model(bert(), config).eval()
    torch.manual_seed(2)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)
    graph, _ = passes.load_lora_adapter_interface_pass(bert_graph(), {"path": tmp_path})
    torch.testing.assert_close(logits(graph.model), logits(model), rtol=1e-5, atol=1e-6)
    merged = model.merge_and_unload()
    graph, _ = passes.fuse_lora_weights_transform_pass(graph)
    with torch.no_grad():
        wanted = merged(**bert_batch())["logits"]
    torch.testing.assert_close(logits(graph.model), wanted, rtol=1e-5, atol=1e-6)


def test_saving_without_adapters_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(PassError, match=r"no adapters\. Run insert_lora_adapter_transform_pass"):
        save(mlp_graph(), tmp_path)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    edited(save(adapted(), tmp_path))
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: no such file"):
        passes.load_lora_adapter_interface_pass(bert_graph(), {"path": tmp_path})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adapter_config.json", "not a readable JSON file"),
        ("adapter_model.safetensors", "damaged safetensors file"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, message: str) -> None:
    save(adapted(), tmp_path)
    (tmp_path / name).write_text("{")
    with pytest.raises(CheckpointError, match=f"{name}: {message}"):
        passes.load_lora_adapter_interface_pass(bert_graph(), {"path": tmp_path})


def test_an_adapter_with_other_arithmetic_is_refused(tmp_path: Path) -> None:
    save(adapted(), tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use_dora": True}))
    with pytest.raises(CheckpointError, match="use_dora is True; only False is supported"):
        passes.load_lora_adapter_interface_pass(bert_graph(), {"path": tmp_path})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (mlp_graph, "the graph has no linear layer 'bert.encoder"),
        (lambda: bert_graph(hidden_size=16), "does not fit a layer that takes 16 features"),
    ],
)
def test_an_adapter_of_another_model_is_refused(tmp_path: Path, make, message: str) -> None:
    save(adapted(), tmp_path)
    graph = make()
    before = [type(m) for m in graph.model.modules()]
    with pytest.raises(CheckpointError, match=message):
        passes.load_lora_adapter_interface_pass(graph, {"path": tmp_path})
    assert [type(m) for m in graph.model.modules()] == before


def test_a_saved_parameter_that_the_graph_lacks_is_named(tmp_path: Path) -> None:
    save(adapted(("classifier",)), tmp_path)
    with pytest.raises(CheckpointError, match=r"no parameter 'classifier.bias' of shape \[2\]"):
        passes.load_lora_adapter_interface_pass(bert_graph(num_labels=5), {"path": tmp_path})


def test_an_adapter_of_another_rank_is_refused(tmp_path: Path) -> None:
    save(adapted(), tmp_path)
    graph, _ = passes.insert_lora_adapter_transform_pass(bert_graph(), {"rank": 8, "alpha": 2.0})
    with pytest.raises(CheckpointError, match="has an adapter of rank 8 and alpha 2, the file one"):
        passes.load_lora_adapter_interface_pass(graph, {"path": tmp_path})


def edited(folder: Path, **changes: object) -> Path:
    """The adapter in `folder` as PEFT would write it, with other settings."""
    weights = folder / "adapter_model.safetensors"
    save_file(load_file(weights), weights, {"format": "pt"})
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lora_alpha": None}, r"lora_alpha is None; expected a number"),
        ({"lora_alpha": "3"}, r"lora_alpha is '3'; expected a number"),
        ({"lora_dropout": 2.0}, r"lora_dropout is 2.0; expected a number, 0.0 to 1.0"),
        ({"alpha_pattern": [1]}, r"alpha_pattern is \[1\]; expected a mapping"),
        ({"alpha_pattern": {"(a+)+": 1}}, r"alpha_pattern: '\(a\+\)\+' is not the end of a path"),
        (
            {"alpha_pattern": {"(a": 1}},
            r"alpha_pattern: '\(a' is no regular expression",
        ),
        ({"alpha_pattern": {"a": "b"}}, r"alpha_pattern.a is 'b'; expected a number"),
        ({"use_dora": True}, r"use_dora is True; only False is supported"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, changes, words) -> None:
    graph, _ = passes.insert_lora_adapter_transform_pass(mlp_graph(), {"rank": 2})
    with pytest.raises(CheckpointError, match=words):
        passes.load_lora_adapter_interface_pass(
            mlp_graph(), {"path": edited(save(graph, tmp_path), **changes)}
        )


def test_a_changed_weight_and_changed_settings_are_refused(tmp_path) -> None:
    graph, _ = passes.insert_lora_adapter_transform_pass(mlp_graph(), {"rank": 2, "alpha": 3.0})
    save(graph, tmp_path)
    config = tmp_path / "adapter_config.json"
    config.write_text(config.read_text().replace("3.0", "4.0"))
    with pytest.raises(CheckpointError, match="not the settings that were saved with the weights"):
        passes.load_lora_adapter_interface_pass(mlp_graph(), {"path": tmp_path})
    file = tmp_path / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="its checksum is not the one it was saved with"):
        passes.load_lora_adapter_interface_pass(mlp_graph(), {"path": tmp_path})


def test_a_pickle_is_not_read(tmp_path) -> None:
    graph, _ = passes.insert_lora_adapter_transform_pass(mlp_graph(), {"rank": 2})
    file = save(graph, tmp_path) / "adapter_model.safetensors"
    file.rename(file.with_suffix(".bin"))
    with pytest.raises(CheckpointError, match=r"no such file. A .bin is a pickle, which can run"):
        passes.load_lora_adapter_interface_pass(mlp_graph(), {"path": tmp_path})


def test_a_kill_between_the_files_leaves_the_new_adapter(tmp_path, caplog) -> None:
    old, _ = passes.insert_lora_adapter_transform_pass(mlp_graph(), {"rank": 2, "alpha": 2.0})
    text = (save(old, tmp_path) / "adapter_config.json").read_text()
    new, _ = passes.insert_lora_adapter_transform_pass(mlp_graph(), {"rank": 3, "alpha": 5.0})
    save(new, tmp_path)
    (tmp_path / "adapter_config.json").write_text(text)  # as before the second rename
    fresh, _ = passes.load_lora_adapter_interface_pass(mlp_graph(), {"path": tmp_path})
    found = {(m.rank, m.alpha) for m in fresh.model.modules() if hasattr(m, "lora_A")}
    assert found == {(3, 5.0)}
    assert "the settings saved with the weights hold" in caplog.text
