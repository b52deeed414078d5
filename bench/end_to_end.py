"""BERT-tiny and BERT-base from float to quantised, fused, packed and compiled: one table.

    python bench/end_to_end.py                                       # BERT-base on the CPU
    python bench/end_to_end.py --device cuda --data DATA/imdb --model MODELS/bert-tiny

Each row adds one step to the row above; the last compiles the float model, to compare with. On a
GPU compiled programs run as CUDA graphs (mode reduce-overhead). Linear layers take MXINT8 weights
and activations; BERT-base has random weights, BERT-tiny is fine-tuned here on the IMDb reviews (or
read from --weights) and its accuracy is measured on the test reviews. Latencies are medians of
programs that take turns, launches included, of one batch of 8 × 128 tokens, in float32 on the CPU
and bfloat16 on a GPU; accuracy is that of the same programs. Results go to
bench/results/end_to_end_<device>.json.
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/graph.py must not stand for the package `graph`

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from measuring.checked import Timed, compare, is_sound, once
from measuring.record import save
from safetensors.torch import load_file, save_file

import chop.passes as passes
from chop import MaseGraph
from chop.dataset import load_token_arrays

sys.path.append(str(Path(__file__).parent / "imdb"))
from batches import Reviews, evenly
from loop import Recipe, evaluate, train

INPUTS = ("input_ids", "attention_mask")
SHAPE = (8, 128)
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
MXINT8 = {"by": "type", "linear": {"config": {"name": "mxint"}}}
FLOAT_CHANGE, MXINT8_CHANGE = 0.02, 0.1
"""Change of the logits over 12 layers: by bfloat16, and by 8-bit weights and activations."""
RECIPE = Recipe(learning_rate=3e-4)
Step = Callable[[MaseGraph], Any]
STEPS: dict[str, Step] = {
    "quantised": lambda graph: passes.quantize_transform_pass(graph, MXINT8),
    "fused": passes.fuse_attention_transform_pass,
    "packed": passes.pack_weights_transform_pass,
}
MODES = {"cpu": "default", "cuda": "reduce-overhead"}


def chain(base: MaseGraph, device: str) -> dict[str, torch.nn.Module]:
    """The model after each step, on the device; then the packed and the float one compiled."""
    graph = copy.deepcopy(base)
    graphs = {"float": base}
    for name, step in STEPS.items():
        step(graph)
        graphs[name] = copy.deepcopy(graph)
    for name, from_ in (("compiled", "packed"), ("float, compiled", "float")):
        graphs[name] = copy.deepcopy(graphs[from_])
    for name, each in graphs.items():
        each.model.eval().to(device)
        if name.endswith("compiled"):
            passes.compile_transform_pass(each, {"mode": MODES[device], "report_breaks": False})
    return {name: each.model for name, each in graphs.items()}


def size_of(model: torch.nn.Module) -> int:
    """Bytes of parameters and buffers; shared ones count once."""
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return sum(t.nbytes for t in tensors.values())


def resident_on_gpu(model: torch.nn.Module) -> int:
    """Bytes that the model's tensors take on the GPU, measured by moving them away and back."""
    model.cpu()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model.cuda()
    return torch.cuda.memory_allocated() - before


def most_change(step: str) -> float:
    """Return the change of the logits that a step may make, against the float model in float64."""
    return FLOAT_CHANGE if step.startswith("float") else MXINT8_CHANGE


@torch.no_grad()
def measure(
    label: str, base: MaseGraph, device: str, vocabulary: int, test: Reviews | None
) -> list[dict[str, Any]]:
    """One record per step."""
    shown = {
        "input_ids": torch.randint(0, vocabulary, SHAPE, device=device),
        "attention_mask": torch.ones(SHAPE, dtype=torch.long, device=device),
    }
    models = chain(base, device)
    exact = copy.deepcopy(models["float"]).double()(**shown).logits
    programs = {
        name: Timed(
            lambda m=m: m(**shown), exact, most_change(name), lambda m=m: m(**shown).logits.clone()
        )
        for name, m in models.items()
    }
    first = {
        name: once(name, program.computes, is_sound).seconds for name, program in programs.items()
    }
    times = compare(programs, rounds=25 if device == "cuda" else 7)
    records = []
    for name, model in models.items():
        record = {
            "model": label,
            "step": name,
            "latency_ms": times[name].median * 1e3,
            "speedup": times["float"].median / times[name].median,
            "first_call_s": first[name],
            "mib": size_of(model) / 2**20,
            "change_of_output": times[name].error,
        }
        if device == "cuda" and not name.endswith("compiled"):
            record["gpu_mib"] = resident_on_gpu(model) / 2**20
        if test is not None:
            record["accuracy"] = evaluate(_Classifier(model), test)
        records.append(record)
        print(
            {k: round(v, 4) if isinstance(v, float) else v for k, v in record.items()}, flush=True
        )
    return records


class _Classifier(torch.nn.Module):
    """The model without labels, as `evaluate` calls it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, labels: torch.Tensor, **inputs: torch.Tensor) -> Any:
        return self.inner(**inputs)


def captured(model: torch.nn.Module, device: str) -> MaseGraph:
    """The model as a graph, in the precision it runs in: a graph keeps the casts it has seen."""
    return MaseGraph(model.cpu().eval().to(DTYPES[device]), INPUTS)


def bert_base(device: str) -> MaseGraph:
    """BERT-base with random weights, attention written out."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_labels=2, attn_implementation="eager")
    return captured(transformers.BertForSequenceClassification(config), device)


def bert_tiny(options: argparse.Namespace) -> tuple[MaseGraph, Reviews]:
    """BERT-tiny, fine-tuned, and the reviews to test it on."""
    splits = load_token_arrays(options.data / "tokens", 512)
    chosen = {name: evenly(splits[name], options.limit) for name in ("train", "test")}
    reviews = {name: Reviews.on(each, options.device) for name, each in chosen.items()}
    kind = transformers.AutoModelForSequenceClassification
    torch.manual_seed(0)
    model = kind.from_pretrained(options.model, num_labels=2, attn_implementation="eager")
    if options.weights is not None and options.weights.exists():
        model.load_state_dict(load_file(options.weights))
    else:
        train(model.to(options.device), reviews["train"], RECIPE, 0, use_graphs=False)
        model.zero_grad(set_to_none=True)  # gradients are no part of what a model takes
        if options.weights is not None:
            save_file(model.cpu().state_dict(), options.weights)
    return captured(model, options.device.type), reviews["test"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--data", type=Path, help="folder with tokens/*.npz")
    parser.add_argument("--model", type=Path, help="folder of the pretrained BERT-tiny")
    parser.add_argument("--limit", type=int, help="use so many reviews of each split")
    parser.add_argument("--weights", type=Path, help="read the fine-tuned weights, or keep them")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    options.device = torch.device(options.device)
    torch.set_num_threads(options.threads)
    device = options.device.type
    records = measure("BERT-base", bert_base(device), device, 20000, None)
    save(f"end_to_end_{device}", records)
    if options.data and options.model:
        graph, test = bert_tiny(options)
        records += measure("BERT-tiny", graph, device, 4000, test)
        save(f"end_to_end_{device}", records)


if __name__ == "__main__":
    main()
