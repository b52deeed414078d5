"""QAT: round a trained model to fixed point of many widths, and train it again as it is rounded.

python docs/tutorials/qat.py [--model MODELS/bert-tiny --data DATA/imdb]
"""

from __future__ import annotations

import copy

from lesson import Setting, Task, fine_tuned, start, table, text_task

import chop.passes as passes
from chop import MaseGraph
from chop.actions.fixed_point import fitted_fixed_point, observe_ranges
from chop.report import Axes, draw_curves, make_curve


def fixed_point(width: int, frac_width: int) -> dict:
    config = {
        "name": "integer",
        "data_in_width": width,
        "data_in_frac_width": frac_width,
        "weight_width": width,
        "weight_frac_width": frac_width,
        "bias_width": width,
        "bias_frac_width": frac_width,
    }
    return {"by": "type", "default": {"config": {"name": None}}, "linear": {"config": config}}


def ptq_then_qat(mg: MaseGraph, task: Task, pass_args: dict) -> tuple[float, float]:
    quantised = copy.deepcopy(mg)
    quantised, _ = passes.quantize_transform_pass(quantised, pass_args=pass_args)
    trainer = task.trainer(quantised, epochs=1)
    ptq = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    return ptq, trainer.evaluate()["eval_accuracy"]


def sweep(mg: MaseGraph, task: Task, widths: tuple[int, ...]) -> list[dict]:
    """One record for each width: half of the bits behind the point, and as the ranges allow."""
    ranges = observe_ranges(copy.deepcopy(mg), few_batches(task, mg))
    records = []
    for width in widths:
        half = ptq_then_qat(mg, task, fixed_point(width, width // 2))
        fitted = ptq_then_qat(mg, task, fitted_fixed_point(ranges, width))
        names = ("PTQ, even split", "QAT, even split", "PTQ, fitted", "QAT, fitted")
        records.append({"width": width, **dict(zip(names, (*half, *fitted), strict=True))})
    return records


def few_batches(task: Task, mg: MaseGraph, count: int = 4) -> list:
    loader = task.trainer(mg).get_train_dataloader()
    return [batch for batch, _ in zip(loader, range(count), strict=False)]


def main(setting: Setting) -> None:
    """Sweep the widths, draw, and save the model of 8 bits."""
    task = text_task(setting)
    mg = fine_tuned(setting, task)
    baseline = task.accuracy(mg)
    widths = (4, 6, 8, 12, 16, 24, 32) if setting.is_full else (3, 4, 6, 8)
    records = sweep(mg, task, widths)
    setting.show("widths", table([r.values() for r in records], list(records[0])))
    curves = [make_curve(name, records, "width", name) for name in list(records[0])[1:]]
    axes = Axes(
        "Training recovers what rounding costs",
        "fixed-point width (bits)",
        "accuracy",
        levels={"float": baseline},
    )
    draw_curves(setting.out / "widths", curves, axes)

    quantised, _ = passes.quantize_transform_pass(mg, pass_args=fixed_point(8, 4))
    quantised.export(setting.out / "eight_bits")
    again = MaseGraph.from_checkpoint(setting.out / "eight_bits")
    assert task.accuracy(again) == task.accuracy(quantised)


if __name__ == "__main__":
    start(main, "qat", __doc__)
