"""Quantise without training: round by effect, choose widths under a budget, see what hurts.

python docs/tutorials/post_training.py [--model MODELS/bert-tiny --data DATA/imdb]
"""

from __future__ import annotations

import copy

import torch
from lesson import Setting, Task, fine_tuned, start, table, text_task
from torch import Tensor

import chop.passes as passes
from chop import MaseGraph
from chop.actions.explain_figure import explain_figure
from chop.actions.post_training import quantize_with_data, rules_for_bits
from chop.report import Axes, draw_curves, make_curve


def weights_of(width: int) -> dict:
    """Rules that put the weights of linear layers alone into integers, with a scale per group."""
    config = {
        "name": "scale_integer",
        "weight_width": width,
        "weight_granularity": "group",
        "weight_group_size": 32,
        "data_in_width": "NA",
        "bias_width": "NA",
    }
    return {"linear": {"config": config}}


def outputs(mg: MaseGraph, batches: list) -> Tensor:
    with torch.no_grad():
        return torch.cat([mg.model.eval()(**batch)["logits"] for batch in batches])


def sqnr(mg: MaseGraph, quantised: MaseGraph, batches: list) -> float:
    """How many decibels the float model's outputs lie above what quantising changed in them."""
    right, found = outputs(mg, batches), outputs(quantised, batches)
    return float(10 * torch.log10(right.square().sum() / (right - found).square().sum()))


def methods(mg: MaseGraph, calibration: list, held: list, widths: tuple) -> list[dict]:
    records = []
    for width in widths:
        record = {"width": width}
        for method in ("nearest", "gptq"):
            quantised = copy.deepcopy(mg)
            quantize_with_data(quantised, weights_of(width), calibration, method)
            record[method] = sqnr(mg, quantised, held)
        records.append(record)
    return records


def budgets(mg: MaseGraph, calibration: list, held: list) -> list[tuple]:
    """At equal bits: one width for all layers, and the widths of the allocation."""
    rows = []
    for width in (3, 4):
        uniform, chosen = copy.deepcopy(mg), copy.deepcopy(mg)
        config = {"name": "mxint", "weight_width": width, "data_in_width": "NA", "bias_width": "NA"}
        one_width = {op: {"config": config} for op in ("linear", "embedding")}
        passes.quantize_transform_pass(uniform, one_width)
        rules, told = rules_for_bits(chosen, calibration, width + 0.25, "mxint")
        passes.quantize_transform_pass(chosen, rules)
        rows.append((told["bits"], sqnr(mg, uniform, held), sqnr(mg, chosen, held)))
    return rows


def with_a_coarse_layer(mg: MaseGraph) -> MaseGraph:
    """Every linear layer in 6 bits, and one by mistake in 2."""
    quantised = copy.deepcopy(mg)
    six = {"name": "mxint", "weight_width": 6, "data_in_width": 6, "bias_width": "NA"}
    key = "bert.encoder.layer.1.attention.self.key"
    coarse = {key: {"config": {**six, "weight_width": 2}}}
    rules = {"by": ["name", "type"], "linear": {"config": six}, **coarse}
    quantised, _ = passes.quantize_transform_pass(quantised, rules)
    return quantised


def batches_of(task: Task, mg: MaseGraph, count: int) -> tuple[list, list]:
    """Batches to calibrate on, and others to measure on."""
    loader = task.trainer(mg).get_train_dataloader()
    found = [batch for batch, _ in zip(loader, range(2 * count), strict=False)]
    return found[:count], found[count:]


def main(setting: Setting) -> None:
    """Compare methods, spend a budget, explain a loss."""
    task = text_task(setting)
    mg = fine_tuned(setting, task)
    calibration, held = batches_of(task, mg, 8)

    records = methods(mg, calibration, held, (2, 3, 4, 6, 8))
    setting.show("methods", table([r.values() for r in records], list(records[0])))
    curves = [make_curve(name, records, "width", name) for name in ("nearest", "gptq")]
    axes = Axes("Rounding by effect, without training", "bits of a weight", "output SQNR (dB)")
    draw_curves(setting.out / "methods", curves, axes)

    rows = budgets(mg, calibration, held)
    headers = ("bits", "one width for all (dB)", "allocated (dB)")
    setting.show("budgets", table(rows, headers))

    quantised = with_a_coarse_layer(mg)
    quantised, why = passes.explain_analysis_pass(quantised, {"data": held, "times": False})
    worst = why["layers"][0]
    told = {"loss alone": worst["loss"], "model without it": worst["without"], **worst["operands"]}
    rows = [(name, 1e3 * loss) for name, loss in told.items()]
    setting.show("explained", table(rows, (worst["layer"], "thousandths of a nat")))
    explain_figure(why["loss"], why["layers"], setting.out / "explained.svg")


if __name__ == "__main__":
    start(main, "post_training", __doc__)
