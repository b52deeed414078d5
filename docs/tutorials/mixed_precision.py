"""Mixed precision: a search chooses a number format for each layer.

python docs/tutorials/mixed_precision.py [--model MODELS/bert-tiny --data DATA/imdb]
"""

from __future__ import annotations

import copy
from collections import Counter

import torch
from lesson import Setting, Task, fine_tuned, start, table, text_task
from matplotlib.figure import Figure
from nas import best_so_far, subject

import chop.passes as passes
from chop import MaseGraph
from chop.nn.quantized.modules.linear import LinearInteger
from chop.report import Axes, draw_curves
from chop.search import SearchResult, search
from chop.search.evaluate import PrecisionEvaluator
from chop.search.precision import DEFAULT_SETTINGS, PrecisionSpace
from chop.tools.utils import deepsetattr

COMPARED = ("integer", "minifloat_ieee", "log", "mxint", "ternary")
FEW_BITS = {
    "mxint": {"width": [2, 3, 4, 6]},
    "block_fp": {"width": [3, 4]},
    "scale_integer": {"width": [3, 4]},
}


def by_hand(mg: MaseGraph, path: str, config: dict) -> None:
    """Put one quantised layer in the place of a float one."""
    old = mg.model.get_submodule(path)
    new = LinearInteger(old.in_features, old.out_features, bias=True, config=config)
    new.weight.data, new.bias.data = old.weight.data, old.bias.data
    deepsetattr(mg.model, path, new)


def evaluator(mg: MaseGraph, task: Task, formats: dict, **options) -> PrecisionEvaluator:
    space = PrecisionSpace(mg, formats, **options)
    return PrecisionEvaluator(subject(task, mg), space, costs=("average_linear_bits",))


def run(chosen: PrecisionEvaluator, setting: Setting, name: str, trials: int, **options):
    return search(
        chosen.space,
        chosen,
        options.pop("objectives", {"accuracy": "maximize"}),
        trials=trials,
        name=name,
        storage=setting.out / "studies.db",
        **options,
    )


def widths(mg: MaseGraph, task: Task, setting: Setting) -> dict[str, dict]:
    """A width and a fraction for each layer, or float: the configs of the best trial."""
    integers = {"integer": {"width": [8, 16, 32], "frac_width": [2, 4, 8]}}
    chosen = evaluator(mg, task, integers)
    result = run(chosen, setting, "widths", trials=30 if setting.is_full else 8)
    return chosen.space.layer_configs(result.best["params"])


def formats(mg: MaseGraph, task: Task, setting: Setting) -> dict[str, SearchResult]:
    """One search for each format: all layers in it, each with settings of its own."""
    trials = 30 if setting.is_full else 5
    names = DEFAULT_SETTINGS if setting.is_full else COMPARED
    return {
        name: run(
            evaluator(mg, task, {name: DEFAULT_SETTINGS[name]}, keep_float=False),
            setting,
            f"format-{name}",
            trials,
        )
        for name in names
        if name != "bypass"
    }


def front(mg: MaseGraph, task: Task, setting: Setting) -> SearchResult:
    """Accuracy against bits: no single best, but a front."""
    chosen = evaluator(mg, task, FEW_BITS)
    return run(
        chosen,
        setting,
        "front",
        100 if setting.is_full else 16,
        objectives={"accuracy": "maximize", "average_linear_bits": "minimize"},
        initial=[chosen.space.uniform("mxint", width=bits) for bits in (2, 3, 4, 6)],
    )


def draw_front(result: SearchResult, setting: Setting) -> None:
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axes = figure.subplots()
    complete = [trial["values"] for trial in result.trials if trial["state"] == "complete"]
    chosen = sorted(pair(trial["values"]) for trial in result.pareto_front())
    axes.scatter(*zip(*map(pair, complete), strict=True), color="lightgrey", label="trials")
    axes.plot(*zip(*chosen, strict=True), marker="o", label="Pareto front")
    axes.set(xlabel="bits of a weight, on average over linear layers", ylabel="accuracy")
    axes.set_title("What fewer bits cost")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(setting.out / "front.svg", metadata={"Date": None})


def pair(values: dict) -> tuple[float, float]:
    return values["average_linear_bits"], values["accuracy"]


def main(setting: Setting) -> None:
    """One layer by hand, then three searches."""
    task = text_task(setting)
    mg = fine_tuned(setting, task)
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
    config |= {"weight_width": 8, "weight_frac_width": 6, "bias_width": 8, "bias_frac_width": 6}
    hand = copy.deepcopy(mg)
    by_hand(hand, "classifier", config)
    passed, _ = passes.quantize_transform_pass(
        copy.deepcopy(mg), {"by": "name", "classifier": {"config": config}}
    )
    with torch.no_grad():
        inputs = next(iter(task.trainer(mg).get_eval_dataloader()))
        same = torch.equal(hand.model(**inputs).logits, passed.model(**inputs).logits)
    setting.show("hand", f"by hand and by the pass are the same: {same}")

    configs = widths(mg, task, setting)
    kinds = Counter(config["name"] or "float" for config in configs.values())
    rows = [[kind, kinds[kind]] for kind in ("float", "integer")]
    setting.show("widths", table(rows, ["format", "layers"]))

    compared = formats(mg, task, setting)
    rows = [
        [
            name,
            result.best["values"]["accuracy"],
            min(trial["values"]["accuracy"] for trial in result.trials),
        ]
        for name, result in compared.items()
    ]
    setting.show("formats", table(rows, ["format of every layer", "best trial", "worst trial"]))
    curves = [best_so_far(name, result) for name, result in compared.items()]
    axes = Axes("Formats differ in how hard they are to get wrong", "trials", "best accuracy")
    draw_curves(setting.out / "formats", curves, axes)

    result = front(mg, task, setting)
    draw_front(result, setting)
    chosen = sorted(pair(trial["values"]) for trial in result.pareto_front())
    setting.show("front", table(chosen, ["average bits", "accuracy"]))


if __name__ == "__main__":
    start(main, "mixed_precision", __doc__)
