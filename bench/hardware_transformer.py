"""Transformers in RTL: exactness, accuracy, cycles, area, and the time that all of it takes.

    python bench/hardware_transformer.py vit
    python bench/hardware_transformer.py layer --model out/ptq/bert --data DATA/imdb
    python bench/hardware_transformer.py external --model out/ptq/bert --data DATA/imdb
    python bench/hardware_transformer.py bert --model out/ptq/bert --data DATA/imdb
    python bench/hardware_transformer.py bert_captured --model MODELS/bert-tiny --data DATA/imdb
    python bench/hardware_transformer.py folding --model out/ptq/bert --data DATA/imdb
    python bench/hardware_transformer.py vit_shared
    python bench/hardware_transformer.py bert_shared --model out/ptq/bert --data DATA/imdb
    python bench/hardware_transformer.py accuracy --model out/ptq/bert --data DATA/imdb --length 128
    python bench/hardware_transformer.py cells --model out/ptq/bert --data DATA/imdb
    python bench/hardware_transformer.py mxint_mlp
    python bench/hardware_transformer.py mxint_vit

`vit`: a vision transformer of two layers on scikit-learn's 8 x 8 digits, trained in floating point,
then with the hardware's own arithmetic; all 360 test images through PyTorch, the integers of the
design and its RTL. `bert`: bert-tiny as `bench/ptq/fine_tune.py` writes it, from the ids of tokens
to the classes of reviews; `layer`: its first layer on the embeddings of reviews; `external`: the
same with its weights from outside; `bert_captured`: transformers' own graph of the model, as it is
loaded, with ids and attention mask; `accuracy`: in PyTorch, on the test set. `mxint_mlp`: 64-32-10
on the digits in MXINT8, beside the same in fixed point; `mxint_vit`: the vision transformer with
its linear layers and both products of attention in MXINT8, the rest in fixed point.
`cells`: area alone, of the vision transformer and of one layer of bert-tiny.
`vit_shared` and `bert_shared`: two encoder layers in one block, beside two blocks. `folding`:
parallelism of bert-tiny chosen for budgets.
"""

from __future__ import annotations

import argparse
import copy
import math
import resource
import tempfile
from pathlib import Path
from typing import Any

import torch
from measuring.checked import once
from measuring.loading import load
from measuring.record import save_section
from torch import Tensor, nn
from transformer_digits import (
    VIT_WIDTHS,
    accuracy,
    in_mxint,
    quantized_graph,
    train,
    trained_vit,
)
from transformer_models import Bert, DigitsVit
from transformer_reviews import (
    BERT_WIDTHS,
    captured_bert,
    review_accuracy,
    reviews,
    some_reviews,
    tiny_bert,
)

from chop import MaseGraph
from chop.hw.design.stream import divisors
from chop.hw.flow.explore import for_budget, for_target
from chop.hw.flow.synth import synthesize
from chop.hw.lower import DesignSpec, Lowered, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.emit import emit
from chop.hw.sim.simulate import Simulator, lint
from chop.hw.timing.cycles import NO_STALLS, Stalls, interval, simulate_control
from chop.ir.ops import node_module

# -- designs ---------------------------------------------------------------------------------------


def measure_design(
    graph: MaseGraph,
    lowered: Lowered,
    inputs: tuple[Tensor, ...],
    directory: Path,
    tensors: int = 8,
) -> dict[str, Any]:
    """All inputs through golden integers and RTL, and the cycles of both models."""
    design = lowered.design
    emitted = once("emit", lambda: emit(design, directory), lambda _: not lint(directory))
    built = once("build", lambda: Simulator(design, directory), bool)
    simulator = built.result
    codes = lowered.encode(*inputs)
    run = once(
        "simulate",
        lambda: simulator.run(codes, jobs=1),
        lambda verdict: verdict.require_exact(),  # raises if a value differs
    )
    verdict = run.result
    (outputs,) = lowered.decode(verdict.outputs)
    with torch.no_grad():
        software = graph.model(*inputs)
    software = software["logits"] if isinstance(software, dict) else software
    beats = design.output_streams()["data_out_0"].beats
    ends = verdict.timing.tensor_ends("data_out_0", beats)
    together = design.in_flight  # tensors that go together leave together
    behind = max(len(ends) // 2 // together, 1) * together
    return {
        "tensors": len(outputs),
        "values_compared": verdict.compared,
        "values_exact": verdict.compared - verdict.mismatches,
        "values_equal_to_pytorch": int((outputs.float() == software).sum()),
        "lint": "clean",  # else `once` raises
        "cycles": verdict.cycles,
        "bound": design.cycles(),
        "interval": interval(design),
        "interval_in_rtl": (ends[-1] - ends[-1 - behind]) / behind,
        "latency": ends[0] + 1,
        "multipliers": design.cost().multipliers,
        "memory_kbit": design.cost().memory_bits // 1024,
        "fifos": {f"{w.stage}.{w.port}": d for w, d in lowered.depths.items()},
        "as_predicted": [
            _as_predicted(simulator, lowered, {n: c[:tensors] for n, c in codes.items()}, stalls)
            for stalls in (NO_STALLS, Stalls(0.7, 0.6, 5))
        ],
        "emit_seconds": emitted.seconds,
        "build_seconds": built.seconds,
        "simulate_seconds": run.seconds,
        "simulated_cycles_per_second": round(verdict.cycles / run.seconds),
    }


def _as_predicted(simulator: Simulator, lowered: Lowered, few: Any, stalls: Stalls) -> Any:
    """Beats of the first tensors that leave in the cycle that the cycle model says."""
    verdict = simulator.run(few, stalls).require_exact()
    told = simulate_control(lowered.design, len(next(iter(few.values()))), stalls)
    found = [int(t) for t in verdict.timing.outputs["data_out_0"]]
    wanted = [int(t) for t in told.outputs["data_out_0"]]
    return {"stalls": stalls != NO_STALLS, "beats": len(wanted), "same": found == wanted}


def cells(directory: Path) -> dict[str, Any]:
    """Yosys' count for 7-series."""
    run = once("synthesise", lambda: synthesize(directory), lambda area: area.lut > 0)
    area = run.result
    return {
        "lut": area.lut,
        "ff": area.ff,
        "dsp": area.dsp,
        "lutram": area.lutram,
        "bram": area.bram,
        "seconds": run.seconds,
    }


def folding(graph: MaseGraph, cycles: int, most: int) -> DesignSpec:
    """Lanes of each product so that a token takes about `cycles`; at most `most` on each side."""
    by_node = {}
    for node in graph.fx_graph.nodes:
        if node.meta["mase"].common.mase_op != "linear":
            continue
        outputs, inputs = node_module(node).weight.shape
        wanted = max(-(-outputs * inputs // cycles), 1)
        pairs = [
            (i, o)
            for i in divisors(inputs)
            for o in divisors(outputs)
            if i * o >= wanted and max(i, o) <= most
        ]
        by_node[node.name] = min(pairs, key=lambda p: (p[0] * p[1], abs(p[0] - p[1]), p))
    return DesignSpec(4, by_node)


def measure_vit(args: argparse.Namespace, scratch: Path, lanes: int = 2) -> dict[str, Any]:
    """From training to cells."""
    graph, data, told = trained_vit(args.trained)
    lowering = once("lower", lambda: lower(graph, DesignSpec(lanes)), bool)
    lowered = lowering.result
    agreement = verify(graph, lowered, data.test_images)  # raises if a value differs
    found = measure_design(graph, lowered, (data.test_images,), scratch)
    return {
        "accuracy": told,
        "lower_seconds": lowering.seconds,
        "verified_values": agreement.values,
        **found,
        "xc7": cells(scratch),
    }


# -- MXINT -----------------------------------------------------------------------------------------


def equal_in_doubles(graph: MaseGraph, lowered: Lowered, inputs: Tensor) -> int:
    """Values of the design that are PyTorch's, whose sums a double holds."""
    (found,) = lowered.decode(lowered.design.golden(lowered.encode(inputs)))
    with torch.no_grad():
        return int((copy.deepcopy(graph.model).double()(inputs.double()) == found).sum())


def measure_mxint(graph: MaseGraph, data: Any, lanes: int, scratch: Path) -> dict[str, Any]:
    """The test images through PyTorch, integers and RTL, and cells."""
    lowered = lower(graph, DesignSpec(lanes))
    images = data.test_images
    agreement = verify(graph, lowered, images)
    found = measure_design(graph, lowered, (images,), scratch)
    kinds = [stage.component.kind for stage in lowered.design.stages]
    return {
        "accuracy": accuracy(graph.model, images, data.test_labels),
        "verified_values": agreement.values,
        "values_equal_to_pytorch_in_doubles": equal_in_doubles(graph, lowered, images),
        **found,
        "stages": {kind: kinds.count(kind) for kind in sorted(set(kinds)) if "mxint" in kind},
        "xc7": cells(scratch),
    }


def measure_mxint_mlp(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """64-32-10 on the digits, in MXINT8 and in fixed point of 8 bits, four lanes each."""
    torch.manual_seed(0)
    example = load("examples/digits_hardware.py")
    data = example.load()
    model = example.train(example.DigitsMlp(), data, epochs=20)
    graph = in_mxint(copy.deepcopy(model), data.train_images[:128], {})
    for node in graph.fx_graph.find_nodes(op="placeholder"):  # sixteenths from 0 to 1
        value = node.meta["mase"]["common"]["results"]["data_out_0"]
        value["type"], value["precision"] = "fixed", [6, 4]
    fixed = quantized_graph(model, (data.train_images[:128],), {"linear": {}})
    return {
        "float_accuracy": accuracy(model, data.test_images, data.test_labels),
        "mxint": measure_mxint(graph, data, 4, scratch / "mxint"),
        "fixed": measure_mxint(fixed, data, 4, scratch / "fixed"),
    }


def measure_mxint_vit(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """The vision transformer: linear layers and attention in MXINT8, norms and softmax fixed."""
    torch.manual_seed(0)
    data = load("examples/digits_hardware.py").load()
    model = DigitsVit()
    file = args.trained / "vit.pt"
    if file.exists():
        model.load_state_dict(torch.load(file)["float"])
    else:
        train(model, data, epochs=30, rate=4e-3)
    told = {"float": accuracy(model, data.test_images, data.test_labels)}
    graph = in_mxint(model, data.train_images[:128], VIT_WIDTHS)
    told["rounded"] = accuracy(graph.model, data.test_images, data.test_labels)
    train(graph.model, data, epochs=4, rate=5e-4)
    return {"before": told, **measure_mxint(graph, data, 2, scratch)}


# -- reviews ---------------------------------------------------------------------------------------


def measure_accuracy(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Of float and fixed point, on reviews evenly from the test set."""
    model, graph = tiny_bert(args)
    rows = reviews(args.data, "test", "even", args.reviews, args.length)
    found = {"float": review_accuracy(model, rows), "integers": review_accuracy(graph.model, rows)}
    return {"length": args.length, "reviews": args.reviews, **found}


def measure_layer(
    args: argparse.Namespace, scratch: Path, weights: str = "memory"
) -> dict[str, Any]:
    """The first encoder layer, on the embeddings of reviews."""
    model, _ = tiny_bert(args)
    ids, padding = some_reviews(args)
    with torch.no_grad():
        rows = model.norm(model.words(ids) + model.positions)
    graph = quantized_graph(model.layers[0], (rows, padding), BERT_WIDTHS)
    return _measured(graph, (rows, padding), scratch, weights)


def measure_external(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """The same with the weights of its linear layers from outside."""
    return measure_layer(args, scratch, "external")


def measure_bert(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """From the ids of reviews to their classes."""
    _, graph = tiny_bert(args)
    return _measured(graph, some_reviews(args), scratch)


def measure_bert_captured(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """From ids and attention mask of reviews to their classes, in the graph that was captured."""
    ids, padding = some_reviews(args)
    graph, inputs = captured_bert(args), (ids, (~padding).long())
    found = _measured(graph, inputs, scratch, lanes=folding(graph, cycles=4096, most=8))
    return {**found, "padding_tokens": int(padding.sum())}


def _measured(
    graph: MaseGraph,
    inputs: tuple[Tensor, ...],
    scratch: Path,
    weights: str = "memory",
    lanes: DesignSpec | None = None,
) -> dict[str, Any]:
    spec = lanes or folding(graph, cycles=512, most=32)
    lowering = once("lower", lambda: lower(graph, spec, weights=weights), bool)
    lowered = lowering.result
    few = tuple(x[:4] for x in inputs)
    agreement = verify(graph, lowered, few, is_generated=False)
    return {
        "length": inputs[0].shape[1],
        "padding_tokens": int(inputs[1].sum()),
        "weight_ports": {n: lowered.design.inputs[n].beat_width for n in lowered.design.sent},
        "lower_seconds": lowering.seconds,
        "verified_values": agreement.values,
        **measure_design(graph, lowered, inputs, scratch),
    }


# -- layers that share a block ---------------------------------------------------------------------


def measure_vit_shared(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Both layers of the vision transformer in one block, beside two blocks."""
    graph, data, told = trained_vit(args.trained, "layers_")
    images = (data.test_images,)
    return {"accuracy": told, **_compared(graph, DesignSpec(2), images, scratch)}


class BertLayers(nn.Module):
    """The encoder of bert-tiny."""

    def __init__(self, model: Bert) -> None:
        super().__init__()
        self.norm, self.layers = model.norm, model.layers

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, is_padding)
        return x


def measure_bert_shared(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Both layers of bert-tiny, on the embeddings of reviews, in one block, beside two blocks."""
    model, _ = tiny_bert(args)
    ids, padding = some_reviews(args)
    with torch.no_grad():
        rows = model.words(ids) + model.positions
    graph = quantized_graph(BertLayers(model), (rows, padding), BERT_WIDTHS, "layers_")
    lanes = folding(graph, cycles=512, most=32)
    found = _compared(graph, lanes, (rows, padding), scratch, has_cells=args.cells)
    return {"length": args.length, **found}


def _compared(
    graph: MaseGraph,
    lanes: DesignSpec,
    inputs: tuple[Tensor, ...],
    scratch: Path,
    has_cells: bool = True,
) -> dict[str, Any]:
    """Pace and cells of a design apart and shared, by one tensor and by as many as keep it busy;
    the values of the last, through RTL."""
    apart, one = lower(graph, lanes), lower(graph, lanes, share_layers=1)
    together = math.ceil(interval(one.design) / one.design.cycles())
    many = lower(graph, lanes, share_layers=together)
    verify(graph, many, tuple(x[:4] for x in inputs), is_generated=False)
    count = len(inputs[0]) // together * together
    some = tuple(x[:count] for x in inputs)
    found = measure_design(graph, many, some, scratch / "many", tensors=8 * together)
    designs = {"apart": apart, "one_tensor": one, "several_tensors": many}
    sizes = {name: _size(each, scratch / name, has_cells) for name, each in designs.items()}
    return {"together": together, **found, **sizes}


def _size(lowered: Lowered, directory: Path, has_cells: bool) -> dict[str, Any]:
    design = lowered.design
    emit(design, directory)
    return {
        "bound": design.cycles(),
        "interval": interval(design),
        "multipliers": design.cost().multipliers,
        "memory_kbit": design.cost().memory_bits // 1024,
        **({"xc7": cells(directory)} if has_cells else {}),
    }


def measure_folding(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Parallelism of bert-tiny chosen for budgets and for a pace, and the time that takes."""
    _, graph = tiny_bert(args, "layers_")
    asked = [(for_budget, multipliers) for multipliers in (1000, 400, 100, 60)]
    found = {}
    for choose, number in (*asked, (for_target, 16384)):
        run = once(
            choose.__name__,
            lambda choose=choose, number=number: choose(graph, number),
            lambda chosen, most=number, is_budget=choose is for_budget: (
                (chosen.multipliers if is_budget else chosen.cycles) <= most
            ),
        )
        chosen = run.result
        found[f"{choose.__name__}_{number}"] = {
            "cycles": chosen.cycles,
            "multipliers": chosen.multipliers,
            "share_layers": chosen.share_layers,
            "cpu_seconds": run.processor_seconds,
            "seconds": run.seconds,
        }
    return found


def measure_cells(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Cells of the vision transformer and of one encoder layer of bert-tiny, without simulation."""
    vit, _, _ = trained_vit(args.trained)
    emit(lower(vit, DesignSpec(2)).design, scratch / "vit")
    model, _ = tiny_bert(args)
    ids, padding = some_reviews(args)
    with torch.no_grad():
        rows = model.norm(model.words(ids) + model.positions)
    layer = quantized_graph(model.layers[0], (rows, padding), BERT_WIDTHS)
    emit(lower(layer, folding(layer, cycles=512, most=32)).design, scratch / "layer")
    return {name: cells(scratch / name) for name in ("vit", "layer")}


SECTIONS = {
    "cells": measure_cells,
    "folding": measure_folding,
    "vit_shared": measure_vit_shared,
    "bert_shared": measure_bert_shared,
    "vit": measure_vit,
    "accuracy": measure_accuracy,
    "layer": measure_layer,
    "external": measure_external,
    "bert": measure_bert,
    "bert_captured": measure_bert_captured,
    "mxint_mlp": measure_mxint_mlp,
    "mxint_vit": measure_mxint_vit,
}


def main() -> None:
    """Measure a section and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("section", choices=sorted(SECTIONS))
    parser.add_argument("--trained", type=Path, default=Path("out/transformer"))
    parser.add_argument("--model", type=Path, default=Path("out/ptq/bert"))
    parser.add_argument("--data", type=Path, default=Path("data/imdb"))
    parser.add_argument("--length", type=int, default=32, help="tokens of a review")
    parser.add_argument("--reviews", type=int, default=2000, help="for the accuracy")
    parser.add_argument("--simulated", type=int, default=32, help="reviews through the RTL")
    parser.add_argument("--cells", action="store_true", help="synthesise bert_shared: an hour")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = SECTIONS[args.section](args, Path(scratch))
    results["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(results)
    name = args.section if args.length == 32 else f"{args.section}_{args.length}"
    print(save_section("hardware_transformer", name, results))


if __name__ == "__main__":
    main()
