"""A grid of formats over one graph, scored on batches of the data module."""

import copy

import torch

from chop.dataset import MaseDataModule
from chop.ir.graph.mase_graph import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import (
    quantize_transform_pass,
    summarize_quantization_analysis_pass,  # noqa: F401
)
from chop.tools.get_input import InputGenerator
from chop.tools.logger import set_logging_verbosity

set_logging_verbosity("info")
model_name, dataset_name = "jsc-tiny", "jsc"
data_module = MaseDataModule(name=dataset_name, batch_size=8, model_name=model_name, num_workers=0)
data_module.prepare_data()
data_module.setup()
model_info = get_model_info(model_name)
model = get_model(
    model_name,
    task="cls",
    dataset_info=data_module.dataset_info,
    pretrained=False,
    checkpoint=None,
)
input_generator = InputGenerator(
    data_module=data_module, model_info=model_info, task="cls", which_dataloader="train"
)
dummy_in = next(iter(input_generator))
mg = MaseGraph(model=model)
operands = ("data_in", "weight", "bias")
widths = {f"{o}_{k}": v for o in operands for k, v in (("width", 8), ("frac_width", 4))}
pass_args = {
    "by": "type",
    "default": {"config": {"name": None}},
    "linear": {"config": {"name": "integer", **widths}},
}
search_spaces = []
for width, frac_width in ((16, 8), (8, 6), (4, 2)):
    pass_args["linear"]["config"]["data_in_width"] = width
    pass_args["linear"]["config"]["data_in_frac_width"] = frac_width
    search_spaces.append(copy.deepcopy(pass_args))
mg, _ = init_metadata_analysis_pass(mg, None)
mg, _ = add_common_metadata_analysis_pass(mg, {"dummy_in": dummy_in})
mg, _ = add_software_metadata_analysis_pass(mg, None)
recorded = []
for config in search_spaces:
    mg, _ = quantize_transform_pass(mg, config)
    scores = []
    for number, (xs, ys) in enumerate(data_module.train_dataloader()):
        preds = mg.model(xs)
        loss = torch.nn.functional.cross_entropy(preds, ys)
        scores.append(((preds.argmax(-1) == ys).float().mean(), loss))
        if number > 2:
            break
    recorded.append(sum(score for score, _ in scores) / len(scores))
assert len(recorded) == 3
