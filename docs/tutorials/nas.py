"""NAS: let a sampler choose an architecture, and let it know that the model will be compressed.

python docs/tutorials/nas.py [--model MODELS/bert-tiny --data DATA/imdb]
"""

from __future__ import annotations

import copy

import torch
from lesson import INPUTS, QUIET, Setting, Task, start, table, text_task

from chop import MaseGraph
from chop.actions import Subject
from chop.dataset import get_dataset
from chop.models import get_model
from chop.report import Axes, Curve, draw_curves
from chop.search import SearchResult, Space, search
from chop.search.apply import apply
from chop.search.architecture import ArchitectureSpace
from chop.search.compression import PruneSpace
from chop.search.evaluate import MODES, ArchitectureEvaluator, CompressionEvaluator
from chop.search.precision import PrecisionSpace
from chop.search.training import TrainingSpace

SAMPLERS = ("grid", "random", "tpe")


def perceptron(width: int = 32, depth: int = 1) -> torch.nn.Module:
    """What is searched in the small setting: hidden layers of one width."""
    return get_model("mlp", hidden=(width,) * depth)


def digits_task() -> Task:
    batches = {"per_device_train_batch_size": 64, "per_device_eval_batch_size": 512}
    training = {"learning_rate": 1e-2, **batches, **QUIET}
    return Task(perceptron(), get_dataset("digits"), None, training, epochs=2)


def architectures(task: Task, setting: Setting) -> Space:
    if setting.is_full:
        fields = {
            "num_hidden_layers": [2, 4, 8],
            "num_attention_heads": [2, 4, 8, 16],
            "hidden_size": [128, 192, 256, 384, 512],
            "intermediate_size": [512, 768, 1024, 1536, 2048],
        }
        layers = {"attention.output.dense": ["linear", "identity"]}
        return ArchitectureSpace(task.model, fields, layers=layers)
    fields = {"width": [4, 8, 16, 32, 64], "depth": [1, 2, 3]}
    return ArchitectureSpace(perceptron, fields) * TrainingSpace({"learning_rate": [1e-3, 1e-2]})


def subject(task: Task, mg: MaseGraph) -> Subject:
    """How a trial is trained and measured."""

    def train(changed: MaseGraph, seed: int, learning_rate: float | None = None) -> None:
        chosen = {} if learning_rate is None else {"learning_rate": learning_rate}
        task.trainer(changed, seed=seed, **chosen).train()

    return Subject(lambda seed: copy.deepcopy(mg), train, task.accuracy, lambda: ())


def compare_samplers(evaluator: ArchitectureEvaluator, setting: Setting) -> dict:
    return {
        sampler: search(
            evaluator.space,
            evaluator,
            {"accuracy": "maximize"},
            trials=100 if setting.is_full else 5,
            name=f"architectures-{sampler}",
            sampler=sampler,
            storage=setting.out / "studies.db",
        )
        for sampler in SAMPLERS
    }


def few_architectures(task: Task, setting: Setting) -> Space:
    """In the small setting so few that a grid visits all, whatever is done to them."""
    if setting.is_full:
        return architectures(task, setting)
    return ArchitectureSpace(perceptron, {"width": [8, 32], "depth": [1, 2]})


def compressed_space(mg: MaseGraph, space: Space) -> Space:
    """The same architectures, each to be put into 8 bits and half pruned."""
    eight = {"integer": {"width": 8, "frac_width": 5}}
    formats = PrecisionSpace(mg, eight, by="type", keep_float=False, joint=True)
    return space * formats * PruneSpace({"sparsity": [0.5], "method": "l1-norm"})


def compare_modes(task: Task, mg: MaseGraph, space: Space, setting: Setting) -> dict:
    compressed, found = compressed_space(mg, space), {}
    for mode in MODES:
        chosen = space if mode == "no compression" else compressed
        evaluator = CompressionEvaluator(subject(task, mg), chosen, mode=mode)
        found[mode] = search(
            chosen,
            evaluator,
            {"accuracy": "maximize"},
            trials=100 if setting.is_full else 4,
            name=f"compressed-{mode}",
            sampler="tpe" if setting.is_full else "grid",
            storage=setting.out / "studies.db",
        )
    return found


def best_so_far(label: str, result: SearchResult) -> Curve:
    best, line = 0.0, []
    for trial in result.trials:
        best = max(best, trial["values"].get("accuracy", 0.0))
        line.append(best)
    return Curve(label, tuple(range(1, len(line) + 1)), *(tuple(line),) * 3)


def report(found: dict, name: str, title: str, setting: Setting) -> None:
    """Table and figure of several studies."""
    rows = [[label, result.best["values"]["accuracy"]] for label, result in found.items()]
    setting.show(name, table(rows, [name, "best accuracy"]))
    curves = [best_so_far(label, result) for label, result in found.items()]
    axes = Axes(title, "trials", "best accuracy so far", is_stepped=True)
    draw_curves(setting.out / name, curves, axes)


def main(setting: Setting) -> None:
    """Search architectures by three samplers, then with compression in every trial."""
    task = text_task(setting) if setting.is_full else digits_task()
    given = {"hf_input_names": INPUTS} if setting.is_full else {"dummy_in": torch.zeros(2, 1, 8, 8)}
    mg = MaseGraph(task.model, **given)
    space = architectures(task, setting)
    evaluator = ArchitectureEvaluator(subject(task, mg), space, costs=("parameters",))
    found = compare_samplers(evaluator, setting)
    report(found, "samplers", "Samplers on the same space", setting)

    best = apply(found["tpe"].record, "best", evaluator, directory=setting.out / "best")
    again = MaseGraph.from_checkpoint(setting.out / "best" / "model")
    assert task.accuracy(again) == task.accuracy(best)

    modes = compare_modes(task, mg, few_architectures(task, setting), setting)
    report(modes, "modes", "Compressed in every trial", setting)


if __name__ == "__main__":
    start(main, "nas", __doc__)
