"""Calls of the Python API that are wrong, each in a way that a person may get them wrong.

A line is a call and, after the bar, words that its message must have. Names are those of `names`.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

import chop
from chop import actions, dataset, distributed, kernels, models, passes, pipelines, report, search
from chop import tools as chop_tools
from chop.actions import latency
from chop.errors import ChopError
from chop.nn import modules as nn_modules
from chop.nn import quantizers
from chop.nn.quantized.modules.linear import LinearInteger
from chop.tools import utils

CALLS = """
MaseGraph()
MaseGraph(None)
MaseGraph("mlp")
MaseGraph(nn.Linear)
MaseGraph(linear, dummy_in="x")
MaseGraph(linear, dummy_in=3)
MaseGraph(linear, dummy_in=torch.ones(2, 3))
MaseGraph(linear, dummy_in={"y": x})
MaseGraph(linear, dummy_in=[x, x])
MaseGraph(linear, hf_input_names=["input_ids"])
MaseGraph(linear, inputs=x)
MaseGraph(linear, dummy_in=x, custom_ops=3)
MaseGraph(linear, dummy_in=x, custom_ops={"modules": 3})
MaseGraph(linear, dummy_in=x, leaf_modules=3)
MaseGraph(linear, dummy_in=x, leaf_modules=["nowhere"])
MaseGraph(bert, hf_input_names=["input_idz"])
MaseGraph(bert, hf_input_names="input_ids")
MaseGraph(bert, hf_input_names=3)
MaseGraph(bert, dummy_in=x)
MaseGraph(bert, dummy_in={"input_ids": x})
MaseGraph(branches, dummy_in=x)
MaseGraph.from_checkpoint("nowhere")
MaseGraph.from_checkpoint(None)
MaseGraph.from_checkpoint(3)
MaseGraph.from_checkpoint(folder)
MaseGraph.from_checkpoint(text)
MaseGraph.from_checkpoint(saved, classes=3)
MaseGraph.from_checkpoint(saved, classes=["nn.Linear"])
MaseGraph.from_checkpoint(saved, custom_ops=3)
graph().export(None)
graph().export(3)
graph().export(folder / "g", save_format="onnx")
graph().draw(None)
graph().draw(folder / "g.xyz")
passes.PASSES["quantise_transform_pass"]
passes.quantize_transform_pass()
passes.quantize_transform_pass(None)
passes.quantize_transform_pass("graph")
passes.quantize_transform_pass(graph(), 3)
passes.quantize_transform_pass(graph(), [1])
passes.quantize_transform_pass(graph(), {"by": "shape"})
passes.quantize_transform_pass(graph(), {"by": None})
passes.quantize_transform_pass(graph(), {"by": "type", "liner": {"config": INTEGER}})
passes.quantize_transform_pass(graph(), {"by": "type", "linear": 3})
passes.quantize_transform_pass(graph(), {"by": "type", "linear": None})
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": None}})
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {"name": 3}}})
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {"name": "intger"}}})
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {"name": "integer"}}})
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {**INTEGER, "weight_widht": 8}}})
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {**INTEGER, "weight_width": "8"}}})
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {**INTEGER, "weight_width": 0}}})
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {**INTEGER, "weight_width": 8.5}}})
passes.quantize_transform_pass(graph(), {"by": "name", "nowhere": {"config": INTEGER}})
passes.quantize_transform_pass(graph(), {"by": "regex_name", "(": {"config": INTEGER}})
passes.quantize_transform_pass(graph(), pass_arguments={})
passes.quantize_module_transform_pass(graph(), {"by": "type"})
passes.quantize_module_transform_pass(linear, {"by": "name", "nowhere": {"config": INTEGER}})
passes.prune_transform_pass(graph())
passes.prune_transform_pass(graph(), {})
passes.prune_transform_pass(graph(), {"weight": 3})
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 2}})
passes.prune_transform_pass(graph(), {"weight": {"sparsity": "half"}})
passes.prune_transform_pass(graph(), {"weight": {"sparsity": None}})
passes.prune_transform_pass(graph(), {"weight": {"sparsity": float("nan")}})
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5, "method": "l3-norm"}})
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5, "scope": "everywhere"}})
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5, "granularity": "4:2"}})
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5, "target_modules": ["nowhere"]}})
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5, "target_modules": 3}})
passes.prune_transform_pass(graph(), {"wieght": {"sparsity": 0.5}})
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5, "method": "gradient"}})
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5}, "seed": "x"})
passes.insert_lora_adapter_transform_pass(graph(), {"rank": 0})
passes.insert_lora_adapter_transform_pass(graph(), {"rank": "4"})
passes.insert_lora_adapter_transform_pass(graph(), {"rank": 4, "dropout": 1.5})
passes.insert_lora_adapter_transform_pass(graph(), {"ranks": 4})
passes.insert_lora_adapter_transform_pass(graph(), {"rank": 4, "target_modules": ["nowhere"]})
passes.insert_lora_adapter_transform_pass(linear, {"rank": 4})
passes.save_lora_adapter_interface_pass(graph(), {"path": folder / "a"})
passes.save_lora_adapter_interface_pass(graph(), {})
passes.load_lora_adapter_interface_pass(graph(), {"path": "nowhere"})
passes.load_lora_adapter_interface_pass(graph(), {"path": None})
passes.load_lora_adapter_interface_pass(graph(), {"path": text})
passes.add_common_metadata_analysis_pass(raw())
passes.add_common_metadata_analysis_pass(graph(), {"dummy_in": 3})
passes.add_common_metadata_analysis_pass(graph(), {"dummy_in": {"y": x}})
passes.add_common_metadata_analysis_pass(graph(), {"dummy_in": {"input": torch.ones(2, 5)}})
passes.add_common_metadata_analysis_pass(graph(), {"dummy_inn": x})
passes.add_software_metadata_analysis_pass(raw())
passes.profile_statistics_analysis_pass(graph(), {"by": "type"})
passes.profile_statistics_analysis_pass(graph(), {"by": "type", "target_weight_nodes": ["linear"], "weight_statistics": {"varianze": {}}})
passes.profile_statistics_analysis_pass(graph(), {"by": "type", "target_weight_nodes": ["linear"], "weight_statistics": {"variance_precise": {"dims": "some"}}})
passes.profile_statistics_analysis_pass(graph(), {"num_samples": 0})
passes.report_node_meta_param_analysis_pass(graph(), {"which": ("sofware",)})
passes.report_node_meta_param_analysis_pass(graph(), {"which": 3})
passes.summarize_quantization_analysis_pass(graph(), {"original_graph": 3})
passes.calculate_avg_bits_mg_analysis_pass(raw())
passes.calculate_avg_bits_mg_analysis_pass(None)
passes.compile_transform_pass(graph(), {"backend": "nonesuch"})
passes.compile_transform_pass(graph(), {"mode": "fastest"})
passes.pack_weights_transform_pass(graph(), {"format": "mxint9"})
passes.pack_weights_transform_pass(graph(), {"group_size": 7})
passes.replace_module_transform_pass(graph(), {})
passes.replace_module_transform_pass(graph(), {"nowhere": linear})
passes.extract_subgraph_transform_pass(graph(), {"nodes": ["nowhere"]})
passes.extract_subgraph_transform_pass(graph(), {})
passes.fuse_patterns_transform_pass(graph(), {"patterns": ["nowhere"]})
passes.fuse_patterns_transform_pass(graph(), {"patterns": 3})
passes.save_node_meta_param_interface_pass(graph(), {})
passes.load_node_meta_param_interface_pass(graph(), {"path": "nowhere"})
passes.autosharding_analysis_pass(graph(), {"mesh_shape": 3})
passes.autosharding_analysis_pass(graph(), {"mesh_shape": (0, 2)})
passes.autosharding_analysis_pass(graph(), {"mesh": (1, 2)})
passes.runtime_analysis_pass(graph(), {"num_batches": 0})
quantizers.make_quantizer("intger", {}, "here")
quantizers.make_quantizer(None, {}, "here")
quantizers.make_quantizer("integer", {}, "here")
quantizers.make_quantizer("integer", 3, "here")
quantizers.make_quantizer("integer", {"width": 8, "frac": 2}, "here")
quantizers.make_quantizer("integer", {"width": "8"}, "here")
quantizers.Integer()
quantizers.Integer(0)
quantizers.Integer(-8, 4)
quantizers.Integer("8")
quantizers.Integer(None)
quantizers.Integer(8.5)
quantizers.Integer(8, "4")
quantizers.Integer(8, 4, rounding="up")
quantizers.Integer(8, 4, overflow="clip")
quantizers.Integer(8, 4, ste="none at all")
quantizers.Integer(8, 4)(3)
quantizers.Integer(8, 4)("x")
quantizers.Integer(8, 4)(None)
quantizers.Integer(8, 4)([1.0])
quantizers.Integer(8, 4)(torch.ones(2, dtype=torch.complex64))
quantizers.MXInt(1)
quantizers.MXInt(8, block_size=0)
quantizers.MXInt(8, block_size="x")
quantizers.MXInt(8, block_size=[1, 2, 3])(torch.ones(4))
quantizers.MXInt(8, axis="x")
quantizers.MinifloatIEEE(4, 4)
quantizers.MinifloatIEEE(8, 0)
quantizers.MinifloatIEEE(8)
quantizers.operand_quantizers(3, ("weight",), "here")
LinearInteger(4, 2)
LinearInteger(4, 2, config={})
LinearInteger(4, 2, config=3)
modules.LoRALinear(nn.ReLU(), 4)
modules.LoRALinear(linear, 0)
modules.LoRALinear(linear, 4, dropout=2.0)
models.get_model("mpl")
models.get_model(None)
models.get_model(3)
models.get_model("mlp", hidden="wide")
models.get_model("mlp", hiden=[4])
models.get_model("mlp", hidden=[-4])
models.get_model("mlp", num_labels=None)
models.get_model("tiny_bert", "base")
models.get_model("tiny_bert", hidden_size=33)
models.get_model("tiny_bert", hiden_size=32)
models.get_model("cnn", checkpoint="nowhere")
models.get_model(folder, "no-such-task")
models.get_model(folder)
dataset.get_dataset("digit")
dataset.get_dataset(None)
dataset.get_dataset("digits", test_size=0)
dataset.get_dataset("digits", test_size=10**6)
dataset.get_dataset("digits", test_rows=3)
dataset.get_dataset("digits", seed="x")
dataset.get_dataset("sequences", length=0)
dataset.get_dataset("sequences", vocab_size=-1)
dataset.ArrayDataset(3)
dataset.ArrayDataset({})
dataset.ArrayDataset({"a": x, "b": torch.ones(3)})
dataset.ArrayDataset({"a": [1, 2]})
digits["train"]["pixels"]
dataset.get_tokenized_dataset("nowhere", "nowhere")
dataset.get_tokenized_dataset(folder, "nowhere")
dataset.get_tokenized_dataset("nowhere")
dataset.get_tokenized_dataset(None, None)
dataset.get_tokenized_dataset(folder, folder, max_token_len=0)
dataset.load_token_arrays("nowhere")
dataset.load_token_arrays(folder)
tools.get_trainer(graph().model)
tools.get_trainer(None, digits)
tools.get_trainer("model", digits)
tools.get_trainer(linear, None)
tools.get_trainer(linear, {"train": digits["train"]})
tools.get_trainer(linear, digits, evaluate_metric="acuracy")
tools.get_trainer(linear, digits, evaluate_metric=None)
tools.get_trainer(linear, digits, num_train_epochs=-1)
tools.get_trainer(linear, digits, num_train_epochs=None)
tools.get_trainer(linear, digits, learning_rat=0.1)
tools.get_trainer(linear, digits, learning_rate="fast")
tools.get_trainer(linear, digits, learning_rate=-1.0)
tools.get_trainer(linear, digits, per_device_train_batch_size=0)
tools.get_trainer(linear, digits, optim="adamm")
tools.get_trainer(linear, digits, seed="x")
tools.get_trainer(linear, digits, output_dir=None, resume=True)
tools.get_trainer(bert, digits)
tools.get_trainer(linear, digits).train(resume_from_checkpoint=True)
utils.deepsetattr(graph().model, "nowhere.weight", 3)
utils.deepsetattr(graph().model, "", linear)
actions.sweep("sparsty", None, folder)
actions.sweep("sparsity", None, folder)
actions.sweep("sparsity", subject, folder, values=[2.0])
actions.sweep("sparsity", subject, folder, values=["x"])
actions.sweep("sparsity", subject, folder, seeds=3)
actions.trained_subject(None, digits)
actions.trained_subject(graph(), digits, evaluate_metric="acuracy").evaluate(graph())
actions.build_hardware(graph(), folder / "hw")
actions.build_hardware(None, folder / "hw")
actions.build_hardware(quantized(), folder / "hw", family="stratix")
actions.build_hardware(quantized(), folder / "hw", inputs="x")
actions.build_hardware(quantized(), folder / "hw", inputs=torch.ones(2, 5))
actions.build_hardware(quantized(), folder / "hw", parallelism=3)
actions.build_hardware(quantized(), folder / "hw", parallelism={"max_paralelism": 1})
actions.simulate("nowhere")
actions.simulate(folder)
actions.simulate(folder, simulator="modelsim")
actions.simulate(3)
actions.synthesize("nowhere")
actions.synthesize(folder, family="stratix")
passes.PASSES["add_hardware_metadata_analysis_pass"](graph())
passes.PASSES["add_hardware_metadata_analysis_pass"](quantized(), {"max_parallelism": 0})
passes.PASSES["add_hardware_metadata_analysis_pass"](quantized(), {"max_parallelism": "many"})
passes.PASSES["add_hardware_metadata_analysis_pass"](quantized(), {"target_interval": 0})
passes.PASSES["emit_verilog_top_transform_pass"](graph())
passes.PASSES["emit_verilog_top_transform_pass"](quantized(), {"project": folder})
latency.measure_latency({}, {"input": x})
latency.measure_latency({"a": linear}, {"y": x})
latency.measure_latency({"a": linear}, {"input": x}, devices=["tpu"])
latency.measure_latency({"a": linear}, {"input": x}, iterations=(0,))
latency.measure_latency({"a": 3}, {"input": x})
search.search(space, lambda p, t: {"y": 1.0})
search.search(None, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, storage=db())
search.search(space, None, {"y": "maximize"}, trials=1, storage=db())
search.search(space, "nowhere", {"y": "maximize"}, trials=1, storage=db())
search.search(space, lambda p, t: {"y": 1.0}, {"y": "most"}, trials=1, storage=db())
search.search(space, lambda p, t: {"y": 1.0}, 3, trials=1, storage=db())
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=0, storage=db())
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials="x", storage=db())
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, sampler="tpee", storage=db())
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, pruner="medain", storage=db())
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, engine="rey", storage=db())
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, workers=0, storage=db())
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, storage="mysql://host/db")
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, storage=text)
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, initial=[{"b": 1}], storage=db())
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, timeout=-1, storage=db())
search.search(space, lambda p, t: {"z": 1.0}, {"y": "maximize"}, trials=1, storage=db()).best
search.load_study("nowhere", "nowhere.db")
search.load_study("search", text)
search.load_study(None, db())
search.Choice(())
search.Choice(3)
search.Choice((1, 1))
search.Integer(3, 1)
search.Integer("a", 3)
search.Integer(1, 3, step=0)
search.Integer(0, 3, log=True)
search.Real(3.0, 1.0)
search.Real(0.0, 1.0, log=True)
search.Real("a", 1.0)
search.Space(3)
search.Space({"a": 3})
search.Space.from_config({"precison": {}}, "here", graph())
search.Space.from_config(3, "here", graph())
search.PrecisionSpace(graph(), ["intger"])
search.PrecisionSpace(graph(), [])
search.PrecisionSpace(graph(), ["integer"], by="shape")
search.PrecisionSpace(graph(), ["integer"], ops=["liner"])
search.PrecisionSpace(graph(), ["integer"], targets=["nowhere"])
search.PrecisionSpace(None, ["integer"])
search.PruneSpace({"sparsty": [0.5]})
search.PruneSpace({"sparsity": [2.0]})
search.PruneSpace({})
search.TrainingSpace({"learning_rat": [0.1]})
search.TrainingSpace(3)
search.PrecisionEvaluator(subject, search.PrecisionSpace(graph(), ["integer"]), costs=("average_bit",))
search.PrecisionEvaluator(None, search.PrecisionSpace(graph(), ["integer"]))
search.ArchitectureSpace(3, {"num_hidden_layers": [1, 2]})
search.ArchitectureSpace(bert.config, {"num_hiden_layers": [1, 2]})
search.COSTS["averag_bits"]
report.write_report(folder / "r.html", None)
report.write_report(None, report.Report("t"))
report.write_report(folder / "r.html", report.Report("t", graphs={"a": 3}))
report.write_report(folder / "r.html", report.Report("t", graphs={"a": graph()}, studies=[3]))
report.write_report(folder / "r.html", report.Report("t", graphs={"a": graph()}, sweeps=[[{"a": 1}]]))
report.Report()
report.draw_sweep("sparsty", [], folder / "s")
report.draw_sweep("sparsity", [], folder / "s")
report.draw_sweep("sparsity", [{"a": 1}], folder / "s")
report.draw_curves(folder / "c", [], report.Axes("t", "x", "y"))
pipelines.CompressionPipeline()(None)
pipelines.CompressionPipeline()(graph(), {"quantise_transform_pass": {}})
pipelines.CompressionPipeline()(graph(), {"quantize_transform_pass": {"by": "shape"}})
pipelines.CompressionPipeline()(graph(), 3)
pipelines.AutoPipeline(["nowhere_pass"])
pipelines.AutoPipeline(3)
pipelines.AutoPipeline([3])
pipelines.Step("nowhere")
pipelines.Step(passes.prune_transform_pass, when="sometimes")
kernels.pack(3)
kernels.pack(x, "mxint9")
kernels.pack(x, group_size=7)
kernels.pack(x, group_size="x")
kernels.pack(torch.ones(2, 4, dtype=torch.int64))
kernels.pack(torch.ones(()))
kernels.unpack(x)
kernels.unpack(kernels.pack(torch.ones(2, 32)), "float32")
kernels.packed_linear(x, x)
kernels.packed_linear(x, kernels.pack(torch.ones(2, 32)))
kernels.packed_linear(torch.ones(2, 32), kernels.pack(torch.ones(2, 32)), bias=torch.ones(3))
kernels.packed_embedding(torch.ones(2), kernels.pack(torch.ones(2, 32)))
kernels.PackedTensor(x, x, "mxint9", 32, 4)
distributed.Mesh((0, 2))
distributed.Mesh(2)
distributed.Mesh(("a", 2))
distributed.Mesh((1, 2), bandwidth=(-1.0,))
distributed.Mesh((1, 2), memory=0)
distributed.make_plan(None, distributed.Mesh())
distributed.make_plan(raw(), distributed.Mesh())
distributed.make_plan(graph(), (1, 2))
distributed.make_plan(graph(), distributed.Mesh((1, 2), memory=10))
distributed.fixed_plan(graph(), distributed.Mesh(), 3)
distributed.plan_table(None)
actions.shard(graph(), None)
actions.shard(graph(), {"mesh_shape": (1, 2)})
actions.ShardArgs(mesh_shape=(0,))
"""


def names(folder: Path) -> dict[str, Any]:
    """What the calls speak of."""
    text = folder / "text.txt"
    text.write_text("no checkpoint")
    _graph().export(folder / "saved")
    return {
        "MaseGraph": chop.MaseGraph,
        "torch": torch,
        "nn": nn,
        "folder": folder,
        "text": text,
        "saved": folder / "saved",
        "linear": nn.Linear(4, 4),
        "x": torch.ones(2, 4),
        "bert": models.get_model("tiny_bert"),
        "branches": Branches(),
        "graph": lambda: copy.deepcopy(_graph()),
        "raw": lambda: copy.deepcopy(_raw()),
        "quantized": lambda: copy.deepcopy(_quantized()),
        "digits": _digits(),
        "passes": passes,
        "actions": actions,
        "dataset": dataset,
        "distributed": distributed,
        "kernels": kernels,
        "models": models,
        "pipelines": pipelines,
        "report": report,
        "search": search,
        "tools": chop_tools,
        "utils": utils,
        "latency": latency,
        "modules": nn_modules,
        "quantizers": quantizers,
        "LinearInteger": LinearInteger,
        "transformers": transformers,
        "space": search.Space({"a": search.Choice((1, 2))}),
        "subject": _subject(),
        "db": lambda: _next_file(folder),
        "INTEGER": INTEGER,
    }


INTEGER = {
    f"{operand}_{name}": value
    for operand in ("data_in", "weight", "bias")
    for name, value in {"width": 8, "frac_width": 4}.items()
} | {"name": "integer"}


class Branches(nn.Module):
    """A model whose code decides by a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


@functools.cache
def _raw() -> chop.MaseGraph:
    return chop.MaseGraph(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), dummy_in=torch.ones(2, 4))


@functools.cache
def _graph() -> chop.MaseGraph:
    graph, _ = passes.init_metadata_analysis_pass(copy.deepcopy(_raw()))
    graph, _ = passes.add_common_metadata_analysis_pass(graph)
    return graph


@functools.cache
def _quantized() -> chop.MaseGraph:
    rules = {"by": "type", "linear": {"config": INTEGER}, "relu": {"config": INTEGER}}
    return passes.quantize_transform_pass(copy.deepcopy(_graph()), rules)[0]


@functools.cache
def _digits() -> Any:
    return dataset.get_dataset("digits")


@functools.cache
def _subject() -> Any:
    return actions.trained_subject(copy.deepcopy(_graph()), _digits())


def _next_file(folder: Path) -> Path:
    """A file that is not there."""
    return folder / f"study{len(list(folder.glob('study*')))}.db"


PYTHONS = re.compile(
    r"^\S+\(\) (missing \d+ required|got an unexpected keyword|got multiple values|takes )"
)
"""Python's own words for an argument that is missing or unknown."""


def lines() -> list[tuple[str, str]]:
    """The calls, with the words that their messages must have."""
    rows = (line.partition(" | ") for line in CALLS.strip().splitlines())
    return [(call.strip(), words.strip()) for call, _, words in rows]


def outcome(call: str, known: dict[str, Any]) -> tuple[bool, str]:
    """Whether a call ends clearly, and what it said."""
    try:
        found = eval(call, dict(known))
    except ChopError as error:
        return bool(str(error).strip()), f"{type(error).__name__}: {error}"
    except TypeError as error:
        return bool(PYTHONS.match(str(error))), f"TypeError: {error}"
    except Exception as error:  # the very thing that is looked for
        return False, f"{type(error).__name__}: {error}"
    return False, f"accepted: {found!r:.100}"


def outcomes(folder: Path) -> Iterator[tuple[str, str, bool, str]]:
    """Every call with its words, whether it ended clearly, and what it said."""
    known = names(folder)
    for call, words in lines():
        is_clear, told = outcome(call, known)
        yield call, words, is_clear and words in told, told
