"""Data module, model by name, input generator; statistics, their report, their file; quantise."""

from pathlib import Path

import torch

from chop.dataset import MaseDataModule, get_dataset_info
from chop.ir import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    load_node_meta_param_interface_pass,
    profile_statistics_analysis_pass,
    quantize_transform_pass,
    report_graph_analysis_pass,
    report_node_meta_param_analysis_pass,
    save_node_meta_param_interface_pass,
    summarize_quantization_analysis_pass,
    verify_common_metadata_analysis_pass,
)
from chop.passes.graph.utils import deepcopy_mase_graph
from chop.tools.checkpoint_load import load_model
from chop.tools.get_input import InputGenerator, get_cf_args, get_dummy_input
from chop.tools.logger import set_logging_verbosity

set_logging_verbosity("info")
model_name, dataset_name = "jsc-tiny", "jsc"
data_module = MaseDataModule(
    name=dataset_name,
    batch_size=8,
    model_name=model_name,
    num_workers=0,
    tokenizer=None,
    max_token_len=None,
)
data_module.prepare_data()
data_module.setup()
assert get_dataset_info(dataset_name).num_classes == data_module.dataset_info.num_classes == 5
model_info = get_model_info(model_name)
model = get_model(model_name, task="cls", dataset_info=data_module.dataset_info, pretrained=False)
lightning = {f"model.{name}": value for name, value in model.state_dict().items()}
torch.save({"state_dict": lightning, "epoch": 1}, "best.ckpt")
model = load_model(load_name="best.ckpt", load_type="pl", model=model)
input_generator = InputGenerator(
    data_module=data_module, model_info=model_info, task="cls", which_dataloader="val"
)
dummy_in = next(iter(input_generator))
_ = model(**dummy_in)
assert get_dummy_input(model_info, data_module, "cls", "cpu")["x"].shape == dummy_in["x"].shape
cf_args = get_cf_args(model_info=model_info, task="cls", model=model)
mg = MaseGraph(model=model, cf_args=cf_args)
mg, _ = init_metadata_analysis_pass(mg, None)
mg, _ = add_common_metadata_analysis_pass(mg, {"dummy_in": dummy_in})
mg, _ = add_software_metadata_analysis_pass(mg, None)
mg, _ = verify_common_metadata_analysis_pass(mg)
_ = report_graph_analysis_pass(mg)
pass_args = {
    "by": "type",
    "target_weight_nodes": ["linear"],
    "target_activation_nodes": ["relu"],
    "weight_statistics": {"variance_precise": {"device": "cpu", "dims": "all"}},
    "activation_statistics": {
        "range_quantile": {"device": "cpu", "dims": "all", "quantile": 0.97, "abs": False},
        "range_n_sigma": {"device": "cpu", "dims": "all", "abs": False, "num_sigmas": 3},
    },
    "input_generator": input_generator,
    "num_samples": 32,
}
mg, _ = profile_statistics_analysis_pass(mg, pass_args)
mg, _ = report_node_meta_param_analysis_pass(mg, {"which": ("software",)})
mg, _ = save_node_meta_param_interface_pass(mg, {"save_path": "stats_for_quantisation.toml"})
mg, _ = load_node_meta_param_interface_pass(mg, {"load_path": "stats_for_quantisation.toml"})
original = deepcopy_mase_graph(mg)
operands = ("data_in", "weight", "bias")
widths = {f"{o}_{k}": v for o in operands for k, v in (("width", 8), ("frac_width", 4))}
mg, _ = quantize_transform_pass(
    mg,
    {
        "by": "type",
        "report": True,
        "default": {"config": {"name": None}},
        "linear": {"config": {"name": "integer", **widths}},
    },
)
summarize_quantization_analysis_pass(original, mg, save_dir="quantize_summary")
assert any(Path("quantize_summary").iterdir())
