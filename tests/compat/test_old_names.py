"""The names, keys and calls of programs for DeepWok/mase, one by one."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.compat.checkpoint_load import load_model
from chop.compat.get_input import InputGenerator, get_cf_args, get_dummy_input
from chop.compat.old_names import OLD_NAMES, RENAMED
from chop.config import load_toml
from chop.dataset import MaseDataModule, get_dataset_info
from chop.errors import CheckpointError, ConfigError, DataError, PassError, TraceError
from chop.models import get_model, get_model_info, tiny_bert
from chop.nn.quantized.modules import LAYER_CLASSES

DOCS = Path(__file__).parents[2] / "docs"
ROWS = (*OLD_NAMES, *RENAMED)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.path)
def test_an_old_name_is_the_new_thing(row):
    found = getattr(importlib.import_module(row.place), row.old)
    module, _, name = row.new.rpartition(".")
    assert found is getattr(importlib.import_module(module), name)


def test_no_old_name_is_listed_twice():
    paths = [row.path for row in ROWS]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("place", sorted({row.place for row in ROWS}))
def test_a_name_that_never_was_is_an_error(place):
    module = importlib.import_module(place)
    with pytest.raises(AttributeError, match=f"'{module.__name__}' has no attribute 'MaseGrph'"):
        _ = module.MaseGrph


@pytest.mark.slow
def test_every_quantised_layer_is_found_in_the_package():
    package = importlib.import_module("chop.nn.quantized")
    assert all(getattr(package, cls.__name__) is cls for cls in LAYER_CLASSES.values())


def test_old_names_cost_nothing_until_they_are_asked_for():
    program = "import chop, chop.ir, chop.tools, sys; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.strip() == "False", said.stderr


def test_the_page_is_what_the_tables_say(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    assert (DOCS / "coming_from.md").read_text() == importlib.import_module(
        "make_coming_from"
    ).page()


@pytest.fixture
def graph():
    mg = MaseGraph.from_module(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), dummy_in=torch.ones(2, 4))
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    return passes.add_software_metadata_analysis_pass(mg)[0]


def test_a_pass_leaves_out_what_only_older_programs_need(graph, notices):
    old = {"dummy_in": {"x": torch.ones(1)}, "input_generator": iter(()), "report": True}
    for _ in range(2):
        passes.report_graph_analysis_pass(graph, old)
    assert notices == [f"report_graph.{key}: has no effect." for key in ("report", *list(old)[:2])]
    with pytest.raises(ConfigError, match=r"report_graph: unknown key 'reprot'"):
        passes.report_graph_analysis_pass(graph, {"reprot": True})


def test_statistics_of_magnitudes(graph):
    settings = {"dims": "all", "abs": True, "quantile": 1.0}
    args = {"target_weight_nodes": ["linear"], "weight_statistics": {"range_quantile": settings}}
    _, info = passes.profile_statistics_analysis_pass(graph, args)
    weight = next(row["stat"] for row in info["table"] if row["name"] == "weight")
    magnitudes = graph.model.get_submodule("0").weight.detach().abs()
    assert weight["range_quantile"]["min"] == magnitudes.min()
    assert weight["range_quantile"]["max"] == magnitudes.max()
    sigma = {"dims": "all", "abs": True, "num_sigmas": 1, "var_mode": "precise"}
    args["weight_statistics"] = {"range_n_sigma": sigma}
    _, info = passes.profile_statistics_analysis_pass(graph, args)
    weight = next(row["stat"] for row in info["table"] if row["name"] == "weight")
    assert torch.allclose(weight["range_n_sigma"]["range"], 2 * magnitudes.std())


def test_metadata_survive_their_file(graph, tmp_path):
    settings = {"range_min_max": {"dims": "all"}}
    args = {"target_weight_nodes": ["linear"], "weight_statistics": settings}
    graph, _ = passes.profile_statistics_analysis_pass(graph, args)
    before = [node.meta["mase"] for node in graph.nodes]
    graph, info = passes.save_node_meta_param_interface_pass(graph, str(tmp_path / "meta.toml"))
    assert info["nodes"] == len(before)
    graph, _ = passes.load_node_meta_param_interface_pass(graph, {"load_path": info["path"]})
    for old, node in zip(before, graph.nodes, strict=True):
        new = node.meta["mase"]
        assert (new.common.mase_op, new.common.mase_type) == (
            old.common.mase_op,
            old.common.mase_type,
        )
        for name, value in old.common.args.items():
            again = new.common.args[name]
            assert (again.shape, again.torch_dtype) == (value.shape, value.torch_dtype)
            assert again.source is value.source
    stat = next(n for n in graph.nodes if n.op == "call_module").meta["mase"].software
    assert stat.args["weight"]["stat"]["range_min_max"]["count"] == 12


def test_metadata_of_another_graph_are_refused(graph, tmp_path):
    file = tmp_path / "meta.toml"
    file.write_text("[other.common]\nmase_op = 'linear'\n")
    with pytest.raises(PassError, match=r"not of this graph: 'input_1': it has no such table"):
        passes.load_node_meta_param_interface_pass(graph, {"load_path": file})
    tables = "\n".join(f"[{node.name}.comon]" for node in graph.nodes)
    file.write_text(tables)
    with pytest.raises(
        PassError, match=r"a node's table has common, software, hardware and nothing"
    ):
        passes.load_node_meta_param_interface_pass(graph, {"load_path": file})


def test_runtime_counts_and_scores_what_it_was_asked_for(graph):
    module = MaseDataModule("toy", batch_size=16)
    model = MaseGraph(get_model("toy"), dummy_in={"x": torch.ones(2, 4)})
    _, info = passes.runtime_analysis_pass(model, {"data_module": module, "num_batches": 2})
    assert info["batches"] == 2
    assert 0 <= info["accuracy"] <= 1 and info["latency_ms"] > 0
    _, info = passes.runtime_analysis_pass(graph, {"num_batches": 1})
    assert "accuracy" not in info
    with pytest.raises(ConfigError, match=r"runtime: num_batches must be at least 1, got 0"):
        passes.runtime_analysis_pass(graph, {"num_batches": 0})


def test_concrete_arguments_must_be_the_defaults():
    model = tiny_bert()
    info = get_model_info("bert-base-uncased")
    cf_args = get_cf_args(model_info=info, task="cls", model=model)
    assert "position_ids" in cf_args and "input_ids" not in cf_args
    assert len(MaseGraph(model, cf_args=cf_args).nodes) == len(MaseGraph(model).nodes)
    with pytest.raises(
        TraceError, match=r"cf_args: .* captured with position_ids=3, and its default"
    ):
        MaseGraph(model, cf_args={"position_ids": 3})
    with pytest.raises(TraceError, match=r"has no input 'labls'. Did you mean 'labels'"):
        MaseGraph(model, cf_args={"labls": None})


def test_a_data_module_gives_pairs_or_mappings():
    module = MaseDataModule(name="toy-tiny", batch_size=8, model_name="toy", num_workers=0)
    x, y = next(iter(module.train_dataloader()))
    assert x.shape == (8, 4) and y.shape == (8,)
    again = next(iter(module.train_dataloader()))[0]
    assert torch.equal(x, again)  # the seed decides the order
    assert module.dataset_info == get_dataset_info("toy-tiny")
    assert (module.dataset_info.num_features, module.dataset_info.num_classes) == (4, 2)
    batch = next(iter(MaseDataModule("sequences", batch_size=2).test_dataloader()))
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert get_dummy_input(get_model_info("toy"), module, "cls", "cpu")["x"].shape == (8, 4)
    assert len(list(InputGenerator(module, max_batches=2))) == 2


def test_data_that_is_not_there_says_what_is(tmp_path):
    with pytest.raises(DataError, match=r"no .npz file in .*Built in: digits, markov, sequences"):
        MaseDataModule(str(tmp_path)).setup()
    with pytest.raises(
        DataError, match=r"unknown which_dataloader 'valid'. Allowed: train, val, test"
    ):
        InputGenerator(MaseDataModule("toy"), which_dataloader="valid")
    with pytest.raises(DataError, match=r"InputGenerator: data_module is missing"):
        InputGenerator()


def test_a_model_by_its_old_name_has_the_datas_classes(notices):
    info = get_dataset_info("toy")
    model = get_model("toy", "cls", info, pretrained=True)
    assert model(torch.ones(3, 4)).shape == (3, 2)
    assert notices == ["get_model: 'toy' has no trained weights; they are random."]
    assert get_model("vgg7", num_classes=7, width=4)(torch.ones(2, 3, 32, 32)).shape == (2, 7)
    with pytest.raises(ConfigError, match=r"'jsc-tiny' takes no checkpoint, got 'best'"):
        get_model("jsc-tiny", checkpoint="best")
    assert get_model_info("vgg7").is_vision_model
    assert get_model_info("jsc-tiny").is_physical_model


def test_weights_come_from_files_without_running_them(tmp_path):
    model = get_model("jsc-tiny")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = load_model(tmp_path / "weights.pt", "pt", get_model("jsc-tiny"))
    assert torch.equal(other.seq_blocks[2].weight, model.seq_blocks[2].weight)
    MaseGraph(model, dummy_in={"x": torch.ones(2, 16)}).export(tmp_path / "graph")
    assert load_model(tmp_path / "graph").seq_blocks is not None
    torch.save(MaseDataModule("toy"), tmp_path / "object.pt")
    with pytest.raises(CheckpointError, match=r"object.pt' does not fit"):
        load_model(tmp_path / "object.pt", "pt", model)
    with pytest.raises(CheckpointError, match=r"unknown load_type 'hf'. Allowed: mz, pt, pl"):
        load_model("x", "hf", model)
    with pytest.raises(CheckpointError, match=r"'pt' needs a model to load into"):
        load_model("x", "pt")


def test_the_command_line_reads_an_old_file(tmp_path):
    from chop.cli.settings import read_table

    file = tmp_path / "fixed.toml"
    file.write_text("model = 'toy'\n[passes.quantize]\nby = 'type'\nreport = true\n")
    assert read_table(file, "quantize") == {"rules": load_toml(file)["passes"]["quantize"]}
    with pytest.raises(ConfigError, match=r"no table \[prune\] for this command"):
        read_table(file, "prune")
