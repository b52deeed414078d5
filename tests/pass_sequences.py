"""Sequences of passes over a model, each step compared with what it should have done.

A step's result is compared with an oracle made from the graph before it: the same graph with the
weights that the step should give, run as plain PyTorch runs it. To try another step, add a row to
`STEPS`; steps whose order should not matter are in `COMMUTES`.
"""

from __future__ import annotations

import copy
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from traced_zoo import same, tensors

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ChopError
from chop.kernels import QEmbeddingPacked, QLinearPacked
from chop.kernels.layers import unpacked_weight
from chop.nn.modules.lora import LoRALinear, stored_weight
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import MXInt
from chop.passes.rewrite.lift_layers import lift_products

FORMAT = MXInt(width=8)
LAYER = {"config": {"name": "mxint", "data_in_width": 8, "weight_width": 8}}
QUANTIZE = {"by": "type", "linear": LAYER, "conv2d": LAYER}
Inputs = dict[str, Any]
Sequence = tuple[str, ...]


@dataclass
class State:
    """A graph with what is looked at after each step."""

    graph: MaseGraph
    inputs: Inputs
    outputs: list[Tensor] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    owners: dict[str, tuple[bool, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outputs = run(self.graph, self.inputs)
        view = self.view()  # kept for the loop: owners go by identity
        for path, layer in layers_of(view):
            self.weights[path] = weight_of(layer).clone()
            self.owners[path] = owner_of(layer)

    def lifted(self) -> MaseGraph:
        """A copy of the graph, products with parameters in it as linear layers."""
        graph = copy.deepcopy(self.graph)
        lift_products(graph)
        return graph

    def view(self) -> MaseGraph:
        """The graph to look at: a copy only where there is something to lift."""
        has_products = any(node.target is torch.addmm for node in self.graph.nodes)
        return self.lifted() if has_products else self.graph


def run(graph: MaseGraph, inputs: Inputs) -> list[Tensor]:
    """The tensors a graph gives, without gradients."""
    with torch.no_grad():
        return [t.clone() for t in tensors(graph.model(**inputs))]


def layers_of(graph: MaseGraph) -> Iterator[tuple[str, Any]]:
    """The layers with a weight that nodes call, by path; of an adapted one, the layer within."""
    targets = dict.fromkeys(str(n.target) for n in graph.nodes if n.op == "call_module")
    for path in targets:
        layer: Any = graph.model.get_submodule(path)
        layer = layer.base_layer if isinstance(layer, LoRALinear) else layer
        if is_packed(layer) or isinstance(layer._parameters.get("weight"), Tensor):
            yield path, layer


def is_packed(layer: Any) -> bool:
    return isinstance(layer, QLinearPacked | QEmbeddingPacked)


def weight_of(layer: Any) -> Tensor:
    """The values of a layer's weight, before its number format."""
    weight: Tensor = unpacked_weight(layer) if is_packed(layer) else layer.weight.detach()
    return weight


def owner_of(layer: Any) -> tuple[bool, int]:
    """What layers that share a weight have in common: whether it is packed, and its identity."""
    packed = is_packed(layer)
    return packed, id(layer.codes if packed else stored_weight(layer))


def adapters_of(graph: MaseGraph) -> dict[str, LoRALinear]:
    """The adapted layers that nodes call."""
    targets = {str(n.target) for n in graph.nodes if n.op == "call_module"}
    found = {path: graph.model.get_submodule(path) for path in sorted(targets)}
    return {path: m for path, m in found.items() if isinstance(m, LoRALinear)}


# -- comparing -------------------------------------------------------------------------------


def is_close(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Equal up to the rounding of sums that run in another order."""
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and torch.allclose(a.float(), b.float(), rtol=1e-4, atol=1e-4)
        for a, b in zip(ours, theirs, strict=True)
    )


def oracle(state: State, weights: dict[str, Tensor]) -> list[Tensor]:
    """The outputs of the graph before, with other weights in the layers it has."""
    graph = state.lifted()
    with torch.no_grad():
        for path, layer in layers_of(graph):
            if path in weights and not is_packed(layer):
                stored_weight(layer).copy_(weights[path])
    return run(graph, state.inputs)


def weights_differ(before: State, after: State, expected: Callable[[str], Tensor]) -> list[str]:
    """The layers whose weight is not the one expected, bit for bit."""
    return [
        f"weight of '{path}' is not the one expected"
        for path in before.weights
        if path in after.weights and not torch.equal(after.weights[path], expected(path))
    ]


def sharing_lost(before: State, after: State, allowed: set[str]) -> list[str]:
    """Weights that were shared and are not; `allowed` may have become their own."""
    faults: list[str] = []
    first: dict[tuple[bool, int], str] = {}
    for path, owner in before.owners.items():
        other = first.setdefault(owner, path)
        if not {path, other} <= after.owners.keys() or allowed & {path, other}:
            continue
        one, two = after.owners[path], after.owners[other]
        if one[0] == two[0] and one != two:
            faults.append(f"'{path}' and '{other}' do not share their weight any more")
    return faults


def gradients_fail(state: State) -> list[str]:
    """Whether a loss gives what trains no gradient, or one that is no number."""
    trains = [p for p in state.graph.model.parameters() if p.requires_grad]
    outputs = [t for t in tensors(state.graph.model(**state.inputs)) if t.requires_grad]
    if not trains:
        return []
    if not outputs:
        return ["no output has a gradient"]
    loss = sum(t.float().square().mean() for t in outputs)
    found = torch.autograd.grad(loss, trains, allow_unused=True)  # type: ignore[arg-type]
    given = [g for g in found if g is not None]
    if not all(g.isfinite().all() for g in given):
        return ["a gradient is no number"]
    return [] if any(g.any() for g in given) else ["no gradient flows"]


# -- steps -----------------------------------------------------------------------------------

Apply = Callable[[MaseGraph], tuple[MaseGraph, dict[str, Any]]]
Check = Callable[[State, State, dict[str, Any]], list[str]]


@dataclass(frozen=True)
class Step:
    """A change to a graph, and what is wrong with a result of it."""

    apply: Apply
    check: Check


def unchanged(before: State, after: State, info: dict[str, Any]) -> list[str]:
    faults = weights_differ(before, after, before.weights.__getitem__)
    return faults + ([] if same(after.outputs, before.outputs) else ["the output changed"])


def close(before: State, after: State, info: dict[str, Any]) -> list[str]:
    faults = weights_differ(before, after, before.weights.__getitem__)
    return faults + ([] if is_close(after.outputs, before.outputs) else ["the output changed"])


def _prune(graph: MaseGraph) -> tuple[MaseGraph, dict[str, Any]]:
    return passes.prune_transform_pass(graph, {"weight": {"sparsity": 0.5}})


def _check_prune(before: State, after: State, info: dict[str, Any]) -> list[str]:
    faults = []
    for path, new in after.weights.items():
        if not torch.equal(new, torch.where(new == 0, 0.0, before.weights[path])):
            faults.append(f"pruning changed weights of '{path}' that it kept")
    for path, share in info["layers"].items():
        if share < 0.49:
            faults.append(f"'{path}' is pruned by {share}")
    if not is_close(after.outputs, oracle(before, after.weights)):
        faults.append("the output is not that of the pruned weights")
    return faults


def _quantise(graph: MaseGraph) -> tuple[MaseGraph, dict[str, Any]]:
    return passes.quantize_transform_pass(graph, QUANTIZE)


def _check_quantise(before: State, after: State, info: dict[str, Any]) -> list[str]:
    faults = weights_differ(before, after, before.weights.__getitem__)
    quantised = {p: m for p, m in layers_of(after.graph) if isinstance(m, QuantizedModule)}
    graph = before.lifted()
    for path, layer in layers_of(graph):
        if path in quantised and not isinstance(layer, QuantizedModule):
            _quantise_by_hand(layer)
    for node in graph.nodes:
        if node.target is F.linear:
            node.target = _linear_by_hand
    graph.recompile()
    if not is_close(after.outputs, run(graph, before.inputs)):
        faults.append("the output is not that of quantised operands")
    return faults


def _quantise_by_hand(layer: Any) -> None:
    """Inputs and parameters through the format, the layer itself plain."""
    layer.register_forward_pre_hook(lambda module, args: (FORMAT.quantize(args[0]), *args[1:]))
    own = FORMAT.quantize(layer.weight.detach())
    layer._parameters["weight"] = nn.Parameter(own)  # a tied embedding keeps its values
    if layer.bias is not None:
        layer._parameters["bias"] = nn.Parameter(FORMAT.quantize(layer.bias.detach()))


def _linear_by_hand(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    own = None if bias is None else FORMAT.quantize(bias)
    return F.linear(FORMAT.quantize(x), FORMAT.quantize(weight), own)


def _adapt(graph: MaseGraph) -> tuple[MaseGraph, dict[str, Any]]:
    inputs = graph.dummy_in or {}
    old = {path: layer.delta() for path, layer in adapters_of(graph).items()}
    before = run(graph, inputs)
    _, info = passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    info["preserved"] = same(run(graph, inputs), before) and len(old) <= len(adapters_of(graph))
    for path, layer in adapters_of(graph).items():
        generator = torch.Generator().manual_seed(zlib.crc32(path.encode()))
        for part in (layer.lora_A.weight, layer.lora_B.weight):
            part.data.copy_(0.1 * torch.randn(part.shape, generator=generator))
    return graph, info


def _check_adapt(before: State, after: State, info: dict[str, Any]) -> list[str]:
    faults = weights_differ(before, after, before.weights.__getitem__)
    if not info["preserved"]:
        faults.append("inserting adapters changed the output")
    if not all(p.requires_grad for m in adapters_of(after.graph).values() for p in _own(m)):
        faults.append("an adapter does not train")
    return faults


def _own(layer: LoRALinear) -> list[nn.Parameter]:
    return [layer.lora_A.weight, layer.lora_B.weight]


def _check_fuse_lora(before: State, after: State, info: dict[str, Any]) -> list[str]:
    expected = dict(before.weights)
    for path, layer in adapters_of(before.graph).items():
        total = before.weights[path] + layer.delta()
        if is_packed(layer.base_layer):
            total = FORMAT.quantize(total)
        mask = layer.base_layer._buffers.get("weight_mask")
        expected[path] = total if mask is None else total.masked_fill(~mask, 0.0)
    faults = weights_differ(before, after, expected.__getitem__)
    if is_close(after.outputs, _without_adapters(before, after, expected)):
        return faults
    return [*faults, "the output is not that of the sums"]


def _without_adapters(before: State, after: State, weights: dict[str, Tensor]) -> list[Tensor]:
    """The graph before, its adapters silent and each sum in a weight of its layer's own."""
    graph = copy.deepcopy(before.graph)
    after_layers = dict(layers_of(after.graph))
    for path, adapter in adapters_of(graph).items():
        nn.init.zeros_(adapter.lora_B.weight)
        if is_packed(adapter.base_layer):
            adapter.base_layer = after_layers[path]
        else:
            adapter.base_layer._parameters["weight"] = nn.Parameter(weights[path].clone())
    return run(graph, before.inputs)


def _check_pack(before: State, after: State, info: dict[str, Any]) -> list[str]:
    packed = {path for path, layer in layers_of(after.graph) if is_packed(layer)}

    def expected(path: str) -> Tensor:
        return FORMAT.quantize(before.weights[path]) if path in packed else before.weights[path]

    faults = weights_differ(before, after, expected)
    if not is_close(after.outputs, oracle(before, after.weights)):
        faults.append("the output is not that of the packed weights")
    return faults


def _reload(graph: MaseGraph) -> tuple[MaseGraph, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        graph.export(Path(folder) / "graph")
        return MaseGraph.from_checkpoint(Path(folder) / "graph"), {}


def _copy(graph: MaseGraph) -> tuple[MaseGraph, dict[str, Any]]:
    return copy.deepcopy(graph), {}


def _check_copy(before: State, after: State, info: dict[str, Any]) -> list[str]:
    other = copy.deepcopy(after.graph)
    with torch.no_grad():
        for tensor in (*other.model.parameters(), *other.model.buffers()):
            tensor.zero_()
    whole = same(run(after.graph, after.inputs), before.outputs)
    return unchanged(before, after, info) + ([] if whole else ["the copy shares memory"])


STEPS: dict[str, Step] = {
    "prune": Step(_prune, _check_prune),
    "quantise": Step(_quantise, _check_quantise),
    "LoRA": Step(_adapt, _check_adapt),
    "fuse LoRA": Step(passes.fuse_lora_weights_transform_pass, _check_fuse_lora),
    "fuse attention": Step(passes.fuse_attention_transform_pass, close),
    "fuse patterns": Step(passes.fuse_patterns_transform_pass, close),
    "pack": Step(passes.pack_weights_transform_pass, _check_pack),
    "reload": Step(_reload, unchanged),
    "deepcopy": Step(_copy, _check_copy),
}

PRESERVING = ("reload", "deepcopy")
"""Steps that leave the graph they are given as it is, and give another like it."""
COMMUTES = {
    *(frozenset({one, other}) for one in PRESERVING for other in STEPS if one != other),
    *(
        frozenset({"fuse attention", other})
        for other in ("prune", "quantise", "LoRA", "fuse LoRA", "pack")
    ),
    frozenset({"prune", "quantise"}),
    frozenset({"quantise", "LoRA"}),
    frozenset({"pack", "LoRA"}),
}
"""Pairs of steps that give the same model in either order."""


# -- sequences -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """How a sequence ended: right, refused (a clear error of the last step), or wrong, and why."""

    sequence: Sequence
    kind: str
    reason: str = ""


def take(state: State, sequence: Sequence) -> tuple[Verdict, State | None]:
    """Apply the last step of `sequence` to a copy of `state`, which the others led to."""
    name = sequence[-1]
    graph = state.graph if name in PRESERVING else copy.deepcopy(state.graph)
    try:
        graph, info = STEPS[name].apply(graph)
        after = State(graph, state.inputs)
    except ChopError as error:
        return Verdict(sequence, "refused", str(error)), None
    except Exception as error:
        return Verdict(sequence, "wrong", f"{type(error).__name__}: {error}"), None
    faults = STEPS[name].check(state, after, info)
    faults += sharing_lost(state, after, set(info.get("untied", ())))
    faults += gradients_fail(after) + repeats_itself(sequence, state, after)
    graph.fx_graph.lint()
    return Verdict(sequence, "wrong" if faults else "right", "; ".join(faults)), after


def repeats_itself(sequence: Sequence, before: State, after: State) -> list[str]:
    """A step taken twice in a row is the step taken once."""
    twice = len(sequence) > 1 and sequence[-1] == sequence[-2]
    if not twice or is_close(after.outputs, before.outputs):
        return []
    return ["the second application changed the output"]


def walk(
    state: State, depth: int, steps: Sequence = tuple(STEPS), prefix: Sequence = ()
) -> Iterator[tuple[Verdict, State | None]]:
    """Every sequence of at most `depth` steps from `state`, each prefix taken once.

    A step is repeated at once in pairs alone: what that shows, longer sequences show again.
    """
    for name in steps:
        if len(prefix) > 1 and name == prefix[-1]:
            continue
        verdict, after = take(state, (*prefix, name))
        yield verdict, after
        is_repeated = prefix[-1:] == (name,)
        if after is not None and verdict.kind == "right" and depth > 1 and not is_repeated:
            yield from walk(after, depth - 1, steps, verdict.sequence)


def swapped(outputs: dict[Sequence, list[Tensor]]) -> Iterator[Verdict]:
    """Sequences whose last two steps should commute and do not."""
    for sequence, found in outputs.items():
        other = (*sequence[:-2], *sequence[:-3:-1])
        if len(sequence) < 2 or frozenset(sequence[-2:]) not in COMMUTES or sequence >= other:
            continue
        if other in outputs and not is_close(found, outputs[other]):
            yield Verdict(
                sequence, "wrong", f"'{sequence[-2]}' and '{sequence[-1]}' do not commute"
            )


def try_all(state: State, depth: int, steps: Sequence = tuple(STEPS)) -> list[Verdict]:
    """The verdicts on every sequence, and on the pairs of them that should agree."""
    verdicts, outputs = [], {}
    for verdict, after in walk(state, depth, steps):
        verdicts.append(verdict)
        if after is not None:
            outputs[verdict.sequence] = after.outputs
    return [*verdicts, *swapped(outputs)]


def try_one(state: State, sequence: Sequence) -> Verdict:
    """The verdict on one sequence: on the first of its steps that is not right, or the last."""
    verdict = Verdict((), "right")
    for length in range(1, len(sequence) + 1):
        verdict, after = take(state, sequence[:length])
        if after is None or verdict.kind != "right":
            return verdict
        state = after
    return verdict
