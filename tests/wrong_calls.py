"""Calls of the Python API that are wrong, each in a way that a person may get them wrong.

A line is a call and, after the bar, words that its message must have. Names are those of `names`.
"""

# ruff: noqa: E501 - a line of the table is a call

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
from chop import (
    actions,
    dataset,
    distributed,
    export,
    kernels,
    models,
    passes,
    pipelines,
    report,
    search,
)
from chop import tools as chop_tools
from chop.actions import latency
from chop.errors import ChopError
from chop.nn import modules as nn_modules
from chop.nn import quantizers
from chop.nn.quantized.modules.linear import LinearInteger
from chop.tools import utils

CALLS = """
graph().export("") | MaseGraph.export: path: expected a path that ends in a name, got '' (str).
graph().export("/") | MaseGraph.export: path: expected a path that ends in a name, got '/' (str).
graph().export(".") | MaseGraph.export: path: expected a path that ends in a name, got '.' (str).
graph().export(text / "g") | cannot be a folder (
MaseGraph.from_checkpoint("") | MaseGraph.from_checkpoint: path: expected a path that ends in a name, got ''
MaseGraph.from_checkpoint("/") | MaseGraph.from_checkpoint: path: expected a path that ends in a name, got '/'
graph().draw("") | MaseGraph.draw: path: expected a path of a file to write, where no folder is, got ''
graph().draw(folder) | MaseGraph.draw: path: expected a path of a file to write, where no folder is, got
export.to_onnx(graph(), "") | to_onnx: path: expected a path of a file to write, where no folder is, got ''
export.to_onnx(graph(), folder) | to_onnx: path: expected a path of a file to write, where no folder is, got
export.to_onnx(graph(), "/") | to_onnx: path: expected a path of a file to write, where no folder is, got '/'
export.to_onnx(graph(), None) | to_onnx: path: expected a path of a file to write, where no folder is, got None
export.to_onnx(graph(), text / "m.onnx") | cannot be a folder (
export.to_qonnx(graph(), folder) | to_qonnx: path: expected a path of a file to write, where no folder is, got
export.to_gguf(graph(), folder) | to_gguf: path: expected a path of a file to write, where no folder is, got
export.to_gguf(graph(), "") | to_gguf: path: expected a path of a file to write, where no folder is, got ''
export.to_huggingface(graph(), text) | to_huggingface: path: expected a path of a folder to write, where no file is, got
export.to_huggingface(graph(), "") | to_huggingface: path: expected a path of a folder to write, where no file is, got ''
export.to_compressed_tensors(graph(), text) | to_compressed_tensors: path: expected a path of a folder to write, where no file
export.from_onnx("") | from_onnx: path: expected a path, got '' (str).
export.from_onnx(folder) | no such file
export.from_gguf("") | from_gguf: path: expected a path, got '' (str).
export.from_gguf(folder) | no such file
export.from_compressed_tensors("") | from_compressed_tensors: path: expected a path, got '' (str).
models.get_model("") | model: expected a path, got '' (str).
models.get_model("/") | model '/': the folder has no config.json.
report.write_report("", report.Report("t")) | write_report: path: expected a path of a file to write, where no folder is, got ''
report.write_report(folder, report.Report("t")) | write_report: path: expected a path of a file to write, where no folder is, got
report.compare_reports(folder / "c.html", [saved, saved]) | is given twice. Give reports of different runs.
passes.quantize_transform_pass(graph()) | quantize: nothing was done: no rule is given. Give one for an op or a name
passes.quantize_transform_pass(graph(), None) | quantize: nothing was done: no rule is given. Give one for an op or a name
passes.quantize_transform_pass(graph(), {}) | quantize: nothing was done: no rule is given. Give one for an op or a name
passes.quantize_transform_pass(graph(), {"by": "type"}) | quantize: nothing was done: no rule is given. Give one for an op or a name
passes.quantize_module_transform_pass(linear, {}) | quantize: nothing was done: no rule is given. Give one for an op or a name
passes.quantize_module_transform_pass(linear) | quantize: nothing was done: no rule is given. Give one for an op or a name
passes.save_lora_adapter_interface_pass(adapted(), {"path": ""}) | save_lora_adapter.path: expected a path, got '' (str).
passes.save_lora_adapter_interface_pass(adapted(), {"path": text}) | text.txt: cannot be a folder (File exists).
tools.get_trainer(linear, digits, num_train_epochs="many") | get_trainer: num_train_epochs is a number, got 'many'.
tools.get_trainer(linear, digits, learning_rate=[1]) | get_trainer: learning_rate is a number, got [1].
tools.get_trainer(linear, digits, output_dir="") | get_trainer: output_dir: expected a path of a folder to write, where no file is, got ''
tools.get_trainer(linear, digits, output_dir=text) | get_trainer: output_dir: expected a path of a folder to write, where no file is, got
MaseGraph() | MaseGraph.__init__() missing 1 required positional argument:
MaseGraph(None) | MaseGraph: model: expected a torch.nn.Module, got None
MaseGraph("mlp") | MaseGraph: model: expected a torch.nn.Module, got 'mlp' (str).
MaseGraph(nn.Linear) | MaseGraph: model: expected a torch.nn.Module, got <class
MaseGraph(linear, dummy_in="x") | Linear does not run on the inputs input (str): linear():
MaseGraph(linear, dummy_in=3) | Linear does not run on the inputs input (int): linear():
MaseGraph(linear, dummy_in=torch.ones(2, 3)) | Linear does not run on the inputs input ([2, 3], float32): mat1
MaseGraph(linear, dummy_in={"y": x}) | Linear.forward has no input 'y'. Known: input.
MaseGraph(linear, dummy_in=[x, x]) | Linear.forward takes 1 inputs, got 2.
MaseGraph(linear, hf_input_names=["input_ids"]) | Linear.forward has no input 'input_ids'. Did you mean 'input'?
MaseGraph(linear, inputs=x) | MaseGraph.__init__() got an unexpected keyword argument 'inputs'
MaseGraph(linear, dummy_in=x, custom_ops=3) | MaseGraph: custom_ops: expected a mapping or None, got 3 (int).
MaseGraph(linear, dummy_in=x, custom_ops={"modules": 3}) | custom_ops['modules']: expected a mapping, got 3 (int).
MaseGraph(linear, dummy_in=x, leaf_modules=3) | MaseGraph: leaf_modules: expected a list, got 3 (int).
MaseGraph(linear, dummy_in=x, leaf_modules=["nowhere"]) | leaf_modules: no module 'nowhere'. Known: .
MaseGraph(bert, hf_input_names=["input_idz"]) | BertForSequenceClassification.forward has no input 'input_idz'.
MaseGraph(bert, hf_input_names="input_ids") | MaseGraph: hf_input_names: expected a list or None, got
MaseGraph(bert, hf_input_names=3) | MaseGraph: hf_input_names: expected a list or None, got 3 (int).
MaseGraph(bert, dummy_in=x) | BertForSequenceClassification does not run on the inputs
MaseGraph(bert, dummy_in={"input_ids": x}) | BertForSequenceClassification does not run on the inputs
MaseGraph(branches, dummy_in=x) | value-dependent control flow
MaseGraph.from_checkpoint("nowhere") | nowhere.json: no such checkpoint.
MaseGraph.from_checkpoint(None) | MaseGraph.from_checkpoint: path: expected a path that ends in a name, got None
MaseGraph.from_checkpoint(3) | MaseGraph.from_checkpoint: path: expected a path that ends in a name, got 3
MaseGraph.from_checkpoint(folder) | no such checkpoint.
MaseGraph.from_checkpoint(text) | no such checkpoint.
MaseGraph.from_checkpoint(saved, classes=3) | MaseGraph.from_checkpoint: classes: expected a list of classes
MaseGraph.from_checkpoint(saved, classes=["nn.Linear"]) | MaseGraph.from_checkpoint: classes: expected a list of classes
MaseGraph.from_checkpoint(saved, custom_ops=3) | MaseGraph.from_checkpoint: custom_ops: expected a mapping or
graph().export(None) | MaseGraph.export: path: expected a path that ends in a name, got None
graph().export(3) | MaseGraph.export: path: expected a path that ends in a name, got 3 (int).
graph().export(folder / "g", save_format="onnx") | export: unknown save_format 'onnx'. Allowed: graph, packed, state_dict.
graph().draw(None) | MaseGraph.draw: path: expected a path of a file to write, where no folder is, got None
graph().draw(folder / "g.xyz") | draw: '.xyz' is not a known format. Allowed: .svg, .dot, .gv.
passes.PASSES["quantise_transform_pass"] | Unknown pass 'quantise_transform_pass'. Did you mean
passes.quantize_transform_pass() | quantize_transform_pass() missing 1 required positional
passes.quantize_transform_pass(None) | quantize_transform_pass: expected a MaseGraph, got NoneType.
passes.quantize_transform_pass("graph") | quantize_transform_pass: expected a MaseGraph, got str. Wrap
passes.quantize_transform_pass(graph(), 3) | quantize: expected a mapping, got 3 (int).
passes.quantize_transform_pass(graph(), [1]) | quantize: expected a mapping, got [1] (list).
passes.quantize_transform_pass(graph(), {"by": "shape"}) | quantize.by: 'shape' (str) is not allowed. Allowed: 'name',
passes.quantize_transform_pass(graph(), {"by": None}) | quantize.by: None (NoneType) is not allowed. Allowed: 'name',
passes.quantize_transform_pass(graph(), {"by": "type", "liner": {"config": INTEGER}}) | quantize.liner: matches nothing by type. Did you mean 'linear'?
passes.quantize_transform_pass(graph(), {"by": "type", "linear": 3}) | A rule is a table, got 3 (int)
passes.quantize_transform_pass(graph(), {"by": "type", "linear": None}) | quantize: unknown key 'linear'. Known: by, default.
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": None}}) | quantize.linear.config: expected a mapping, got None (NoneType).
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {"name": 3}}}) | quantize.linear.config.name: expected the spelling of a format, got 3.
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {"name": "intger"}}}) | quantize.linear.config.name: Unknown format 'intger'. Did you
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {"name": "integer"}}}) | quantize.linear.config: key 'data_in_width' is missing.
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {**INTEGER, "weight_widht": 8}}}) | quantize.linear.config: unknown key 'weight_widht'. Did you
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {**INTEGER, "weight_width": "8"}}}) | quantize.linear.config.weight_width: expected int, got '8'
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {**INTEGER, "weight_width": 0}}}) | quantize.linear.config: weight_width must be from 1 to 32, got
passes.quantize_transform_pass(graph(), {"by": "type", "linear": {"config": {**INTEGER, "weight_width": 8.5}}}) | quantize.linear.config.weight_width: expected int, got 8.5
passes.quantize_transform_pass(graph(), {"by": "name", "nowhere": {"config": INTEGER}}) | quantize.nowhere: matches nothing by name. Known: 0, 1, 2, _0,
passes.quantize_transform_pass(graph(), {"by": "regex_name", "(": {"config": INTEGER}}) | quantize: '(' is no regular expression: missing )
passes.quantize_transform_pass(graph(), pass_arguments={}) | quantize.pass_arguments: matches nothing by type. Known:
passes.quantize_module_transform_pass(graph(), {"by": "type"}) | quantize_module: expected a module, got MaseGraph. Give
passes.quantize_module_transform_pass(linear, {"by": "name", "nowhere": {"config": INTEGER}}) | quantize.nowhere: matches nothing by name. Known: .
passes.prune_transform_pass(graph()) | prune: nothing to prune: give 'weight', 'activation' or both.
passes.prune_transform_pass(graph(), {}) | prune: nothing to prune: give 'weight', 'activation' or both.
passes.prune_transform_pass(graph(), {"weight": 3}) | prune.weight: expected a mapping, got 3 (int).
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 2}}) | prune.weight: sparsity must be at least 0 and below 1, got 2.0.
passes.prune_transform_pass(graph(), {"weight": {"sparsity": "half"}}) | prune.weight.sparsity: expected float, got 'half' (str).
passes.prune_transform_pass(graph(), {"weight": {"sparsity": None}}) | prune.weight: key 'sparsity' is missing.
passes.prune_transform_pass(graph(), {"weight": {"sparsity": float("nan")}}) | prune.weight: sparsity must be at least 0 and below 1, got nan.
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5, "method": "l3-norm"}}) | prune.weight: method: unknown method 'l3-norm'. Did you mean
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5, "scope": "everywhere"}}) | prune.weight.scope: 'everywhere' (str) is not allowed. Allowed:
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5, "granularity": "4:2"}}) | prune.weight: granularity: '4:2' must keep N of M with 0 < N <
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5, "target_modules": ["nowhere"]}}) | prune.weight.target_modules: 'nowhere' matches no module.
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5, "target_modules": 3}}) | prune.weight.target_modules: expected a list, got 3 (int).
passes.prune_transform_pass(graph(), {"wieght": {"sparsity": 0.5}}) | prune: unknown key 'wieght'. Did you mean 'weight'? Known:
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5, "method": "gradient"}}) | prune.weight: method: unknown method 'gradient'. Known:
passes.prune_transform_pass(graph(), {"weight": {"sparsity": 0.5}, "seed": "x"}) | prune.seed: expected int, got 'x' (str).
passes.insert_lora_adapter_transform_pass(graph(), {"rank": 0}) | insert_lora_adapter: rank must be at least 1, got 0.
passes.insert_lora_adapter_transform_pass(graph(), {"rank": "4"}) | insert_lora_adapter.rank: expected int, got '4' (str).
passes.insert_lora_adapter_transform_pass(graph(), {"rank": 4, "dropout": 1.5}) | insert_lora_adapter: dropout must be at least 0 and below 1,
passes.insert_lora_adapter_transform_pass(graph(), {"ranks": 4}) | insert_lora_adapter: unknown key 'ranks'. Did you mean 'rank'?
passes.insert_lora_adapter_transform_pass(graph(), {"rank": 4, "target_modules": ["nowhere"]}) | insert_lora_adapter.target_modules: 'nowhere' matches no
passes.insert_lora_adapter_transform_pass(linear, {"rank": 4}) | insert_lora_adapter_transform_pass: expected a MaseGraph, got
passes.save_lora_adapter_interface_pass(graph(), {"path": folder / "a"}) | save_lora_adapter: the graph has no adapters. Run
passes.save_lora_adapter_interface_pass(graph(), {}) | save_lora_adapter: key 'path' is missing.
passes.load_lora_adapter_interface_pass(graph(), {"path": "nowhere"}) | nowhere/adapter_model.safetensors: no such file.
passes.load_lora_adapter_interface_pass(graph(), {"path": None}) | load_lora_adapter.path: expected Path, got None (NoneType).
passes.load_lora_adapter_interface_pass(graph(), {"path": text}) | no such file.
passes.add_common_metadata_analysis_pass(raw()) | add_common_metadata_analysis_pass: node 'input_1' has no init
passes.add_common_metadata_analysis_pass(graph(), {"dummy_in": 3}) | add_common_metadata: dummy_in must be a mapping, a tensor or a
passes.add_common_metadata_analysis_pass(graph(), {"dummy_in": {"y": x}}) | add_common_metadata: dummy_in has no 'input'. The graph takes:
passes.add_common_metadata_analysis_pass(graph(), {"dummy_in": {"input": torch.ones(2, 5)}}) | node '_0' (call_module 0): cannot run on dummy_in:
passes.add_common_metadata_analysis_pass(graph(), {"dummy_inn": x}) | add_common_metadata: unknown key 'dummy_inn'. Did you mean
passes.add_software_metadata_analysis_pass(raw()) | add_software_metadata_analysis_pass: node 'input_1' has no
passes.profile_statistics_analysis_pass(graph(), {"by": "type", "target_weight_nodes": ["linear"], "weight_statistics": {"varianze": {}}}) | weight_statistics: unknown statistic 'varianze'. Did you mean
passes.profile_statistics_analysis_pass(graph(), {"by": "type", "target_weight_nodes": ["linear"], "weight_statistics": {"variance_precise": {"dims": "some"}}}) | variance_precise.dims: 'some' (str) is not allowed. Allowed: 'all'
passes.profile_statistics_analysis_pass(graph(), {"num_samples": 0}) | profile_statistics: num_samples must be at least 1, got 0.
passes.report_node_meta_param_analysis_pass(graph(), {"which": ("sofware",)}) | report_node_meta_param.which: ('sofware',) (tuple) is not
passes.report_node_meta_param_analysis_pass(graph(), {"which": 3}) | report_node_meta_param.which: 3 (int) is not allowed. Allowed:
passes.summarize_quantization_analysis_pass(graph(), {"original_graph": 3}) | summarize_quantization: original_graph must be a MaseGraph, got
passes.calculate_avg_bits_mg_analysis_pass(raw()) | calculate_avg_bits_mg_analysis_pass: node 'input_1' has no
passes.calculate_avg_bits_mg_analysis_pass(None) | calculate_avg_bits_mg_analysis_pass: expected a MaseGraph, got
passes.compile_transform_pass(graph(), {"backend": "nonesuch"}) | no backend 'nonesuch'. Known: aot_eager,
passes.compile_transform_pass(graph(), {"mode": "fastest"}) | compile.mode: 'fastest' (str) is not allowed. Allowed:
passes.pack_weights_transform_pass(graph(), {"format": "mxint9"}) | pack_weights: format: no packed format holds 'mxint9'. Did you mean 'mxint8'?
passes.pack_weights_transform_pass(graph(), {"group_size": 7}) | pack_weights: group_size: group_size 7 is not allowed. Allowed:
passes.replace_module_transform_pass(graph(), {}) | replace_module: key 'target' is missing.
passes.replace_module_transform_pass(graph(), {"nowhere": linear}) | replace_module: unknown key 'nowhere'. Known: by, factory,
passes.extract_subgraph_transform_pass(graph(), {"nodes": ["nowhere"]}) | extract_subgraph: unknown key 'nodes'. Known: inputs, outputs.
passes.extract_subgraph_transform_pass(graph(), {}) | extract_subgraph: key 'outputs' is missing.
passes.fuse_patterns_transform_pass(graph(), {"patterns": ["nowhere"]}) | fuse_patterns.patterns[0]: 'nowhere' (str) is not allowed.
passes.fuse_patterns_transform_pass(graph(), {"patterns": 3}) | fuse_patterns.patterns: expected a list, got 3 (int).
passes.save_node_meta_param_interface_pass(graph(), {}) | save_node_meta_param: key 'save_path' is missing.
passes.load_node_meta_param_interface_pass(graph(), {"path": "nowhere"}) | load_node_meta_param: unknown key 'path'. Did you mean
passes.autosharding_analysis_pass(graph(), {"mesh_shape": 3}) | autosharding.mesh_shape: expected a list, got 3 (int).
passes.autosharding_analysis_pass(graph(), {"mesh_shape": (0, 2)}) | autosharding: mesh shape [0, 2]: expected one to three axes of at
passes.autosharding_analysis_pass(graph(), {"mesh": (1, 2)}) | autosharding: unknown key 'mesh'. Known: bandwidth, flops,
passes.runtime_analysis_pass(graph(), {"num_batches": 0}) | runtime: num_batches must be at least 1, got 0.
quantizers.make_quantizer("intger", {}, "here") | here.name: Unknown format 'intger'. Did you mean 'integer'?
quantizers.make_quantizer(None, {}, "here") | here.name: expected the spelling of a format, got None.
quantizers.make_quantizer("integer", {}, "here") | here: key 'width' is missing.
quantizers.make_quantizer("integer", 3, "here") | here: expected a mapping or None, got 3 (int).
quantizers.make_quantizer("integer", {"width": 8, "frac": 2}, "here") | here: unknown key 'frac'. Known: frac_width, is_signed, narrow,
quantizers.make_quantizer("integer", {"width": "8"}, "here") | here.width: expected int, got '8' (str).
quantizers.Integer() | Integer.__init__() missing 1 required positional argument:
quantizers.Integer(0) | width must be from 1 to 32, got 0.
quantizers.Integer(-8, 4) | width must be from 1 to 32, got -8.
quantizers.Integer("8") | Integer.width: expected int, got '8' (str).
quantizers.Integer(None) | Integer.width: expected int, got None (NoneType).
quantizers.Integer(8.5) | Integer.width: expected int, got 8.5 (float).
quantizers.Integer(8, "4") | Integer.frac_width: expected int, got '4' (str).
quantizers.Integer(8, 4, rounding="up") | Integer.rounding: 'up' (str) is not allowed. Allowed:
quantizers.Integer(8, 4, overflow="clip") | Integer.overflow: 'clip' (str) is not allowed. Allowed:
quantizers.Integer(8, 4, ste="none at all") | Integer.ste: 'none at all' (str) is not allowed. Allowed:
quantizers.Integer(8, 4)(3) | integer: expected a tensor, got int.
quantizers.Integer(8, 4)("x") | integer: expected a tensor, got str.
quantizers.Integer(8, 4)(None) | integer: expected a tensor, got NoneType.
quantizers.Integer(8, 4)([1.0]) | integer: expected a tensor, got list.
quantizers.Integer(8, 4)(torch.ones(2, dtype=torch.complex64)) | integer: expected a floating-point tensor, got torch.complex64.
quantizers.MXInt(1) | width must be from 2 to 32, got 1.
quantizers.MXInt(8, block_size=0) | block_size must be one or two positive sizes (-1: the whole
quantizers.MXInt(8, block_size="x") | MXInt.block_size: expected int, got 'x' (str). Or:
quantizers.MXInt(8, block_size=[1, 2, 3])(torch.ones(4)) | block_size must be one or two positive sizes (-1: the whole
quantizers.MXInt(8, axis="x") | MXInt.axis: expected int, got 'x' (str).
quantizers.MinifloatIEEE(4, 4) | width must be at least exponent_width + 1.
quantizers.MinifloatIEEE(8, 0) | exponent_width must be from 1 to 8, got 0.
quantizers.MinifloatIEEE(8) | MinifloatIEEE.__init__() missing 1 required positional
quantizers.operand_quantizers(3, ("weight",), "here") | here: expected a mapping or None, got 3 (int).
LinearInteger(4, 2) | LinearInteger: key 'data_in_width' is missing.
LinearInteger(4, 2, config={}) | LinearInteger: key 'data_in_width' is missing.
LinearInteger(4, 2, config=3) | config: expected a mapping or None, got 3 (int).
modules.LoRALinear(nn.ReLU(), 4) | LoRALinear: base_layer must be a linear layer, got ReLU.
modules.LoRALinear(linear, 0) | LoRALinear: rank must be at least 1, got 0.
modules.LoRALinear(linear, 4, dropout=2.0) | LoRALinear: dropout must be at least 0 and below 1, got 2.0.
models.get_model("mpl") | no local copy is known
models.get_model(None) | model: expected a path, got None (NoneType).
models.get_model(3) | model: expected a path, got 3 (int).
models.get_model("mlp", hidden="wide") | mlp: no model could be built with model_options hidden = 'wide'
models.get_model("mlp", hiden=[4]) | model_options: mlp does not take hiden (got an unexpected
models.get_model("mlp", hidden=[-4]) | mlp: no model could be built with model_options hidden = [-4]
models.get_model("mlp", num_labels=None) | mlp: no model could be built with model_options num_labels =
models.get_model("tiny_bert", "base") | task: 'tiny_bert' is for sequence-classification, got 'base'.
models.get_model("tiny_bert", hidden_size=33) | tiny_bert: no model could be built with model_options
models.get_model("tiny_bert", hiden_size=32) | tiny_bert: unknown option 'hiden_size'. Did you mean 'hidden_size'
models.get_model("cnn", checkpoint="nowhere") | get_model: 'cnn' takes no checkpoint, got 'nowhere'. Load its
models.get_model(folder, "no-such-task") | get_model: unknown task 'no-such-task'. Known: base, causal-lm,
models.get_model(folder) | model '
dataset.get_dataset("digit") | Unknown dataset 'digit'. Did you mean 'digits'? Known: digits,
dataset.get_dataset(None) | Unknown dataset 'None'. Known: digits, markov, sequences.
dataset.get_dataset("digits", test_size=0) | digits: test_size is 0. Allowed: 1 to 1796 rows.
dataset.get_dataset("digits", test_size=10**6) | digits: test_size is 1000000. Allowed: 1 to 1796 rows.
dataset.get_dataset("digits", test_rows=3) | digits() got an unexpected keyword argument 'test_rows'
dataset.get_dataset("digits", seed="x") | digits: seed: expected a whole number, got 'x' (str).
dataset.get_dataset("sequences", length=0) | sequences: length is 0. Allowed: 4 or more.
dataset.get_dataset("sequences", vocab_size=-1) | sequences: vocab_size is -1. Allowed: 4 or more.
dataset.ArrayDataset(3) | ArrayDataset: columns: expected a mapping, got 3 (int).
dataset.ArrayDataset({}) | ArrayDataset: columns must have one length, got {}.
dataset.ArrayDataset({"a": x, "b": torch.ones(3)}) | ArrayDataset: columns must have one length, got {'a': 2, 'b':
dataset.ArrayDataset({"a": [1, 2]}) | ArrayDataset: column 'a': expected a tensor, got [1, 2] (list).
digits["train"]["pixels"] | ArrayDataset: rows are counted, got 'pixels'. Columns, under
dataset.get_tokenized_dataset("nowhere", "nowhere") | no local copy is known
dataset.get_tokenized_dataset(folder, "nowhere") | no local copy is known
dataset.get_tokenized_dataset("nowhere") | get_tokenized_dataset() missing 1 required positional argument:
dataset.get_tokenized_dataset(None, None) | model: expected a path, got None (NoneType).
dataset.get_tokenized_dataset(folder, folder, max_token_len=0) | tokenizer '
dataset.load_token_arrays("nowhere") | load_token_arrays: no .npz file in 'nowhere'.
dataset.load_token_arrays(folder) | load_token_arrays: no .npz file in '
tools.get_trainer(graph().model) | get_trainer() missing 1 required positional argument:
tools.get_trainer(None, digits) | get_trainer: model: expected a torch.nn.Module or a MaseGraph,
tools.get_trainer("model", digits) | get_trainer: model: expected a torch.nn.Module or a MaseGraph,
tools.get_trainer(linear, None) | get_trainer: tokenized_dataset: expected a mapping, got None
tools.get_trainer(linear, {"train": digits["train"]}) | get_trainer: expected splits 'train' and one of test,
tools.get_trainer(linear, digits, evaluate_metric="acuracy") | Unknown metric 'acuracy'. Did you mean 'accuracy'? Known:
tools.get_trainer(linear, digits, evaluate_metric=None) | Unknown metric 'None'. Known: accuracy, f1, mae,
tools.get_trainer(linear, digits, num_train_epochs=-1) | get_trainer: num_train_epochs must be at least 0, got -1.
tools.get_trainer(linear, digits, num_train_epochs=None) | get_trainer: num_train_epochs must be at least 0, got None.
tools.get_trainer(linear, digits, learning_rat=0.1) | get_trainer: TrainingArguments.__init__() got an unexpected
tools.get_trainer(linear, digits, learning_rate="fast") | get_trainer: learning_rate is a number, got 'fast'.
tools.get_trainer(linear, digits, learning_rate=-1.0) | get_trainer: learning_rate must be at least 0, got -1.0.
tools.get_trainer(linear, digits, per_device_train_batch_size=0) | get_trainer: per_device_train_batch_size must be at least 1,
tools.get_trainer(linear, digits, optim="adamm") | get_trainer: adamm is not a valid OptimizerNames, please select
tools.get_trainer(linear, digits, seed="x") | get_trainer: seed is a number, got 'x'.
tools.get_trainer(linear, digits, output_dir=None, resume=True) | get_trainer: output_dir: expected a path of a folder to write, where no file is, got None
tools.get_trainer(bert, digits) | the model takes input_ids, attention_mask, token_type_ids,
tools.get_trainer(linear, digits).train(resume_from_checkpoint=True) | mase_output/trainer: no complete checkpoint to resume from.
utils.deepsetattr(graph().model, "nowhere.weight", 3) | deepsetattr: Sequential has no 'nowhere'.
utils.deepsetattr(graph().model, "", linear) | deepsetattr: '' names no attribute.
actions.sweep("sparsty", None, folder) | sweep: subject: expected a Subject, got None (NoneType).
actions.sweep("sparsity", None, folder) | sweep: subject: expected a Subject, got None (NoneType).
actions.sweep("sparsity", subject, folder, values=[2.0]) | prune.weight: sparsity must be at least 0 and below 1, got 2.0.
actions.sweep("sparsity", subject, folder, values=["x"]) | prune.weight.sparsity: expected float, got 'x' (str).
actions.sweep("sparsity", subject, folder, seeds=3) | sweep: seeds: expected a list, got 3 (int).
actions.trained_subject(None, digits) | trained_subject: graph: expected a MaseGraph, got None
actions.trained_subject(graph(), digits, evaluate_metric="acuracy").evaluate(graph()) | Unknown metric 'acuracy'. Did you mean 'accuracy'? Known:
actions.build_hardware(graph(), folder / "hw") | node 'input_1': nothing that reads this input brings it to a
actions.build_hardware(None, folder / "hw") | add_hardware_metadata_analysis_pass: expected a MaseGraph, got
actions.build_hardware(quantized(), folder / "hw", inputs="x") | inputs: expected a tensor, got 'x' (str).
actions.build_hardware(quantized(), folder / "hw", inputs=torch.ones(2, 5)) | inputs: data_in_0 has rows of 5 values, not of 4.
actions.build_hardware(quantized(), folder / "hw", parallelism=3) | build_hardware: parallelism: expected a mapping or a DesignSpec or None, got 3
actions.build_hardware(quantized(), folder / "hw", parallelism={"max_paralelism": 1}) | add_hardware_metadata: unknown key 'max_paralelism'. Did you
actions.simulate("nowhere") | nowhere/hardware/design.json: no such file. Run
actions.simulate(folder) | no such file. Run emit_verilog_top_transform_pass first.
actions.simulate(folder, simulator="modelsim") | simulate: unknown simulator 'modelsim'. Known: axi,
actions.simulate(3) | simulate: project_dir: expected a path or None, got 3 (int).
actions.synthesize("nowhere") | nowhere/hardware/design.json: no such file. Run
actions.synthesize(folder, family="stratix") | no such file. Run emit_verilog_top_transform_pass first.
passes.PASSES["add_hardware_metadata_analysis_pass"](graph()) | node 'input_1': nothing that reads this input brings it to a
passes.PASSES["add_hardware_metadata_analysis_pass"](quantized(), {"max_parallelism": 0}) | add_hardware_metadata: max_parallelism must be 1 or more, got 0.
passes.PASSES["add_hardware_metadata_analysis_pass"](quantized(), {"max_parallelism": "many"}) | add_hardware_metadata.max_parallelism: expected int, got 'many'
passes.PASSES["add_hardware_metadata_analysis_pass"](quantized(), {"target_interval": 0}) | node '_0': no parallelism reaches 0 cycles; fully parallel it
passes.PASSES["emit_verilog_top_transform_pass"](graph()) | emit_verilog_top_transform_pass: node 'input_1' has no hardware
passes.PASSES["emit_verilog_top_transform_pass"](quantized(), {"project": folder}) | emit_verilog_top: unknown key 'project'. Did you mean
latency.measure_latency({}, {"input": x}) | measure_latency: no models given.
latency.measure_latency({"a": linear}, {"y": x}) | Linear.forward() got an unexpected keyword argument 'y'
latency.measure_latency({"a": linear}, {"input": x}, devices=["tpu"]) | measure_latency: no device is called 'tpu'. Allowed: cpu, cuda,
latency.measure_latency({"a": linear}, {"input": x}, iterations=(0,)) | measure_latency: iterations has 0. Allowed: 1 or more.
latency.measure_latency({"a": 3}, {"input": x}) | measure_latency: models['a']: expected a torch.nn.Module or a
search.search(space, lambda p, t: {"y": 1.0}) | search: trials is not given: how many points to evaluate.
search.search(None, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, storage=db()) | search: expected a SearchPlan, or a space and a function to evaluate.
search.search(space, None, {"y": "maximize"}, trials=1, storage=db()) | search: expected a SearchPlan, or a space and a function to
search.search(space, 3, {"y": "maximize"}, trials=1, storage=db()) | search: evaluate: expected a function or text, got 3
search.search(space, "nowhere", {"y": "maximize"}, trials=1, storage=db()) | search: evaluate is 'nowhere'. Allowed: 'module:function' of a
search.search(space, lambda p, t: {"y": 1.0}, {"y": "most"}, trials=1, storage=db()) | search: objective 'y' is to 'most'. Known: maximize, minimize.
search.search(space, lambda p, t: {"y": 1.0}, 3, trials=1, storage=db()) | search: objectives: expected a mapping, got 3 (int).
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=0, storage=db()) | search: trials is 0. Allowed: 1 or more.
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials="x", storage=db()) | search: trials: expected a whole number, got 'x' (str).
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, sampler="tpee", storage=db()) | Unknown sampler 'tpee'. Did you mean 'tpe'? Known: brute,
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, pruner="medain", storage=db()) | Unknown pruner 'medain'. Did you mean 'median'? Known:
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, engine="rey", storage=db()) | Unknown engine 'rey'. Did you mean 'ray'? Known: processes, ray.
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, workers=0, storage=db()) | search: workers is 0. Allowed: 1 or more.
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, storage="mysql://host/db") | storage: 'mysql://' is not known. Allowed: a path (SQLite, or a
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, storage=text) | storage '
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, initial=[{"b": 1}], storage=db()) | search.initial: unknown dimension 'b'. Known: a.
search.search(space, lambda p, t: {"y": 1.0}, {"y": "maximize"}, trials=1, timeout=-1, storage=db()) | search: timeout is -1 seconds. Allowed: above 0.
search.search(space, lambda p, t: {"z": 1.0}, {"y": "maximize"}, trials=1, storage=db()).best | study 'search': no trial has a result. The last one failed:
search.load_study("nowhere", "nowhere.db") | storage 'nowhere.db': it has no study 'nowhere'. Known: .
search.load_study("search", text) | storage '
search.load_study(None, db()) | load_study: name: expected text, got None (NoneType).
search.Choice(()) | Choice: there is nothing to choose from.
search.Choice(3) | Choice: values: expected a list, got 3 (int).
search.Choice((1, 1)) | Choice: two of [1, 1] are equal.
search.Integer(3, 1) | Integer: low is 3 and high is 1. Allowed: low <= high.
search.Integer("a", 3) | Integer.low: expected int, got 'a' (str).
search.Integer(1, 3, step=0) | Integer: step is 0. Allowed: at least 1, and 1 when log is set.
search.Integer(0, 3, log=True) | Integer: low is 0. Allowed with log: greater than 0.
search.Real(3.0, 1.0) | Real: low is 3.0 and high is 1.0. Allowed: low <= high.
search.Real(0.0, 1.0, log=True) | Real: low is 0.0. Allowed with log: greater than 0.
search.Real("a", 1.0) | Real.low: expected float, got 'a' (str).
search.Space(3) | Space: dimensions: expected a mapping, got 3 (int).
search.Space({"a": 3}) | space: dimension 'a' is 3. Allowed: Choice, Integer, Real.
search.Space.from_config({"precison": {}}, "here", graph()) | here: unknown kind of space 'precison'. Did you mean
search.Space.from_config(3, "here", graph()) | here: expected a mapping, got 3 (int).
search.PrecisionSpace(graph(), ["intger"]) | precision.formats: Unknown format 'intger'. Did you mean
search.PrecisionSpace(graph(), []) | precision.formats: no format is given. Known: binary,
search.PrecisionSpace(graph(), ["integer"], by="shape") | precision.by: expected name, type or pattern, got 'shape'.
search.PrecisionSpace(graph(), ["integer"], ops=["liner"]) | precision.ops: unknown op 'liner'. Did you mean 'linear'?
search.PrecisionSpace(graph(), ["integer"], targets=["nowhere"]) | precision.targets: 'nowhere' matches no module. Nearest: 2, 0.
search.PrecisionSpace(None, ["integer"]) | precision: needs the model to be searched, got NoneType.
search.PruneSpace({"sparsty": [0.5]}) | prune: unknown key 'sparsty'. Did you mean 'sparsity'? Known:
search.PruneSpace({"sparsity": [2.0]}) | prune: sparsity must be at least 0 and below 1, got 2.0.
search.PruneSpace({}) | prune: key 'sparsity' is missing.
search.TrainingSpace({"learning_rat": [0.1]}) | training: unknown setting 'learning_rat'. Did you mean
search.TrainingSpace(3) | training: expected a mapping, got 3 (int).
search.PrecisionEvaluator(subject, search.PrecisionSpace(graph(), ["integer"]), costs=("average_bit",)) | PrecisionEvaluator.costs: unknown cost 'average_bit'. Did you
search.PrecisionEvaluator(None, search.PrecisionSpace(graph(), ["integer"])) | PrecisionEvaluator.subject: expected a Subject or a function,
search.ArchitectureSpace(3, {"num_hidden_layers": [1, 2]}) | architecture: a model is built from a Hugging Face model, a
search.ArchitectureSpace(bert.config, {"num_hiden_layers": [1, 2]}) | architecture: BertConfig has no field 'num_hiden_layers'. Did
search.COSTS["averag_bits"] | Unknown cost 'averag_bits'. Did you mean 'average_bits'? Known:
report.write_report(folder / "r.html", None) | write_report: report: expected a Report, got None (NoneType).
report.write_report(None, report.Report("t")) | write_report: path: expected a path of a file to write, where no folder is, got None
report.write_report(folder / "r.html", report.Report("t", graphs={"a": 3})) | Report.graphs['a'] must be a MaseGraph, got int.
report.write_report(folder / "r.html", report.Report("t", graphs={"a": graph()}, studies=[3])) | Report.studies: expected a mapping, got 3 (int).
report.write_report(folder / "r.html", report.Report("t", graphs={"a": graph()}, sweeps=[[{"a": 1}]])) | Report.sweeps[0]: key 'sweep' is missing.
report.Report() | Report.__init__() missing 1 required positional argument:
report.draw_sweep("sparsty", [], folder / "s") | Unknown sweep 'sparsty'. Did you mean 'sparsity'? Known:
report.draw_sweep("sparsity", [], folder / "s") | draw_sweep 'sparsity': none of 0 records is of this sweep.
report.draw_sweep("sparsity", [{"a": 1}], folder / "s") | draw_sweep 'sparsity'[0]: key 'sweep' is missing.
report.draw_curves(folder / "c", [], report.Axes("t", "x", "y")) | draw_curves: there is nothing to draw in '
pipelines.CompressionPipeline()(None) | CompressionPipeline: expected a MaseGraph, got NoneType. Wrap
pipelines.CompressionPipeline()(graph(), {"quantise_transform_pass": {}}) | CompressionPipeline: pass_args has 'quantise_transform_pass',
pipelines.CompressionPipeline()(graph(), {"quantize_transform_pass": {"by": "shape"}}) | quantize.by: 'shape' (str) is not allowed. Allowed: 'name',
pipelines.CompressionPipeline()(graph(), 3) | CompressionPipeline: pass_args: expected a mapping or None, got
pipelines.AutoPipeline(["nowhere_pass"]) | Unknown pass 'nowhere_pass'. Known:
pipelines.AutoPipeline(3) | AutoPipeline: steps: expected a list, got 3 (int).
pipelines.AutoPipeline([3]) | Step.run: expected a function, got 3 (int).
pipelines.Step("nowhere") | Step.run: expected a function, got 'nowhere' (str).
pipelines.Step(passes.prune_transform_pass, when="sometimes") | step 'prune_transform_pass': runs when 'sometimes'. Known:
kernels.pack(3) | pack: x must be a tensor, got int.
kernels.pack(x, "mxint9") | pack: no packed format 'mxint9'. Allowed: mxint8, mxint4,
kernels.pack(x, group_size=7) | pack: group_size 7 is not allowed. Allowed: 16, 32, 64, 128.
kernels.pack(x, group_size="x") | pack: group_size x is not allowed. Allowed: 16, 32, 64, 128.
kernels.pack(torch.ones(2, 4, dtype=torch.int64)) | pack: x must be a floating-point tensor, got torch.int64.
kernels.pack(torch.ones(())) | pack: x must have at least one dimension, got a scalar.
kernels.unpack(x) | unpack: expected a PackedTensor, got Tensor. Make one:
kernels.unpack(kernels.pack(torch.ones(2, 32)), "float32") | unpack: dtype must be a torch.dtype, got 'float32'.
kernels.packed_linear(x, x) | packed_linear: expected a PackedTensor, got Tensor. Make one:
kernels.packed_linear(x, kernels.pack(torch.ones(2, 32))) | packed_linear: x must be floating-point of shape (…, 32), got
kernels.packed_linear(torch.ones(2, 32), kernels.pack(torch.ones(2, 32)), bias=torch.ones(3)) | packed_linear: bias must be floating-point of shape (2,), got
kernels.packed_embedding(torch.ones(2), kernels.pack(torch.ones(2, 32))) | packed_embedding: indices must be int32 or int64, got
kernels.PackedTensor(x, x, "mxint9", 32, 4) | PackedTensor: no packed format 'mxint9'. Allowed: mxint8,
distributed.Mesh((0, 2)) | mesh shape [0, 2]: expected one to three axes of at least 1
distributed.Mesh(2) | Mesh.shape: expected a list, got 2 (int).
distributed.Mesh(("a", 2)) | Mesh.shape[0]: expected int, got 'a' (str).
distributed.Mesh((1, 2), bandwidth=(-1.0,)) | mesh bandwidth [-1.0]: out of range.
distributed.Mesh((1, 2), memory=0) | mesh memory must be above 0 bytes, got 0.
distributed.make_plan(None, distributed.Mesh()) | make_plan: graph: expected a MaseGraph, got None (NoneType).
distributed.make_plan(raw(), distributed.Mesh()) | node 'input_1': no MASE metadata. Run
distributed.make_plan(graph(), (1, 2)) | make_plan: mesh: expected a Mesh, got (1, 2) (tuple).
distributed.make_plan(graph(), distributed.Mesh((1, 2), memory=10)) | mesh memory 10 bytes: every one of the 2 devices needs at least
distributed.fixed_plan(graph(), distributed.Mesh(), 3) | fixed_plan: pick: expected a function, got 3 (int).
distributed.plan_table(None) | plan_table: plan: expected a Plan, got None (NoneType).
actions.shard(graph(), None) | shard: args: expected a ShardArgs, got None (NoneType).
actions.shard(graph(), {"mesh_shape": (1, 2)}) | shard: args: expected a ShardArgs, got {'mesh_shape': (1, 2)}
actions.ShardArgs(mesh_shape=(0,)) | mesh shape [0]: expected one to three axes of at least 1 device.
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
        "adapted": lambda: copy.deepcopy(_adapted()),
        "digits": _digits(),
        "passes": passes,
        "actions": actions,
        "dataset": dataset,
        "distributed": distributed,
        "export": export,
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
    return chop.MaseGraph(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), dummy_in=torch.ones(2, 4)
    )


@functools.cache
def _graph() -> chop.MaseGraph:
    graph, _ = passes.init_metadata_analysis_pass(copy.deepcopy(_raw()))
    graph, _ = passes.add_common_metadata_analysis_pass(graph)
    return passes.add_software_metadata_analysis_pass(graph)[0]


@functools.cache
def _quantized() -> chop.MaseGraph:
    rules = {"by": "type", "linear": {"config": INTEGER}, "relu": {"config": INTEGER}}
    return passes.quantize_transform_pass(copy.deepcopy(_graph()), rules)[0]


@functools.cache
def _adapted() -> chop.MaseGraph:
    return passes.insert_lora_adapter_transform_pass(copy.deepcopy(_graph()), {"rank": 2})[0]


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
    r"^([\w.]+)\(\) (missing \d+ required|got an unexpected keyword|got multiple values|takes )"
)
"""Python's own words for an argument that is missing or unknown."""


def _is_pythons(error: TypeError, call: str) -> bool:
    """Whether Python says what is wrong with the call itself, and not with one inside it."""
    found = PYTHONS.match(str(error))
    name = found[1].removesuffix(".__init__").split(".")[0] if found else ""
    return bool(name) and name.lower() in call.lower()


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
        return _is_pythons(error, call), f"TypeError: {error}"
    except Exception as error:  # the very thing that is looked for
        return False, f"{type(error).__name__}: {error}"
    return False, f"accepted: {found!r:.100}"


def outcomes(folder: Path) -> Iterator[tuple[str, str, bool, str]]:
    """Every call with its words, whether it ended clearly, and what it said."""
    known = names(folder)
    for call, words in lines():
        is_clear, told = outcome(call, known)
        yield call, words, is_clear and words in told, told
