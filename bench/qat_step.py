"""Time a training step through quantised layers, relative to the float step.

    python bench/qat_step.py [--rounds N] [--batch N] [--length N] [--formats NAME …] [--eager]

BERT-base with random weights, all 74 Linear layers quantised. A step is forward, backward and SGD.
Quantised and float steps alternate. On a GPU both models are compiled with CUDA graphs (mode
`reduce-overhead`), which takes about two minutes for each format; with --eager neither is compiled.
Rows of other formats, measured earlier on the same code, stay. Before anything is timed, the
gradients of the model that is timed are compared with those of the eager model by the definitions
of its formats, without native kernels. The time of the quantise pass is measured too.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

sys.path.append(sys.path.pop(0))  # this folder last: its graph.py is not the package

import torch
import transformers
from measuring.checked import Timed, compare, once
from measuring.code import is_current
from measuring.record import RESULTS, save
from tabulate import tabulate
from torch import nn

from chop import MaseGraph
from chop.nn.quantizers import quantizer
from chop.passes import quantize_transform_pass

LIMITS = {"step_ratio": 1.15, "quantize_seconds": 1.0}
LINEAR_LAYERS = 74
MOST_GRADIENT_ERROR = 0.05
"""Norm of the difference of all gradients, relative to their norm: compiled products use TF32 in
another order, which moves some values to the next step of a format (0.003 to 0.015 measured)."""
SETTINGS: dict[str, dict[str, Any]] = {
    "integer": {
        "width": 8,  # activations up to 8; weights up to 0.5, fine enough for their spread of 0.02
        "data_in_frac_width": 4,
        "weight_frac_width": 8,
        "bias_frac_width": 8,
    },
    "minifloat_ieee": {"width": 8, "exponent_width": 4},
    "block_fp": {"width": 8, "block_size": 32},
    "mxint": {"width": 8, "block_size": 32},
}
ROLES = ("data_in", "weight", "bias")
GPU_BATCH, GPU_LENGTH = 32, 128


def rules(name: str) -> dict[str, Any]:
    """The pass's arguments: every Linear layer in the format `name`."""
    config: dict[str, Any] = {"name": name}
    for key, value in SETTINGS[name].items():
        roles = ("",) if key.startswith(ROLES) else tuple(f"{role}_" for role in ROLES)
        config |= {f"{role}{key}": value for role in roles}
    return {"by": "type", "linear": {"config": config}}


def bert() -> nn.Module:
    """BERT-base for classification, without dropout so that both models see the same work."""
    torch.manual_seed(0)
    config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return transformers.BertForSequenceClassification(config).train()


def stepper(model: nn.Module, inputs: dict[str, torch.Tensor]) -> Callable[[], None]:
    """One training step, as a function."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        model(**inputs).loss.backward()
        optimizer.step()

    return step


def gradients(model: nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the gradient of every parameter."""
    torch.compiler.cudagraph_mark_step_begin()
    model.zero_grad(set_to_none=True)
    model(**inputs).loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def plain_gradients(model: nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the gradients of the eager model by the definitions of its formats, not by kernels."""
    with mock.patch.multiple(quantizer, can_run=_never, can_train=_never, can_mask=_never):
        return gradients(model, inputs)


def _never(*tensors: torch.Tensor) -> bool:
    return False


class Subject(NamedTuple):
    """A batch, the float model before training, and the one that is timed with every format."""

    inputs: dict[str, torch.Tensor]
    source: nn.Module
    model: nn.Module
    program: Timed


def subject(device: str, batch: int, length: int, *, compiles: bool) -> Subject:
    """Return the float model on a device, ready to be timed."""
    # Else the compiler may choose a faster, coarser product for one of the two models alone.
    torch.set_float32_matmul_precision("high" if device == "cuda" else "highest")
    model = bert().to(device)
    ids = torch.randint(0, 30000, (batch, length), device=device)
    inputs = {"input_ids": ids, "labels": torch.zeros(batch, dtype=torch.long, device=device)}
    source = copy.deepcopy(model)
    return Subject(inputs, source, model, program(model, inputs, compiles=compiles))


def program(model: nn.Module, inputs: dict[str, torch.Tensor], *, compiles: bool) -> Timed:
    """Return a training step of `model` that is checked by its gradients before it is timed."""
    reference = plain_gradients(model, inputs)
    if compiles:
        model.compile(mode="reduce-overhead")
    check = functools.partial(gradients, model, inputs)
    return Timed(stepper(model, inputs), reference, MOST_GRADIENT_ERROR, check)


def step_ratio(name: str, chosen: Subject, rounds: int, *, compiles: bool) -> dict[str, Any]:
    """Return the medians of both steps and their ratio, after a check of the gradients."""
    quantised, info = quantize_transform_pass(copy.deepcopy(chosen.source), rules(name))
    assert len(info["quantized"]) == LINEAR_LAYERS, f"quantised {len(info['quantized'])} layers"
    own = program(quantised, chosen.inputs, compiles=compiles)
    chosen.model.load_state_dict(chosen.source.state_dict())  # trained with the format before
    times = compare({"float": chosen.program, "quantised": own}, rounds=rounds)
    batch, length = chosen.inputs["input_ids"].shape
    return {
        "format": name,
        "device": chosen.inputs["input_ids"].device.type,
        "batch": batch,
        "length": length,
        "compiled": "reduce-overhead" if compiles else "no",
        "gradient_error": times["quantised"].error,
        "float_seconds": times["float"].median,
        "quantised_seconds": times["quantised"].median,
        "step_ratio": statistics.median(times["quantised"].ratios(times["float"])),
    }


def device_rows(device: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of all formats on a device."""
    batch, length = (GPU_BATCH, GPU_LENGTH) if device == "cuda" else (args.batch, args.length)
    compiles = device == "cuda" and not args.eager
    chosen = subject(device, batch, length, compiles=compiles)
    return [step_ratio(name, chosen, args.rounds, compiles=compiles) for name in args.formats]


def quantize_seconds() -> dict[str, float]:
    """Quantising 74 Linear layers: of a traced graph, and of the plain module; first calls."""
    model = bert()
    graph = MaseGraph(model, hf_input_names=["input_ids", "attention_mask"])
    arguments = rules("integer")
    return {
        name: once(
            f"quantise the {name}",
            lambda subject=subject: quantize_transform_pass(subject, arguments)[1]["quantized"],
            lambda layers: len(layers) == LINEAR_LAYERS,
        ).seconds
        for name, subject in (("graph", graph), ("module", model))
    }


def _devices() -> list[str]:
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def main() -> None:
    """Measure, print, and write bench/results/qat_step.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--devices", nargs="+", choices=("cpu", "cuda"), default=_devices())
    parser.add_argument("--formats", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--eager", action="store_true", help="do not compile on a GPU")
    args = parser.parse_args()
    times = quantize_seconds()
    rows = [row for device in args.devices for row in device_rows(device, args)]
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    print(f"quantise 74 layers: graph {times['graph']:.3f} s, module {times['module']:.3f} s")
    name = "qat_step_gpu" if "cuda" in args.devices else "qat_step"
    measured = {(row["format"], row["compiled"]) for row in rows}
    rows += [row for row in _earlier(name) if (row["format"], row["compiled"]) not in measured]
    print(save(name, {"limits": LIMITS, "quantize_seconds": times, "steps": rows}))


def _earlier(name: str) -> list[dict[str, Any]]:
    """Return the rows that were measured on today's code, from the result file."""
    file = RESULTS / f"{name}.json"
    record = json.loads(file.read_text()) if file.exists() else {}
    return record["results"]["steps"] if record and is_current(name, record) else []


if __name__ == "__main__":
    main()
