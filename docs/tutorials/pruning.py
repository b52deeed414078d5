"""Pruning: zero the weights that matter least, or remove whole heads and channels.

python docs/tutorials/pruning.py [--model MODELS/bert-tiny --data DATA/imdb]
"""

from __future__ import annotations

import copy

from lesson import Setting, Task, fine_tuned, start, table, text_task

import chop.passes as passes
from chop import MaseGraph
from chop.report import Axes, draw_curves, make_curve


def prune(mg: MaseGraph, sparsity: float, method: str) -> MaseGraph:
    mg, info = passes.prune_transform_pass(
        copy.deepcopy(mg),
        pass_args={
            "weight": {"sparsity": sparsity, "method": method, "scope": "local"},
            "activation": {"sparsity": 0.0, "method": method, "scope": "local"},
        },
    )
    assert abs(info["sparsity"] - sparsity) < 0.01  # counted in the weights, not repeated
    return mg


def before_and_after(mg: MaseGraph, task: Task) -> tuple[float, float]:
    trainer = task.trainer(mg, epochs=1)
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    return before, trainer.evaluate()["eval_accuracy"]


def sweep(mg: MaseGraph, task: Task, sparsities: tuple[float, ...]) -> list[dict]:
    records = []
    for sparsity in sparsities:
        record = {"sparsity": sparsity}
        for method in ("random", "l1-norm"):
            measured = before_and_after(prune(mg, sparsity, method), task)
            record[method], record[f"{method}, fine-tuned"] = measured
        records.append(record)
    return records


STRUCTURES = {
    "2:4": [{"granularity": "2:4"}],
    "half of the heads": [{"granularity": "head", "sparsity": 0.5}],
    "half of the hidden channels": [
        {"granularity": "channel", "sparsity": 0.5, "target_modules": ["intermediate.dense"]}
    ],
}


def structured(mg: MaseGraph, task: Task, steps: list[dict]) -> list[object]:
    pruned = copy.deepcopy(mg)
    for weight in steps:
        pruned, _ = passes.prune_transform_pass(pruned, pass_args={"weight": weight})
    encoder = pruned.model.bert.encoder
    parameters = sum(p.numel() for p in encoder.parameters())
    zeros = sum(int((p == 0).sum()) for p in encoder.parameters())
    return [parameters, zeros, *before_and_after(pruned, task)]


def main(setting: Setting) -> None:
    """Sweep sparsity by two methods, then prune by three structures."""
    task = text_task(setting)
    mg = fine_tuned(setting, task)
    baseline = task.accuracy(mg)
    every = tuple(i / 10 for i in range(1, 10))
    records = sweep(mg, task, every if setting.is_full else (0.3, 0.5, 0.7, 0.9))
    setting.show("sparsities", table([r.values() for r in records], list(records[0])))
    curves = [make_curve(name, records, "sparsity", name) for name in list(records[0])[1:]]
    axes = Axes(
        "Small weights matter least",
        "share of weights set to zero",
        "accuracy",
        levels={"unpruned": baseline},
    )
    draw_curves(setting.out / "sparsities", curves, axes)

    rows = [[name, *structured(mg, task, steps)] for name, steps in STRUCTURES.items()]
    headers = ["structure", "encoder parameters", "of them zero", "pruned", "fine-tuned"]
    setting.show("structures", table(rows, headers))


if __name__ == "__main__":
    start(main, "pruning", __doc__)
