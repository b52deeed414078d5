"""One small call, or more, of every op that carries dimensions, and what is made of it.

Operands are parameters of the model, so every dimension of each can be removed and split.
`python tests/ir/dimension_cases.py` writes what is made of them now into `PINNED`.
"""

from __future__ import annotations

import functools
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import chop.passes as passes
from chop import MaseGraph
from chop.distributed.program import program_of
from chop.distributed.strategies import Strategy
from chop.nn.modules.activation_mask import ActivationMask
from chop.passes.prune.channel_rules import find_rule
from chop.passes.prune.coupling import Coupling, Labels, axes_in, couple

PINNED = Path(__file__).with_name("dimension_cases.txt")
Shape = tuple[int, ...]
MATRIX, IMAGE = (4, 6), (2, 4, 6, 8)


@dataclass(frozen=True)
class Case:
    """`call` is an expression of operands `a`, `b`, `c` and of the layer `m` that `layer` makes."""

    op: str
    call: str
    shapes: tuple[Shape, ...] = (MATRIX,)
    layer: str = ""


class Call(nn.Module):
    """Runs the call of one case."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.names = "abc"[: len(case.shapes)]
        for name, shape in zip(self.names, case.shapes, strict=True):
            self.register_parameter(name, nn.Parameter(torch.rand(shape) + 0.5))
        layers = {"nn": nn, "ActivationMask": ActivationMask}
        self.m = eval(case.layer, layers) if case.layer else None
        self.code = compile(case.call, case.op, "eval")

    def forward(self, x: Tensor) -> Any:
        operands = {name: getattr(self, name) for name in self.names}
        return eval(self.code, {"torch": torch, "F": F, "m": self.m, "x": x} | operands)


class AllCalls(nn.Module):
    """Runs every case: one capture costs less than many."""

    def __init__(self, cases: tuple[Case, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.calls = nn.ModuleList(map(Call, cases))

    def forward(self, x: Tensor) -> Any:
        return [call(x) for call in self.calls], x


_UNARY = {
    "abs": "torch.abs",
    "alpha_dropout": "F.alpha_dropout",
    "celu": "F.celu",
    "contiguous": "torch.Tensor.contiguous",
    "cos": "torch.cos",
    "dropout": "F.dropout",
    "elu": "F.elu",
    "erf": "torch.erf",
    "exp": "torch.exp",
    "feature_alpha_dropout": "F.feature_alpha_dropout",
    "gelu": "F.gelu",
    "hardshrink": "F.hardshrink",
    "hardsigmoid": "F.hardsigmoid",
    "hardswish": "F.hardswish",
    "hardtanh": "F.hardtanh",
    "isnan": "torch.isnan",
    "leaky_relu": "F.leaky_relu",
    "log": "torch.log",
    "logical": "torch.logical_not",
    "logsigmoid": "F.logsigmoid",
    "mish": "F.mish",
    "neg": "torch.neg",
    "reciprocal": "torch.reciprocal",
    "relu": "F.relu",
    "relu6": "F.relu6",
    "round": "torch.round",
    "rrelu": "F.rrelu",
    "rsqrt": "torch.rsqrt",
    "selu": "F.selu",
    "sigmoid": "torch.sigmoid",
    "sign": "torch.sign",
    "silu": "F.silu",
    "sin": "torch.sin",
    "softplus": "F.softplus",
    "softshrink": "F.softshrink",
    "softsign": "F.softsign",
    "sqrt": "torch.sqrt",
    "tan": "torch.tan",
    "tanh": "torch.tanh",
    "tanhshrink": "F.tanhshrink",
    "constant": "torch.zeros_like",
}
_UNARY_LAYERS = {
    "relu": "nn.ReLU()",
    "gelu": "nn.GELU()",
    "dropout": "nn.Dropout()",
    "identity": "nn.Identity()",
    "tanh": "nn.Tanh()",
}
_BINARY = {
    "add": "a + b",
    "sub": "torch.sub(a, b)",
    "mul": "a.mul(b)",
    "div": "a / b",
    "floor_divide": "a // b",
    "remainder": "torch.remainder(a, b)",
    "pow": "torch.pow(a, b)",
    "maximum": "torch.maximum(a, b)",
    "minimum": "torch.minimum(a, b)",
    "compare": "a > b",
    "logical": "torch.logical_and(a, b)",
    "tan": "torch.atan2(a, b)",
}
_REDUCTIONS = (
    *("sum", "prod", "mean", "var", "std", "max", "min", "argmax", "logsumexp", "all", "norm"),
)

CASES: tuple[Case, ...] = (
    *(Case(op, f"{name}(a)", (IMAGE,)) for op, name in _UNARY.items()),
    *(Case(op, "m(a)", (IMAGE,), layer) for op, layer in _UNARY_LAYERS.items()),
    *(Case(op, call, (IMAGE, (4, 1, 8))) for op, call in _BINARY.items()),
    *(Case(op, call, (MATRIX, MATRIX)) for op, call in _BINARY.items()),
    *(Case(op, f"torch.{op}(a, dim=1)", (IMAGE,)) for op in _REDUCTIONS),
    *(Case(op, f"torch.{op}(a, dim=-1, keepdim=True)", (IMAGE,)) for op in _REDUCTIONS),
    *(Case(op, f"torch.{op}(a)") for op in _REDUCTIONS if op != "logsumexp"),
    Case("add", "a + 1"),
    Case("mean", "a.mean((2, 3))", (IMAGE,)),
    Case("activation_mask", "m(a)", (IMAGE,), "ActivationMask(0.5)"),
    Case("threshold", "F.threshold(a, 0.1, 0.0)"),
    Case("dropout1d", "F.dropout1d(a)", ((2, 4, 6),)),
    Case("dropout2d", "F.dropout2d(a)", (IMAGE,)),
    Case("dropout3d", "F.dropout3d(a)", ((2, 4, 6, 8, 2),)),
    Case("clamp", "a.clamp(0, 1)"),
    Case("clamp_min", "a.clamp_min(0)"),
    Case("clamp_max", "a.clamp_max(1)"),
    Case("addcmul", "torch.addcmul(a, b, c)", (MATRIX, (6,), (4, 1))),
    Case("lerp", "torch.lerp(a, b, 0.5)", (MATRIX, (6,))),
    Case("where", "torch.where(a > 0, a, b)", (MATRIX, (6,))),
    Case("masked_fill", "a.masked_fill(b > 0, 0.0)", (MATRIX, (4, 1))),
    Case("to", "a.to(torch.float64)"),
    Case("fill", "torch.fill(a, 1.0)"),
    Case("softmax", "F.softmax(a, dim=-1)", (IMAGE,)),
    Case("softmax", "m(a)", (IMAGE,), "nn.Softmax(1)"),
    Case("softmin", "F.softmin(a, 1)"),
    Case("log_softmax", "torch.log_softmax(a, 0)"),
    Case("cumsum", "torch.cumsum(a, 1)"),
    Case("normalize", "F.normalize(a, dim=1)"),
    Case("roll", "torch.roll(a, 1, 1)"),
    Case("flip", "torch.flip(a, (0,))"),
    Case("linear", "m(a)", (MATRIX,), "nn.Linear(6, 8)"),
    Case("linear", "m(a)", ((2, 4, 6),), "nn.Linear(6, 8, bias=False)"),
    Case("linear", "F.linear(a, b, c)", (MATRIX, (8, 6), (8,))),
    Case("addmm", "torch.addmm(a, b, c)", ((8,), (4, 6), (6, 8))),
    Case("addmm", "torch.addmm(a, b, c)", ((4, 8), (4, 6), (6, 8))),
    Case("conv1d", "m(a)", ((2, 4, 8),), "nn.Conv1d(4, 6, 3)"),
    Case("conv2d", "m(a)", (IMAGE,), "nn.Conv2d(4, 6, 3)"),
    Case("conv2d", "m(a)", ((4, 6, 8),), "nn.Conv2d(4, 6, 3)"),
    Case("conv2d", "m(a)", (IMAGE,), "nn.Conv2d(4, 6, 3, groups=2)"),
    Case("conv2d", "m(a)", (IMAGE,), "nn.Conv2d(4, 4, 3, groups=4)"),
    Case("conv2d", "F.conv2d(a, b, c)", (IMAGE, (6, 4, 3, 3), (6,))),
    Case("conv3d", "m(a)", ((2, 4, 4, 4, 4),), "nn.Conv3d(4, 6, 3, bias=False)"),
    Case("conv_transpose1d", "m(a)", ((2, 4, 8),), "nn.ConvTranspose1d(4, 6, 3)"),
    Case("conv_transpose2d", "m(a)", (IMAGE,), "nn.ConvTranspose2d(4, 6, 3)"),
    Case("conv_transpose2d", "m(a)", (IMAGE,), "nn.ConvTranspose2d(4, 6, 3, groups=2)"),
    Case("conv_transpose3d", "m(a)", ((2, 4, 4, 4, 4),), "nn.ConvTranspose3d(4, 6, 3)"),
    Case("layer_norm", "m(a)", (IMAGE,), "nn.LayerNorm(8)"),
    Case("layer_norm", "m(a)", (IMAGE,), "nn.LayerNorm((6, 8), bias=False)"),
    Case("layer_norm", "F.layer_norm(a, (6,), b)", (MATRIX, (6,))),
    Case("rms_norm", "m(a)", ((2, 4, 6),), "nn.RMSNorm(6)"),
    Case("batch_norm1d", "m(a)", (MATRIX,), "nn.BatchNorm1d(6)"),
    Case("batch_norm2d", "m(a)", (IMAGE,), "nn.BatchNorm2d(4)"),
    Case("batch_norm3d", "m(a)", ((2, 4, 4, 4, 4),), "nn.BatchNorm3d(4, affine=False)"),
    Case("batch_norm", "F.batch_norm(a, None, None, b, c, True)", (IMAGE, (4,), (4,))),
    Case("instance_norm", "m(a)", (IMAGE,), "nn.InstanceNorm2d(4, affine=True)"),
    Case("prelu", "m(a)", (IMAGE,), "nn.PReLU(4)"),
    Case("prelu", "m(a)", (IMAGE,), "nn.PReLU()"),
    Case("group_norm", "m(a)", (IMAGE,), "nn.GroupNorm(1, 4)"),
    Case("group_norm", "m(a)", (IMAGE,), "nn.GroupNorm(2, 4)"),
    Case("group_norm", "m(a)", (IMAGE,), "nn.GroupNorm(4, 4)"),
    Case("embedding", "m(x)", (), "nn.Embedding(10, 6)"),
    Case("embedding", "m(x)", (), "nn.Embedding(10, 6, max_norm=1.0)"),
    Case("embedding", "F.embedding(x, a)", ((10, 6),)),
    Case("cross_entropy", "F.cross_entropy(a, x[:, 0])", ((2, 6),)),
    Case("cross_entropy", "F.cross_entropy(a, b)", ((4, 6), (4, 6))),
    Case("interpolate", "F.interpolate(a, scale_factor=2)", (IMAGE,)),
    *(
        Case(f"{kind}_pool{n}d", f"F.{kind}_pool{n}d(a, 2)", ((2, 4, *([8] * n)),))
        for kind in ("max", "avg", "adaptive_avg", "adaptive_max")
        for n in (1, 2, 3)
    ),
    *(Case(f"lp_pool{n}d", f"F.lp_pool{n}d(a, 2, 2)", ((2, 4, *([8] * n)),)) for n in (1, 2, 3)),
    Case("max_pool2d", "m(a)", (IMAGE,), "nn.MaxPool2d(2)"),
    Case("adaptive_avg_pool2d", "m(a)", (IMAGE,), "nn.AdaptiveAvgPool2d(1)"),
    Case("matmul", "a @ b", ((4, 6), (6, 8))),
    Case("matmul", "torch.matmul(a, b)", ((2, 4, 6), (6, 8))),
    Case("matmul", "torch.matmul(a, b)", (IMAGE, (2, 1, 8, 6))),
    Case("matmul", "a @ b", ((4, 6), (6,))),
    Case("bmm", "torch.bmm(a, b)", ((2, 4, 6), (2, 6, 8))),
    Case("scaled_dot_product_attention", "F.scaled_dot_product_attention(a, b, c)", (IMAGE,) * 3),
    Case(
        "scaled_dot_product_attention",
        "F.scaled_dot_product_attention(a, b, b, attn_mask=c)",
        (IMAGE, IMAGE, (2, 1, 6, 6)),
    ),
    Case(
        "scaled_dot_product_attention",
        "F.scaled_dot_product_attention(a, b, c, enable_gqa=True)",
        ((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8)),
    ),
    Case("view", "a.view(4, 2, 3)"),
    Case("view", "a.view(2, 4, 2, 3, 8)", (IMAGE,)),
    Case("view", "a.view(2, 3, 2, 8)", ((2, 3, 16),)),
    Case("reshape", "a.reshape(8, 48)", (IMAGE,)),
    Case("reshape", "torch.reshape(a, (4, 2, 3))"),
    Case("flatten", "torch.flatten(a, 1)", (IMAGE,)),
    Case("flatten", "m(a)", (IMAGE,), "nn.Flatten()"),
    Case("unflatten", "a.unflatten(1, (2, 3))"),
    Case("unflatten", "m(a)", (MATRIX,), "nn.Unflatten(1, (2, 3))"),
    Case("squeeze", "a.squeeze(1)", ((4, 1, 6),)),
    Case("unsqueeze", "a.unsqueeze(1)"),
    Case("permute", "a.permute(0, 2, 3, 1)", (IMAGE,)),
    Case("permute", "torch.permute(a, (1, 0))"),
    Case("transpose", "a.transpose(1, 2)", (IMAGE,)),
    Case("transpose", "torch.transpose(a, -1, -2)", (IMAGE,)),
    Case("transpose", "a.t()"),
    Case("transpose", "torch.movedim(a, 1, 3)", (IMAGE,)),
    Case("expand", "a.expand(4, 6)", ((1, 6),)),
    Case("expand", "a.expand(2, 4, 6)"),
    Case("expand", "a.expand_as(b)", ((1, 6), MATRIX)),
    Case("cat", "torch.cat((a, b), 1)", (MATRIX, (4, 2))),
    Case("cat", "torch.cat([a, b])", (MATRIX, MATRIX)),
    Case("stack", "torch.stack((a, b), 1)", (MATRIX, MATRIX)),
    Case("split", "a.split(2, 1)[0]"),
    Case("split", "torch.split(a, (2, 4), dim=-1)[1]"),
    Case("chunk", "a.chunk(2, dim=1)[1]"),
    Case("chunk", "torch.chunk(a, 2)[0]"),
    Case("unbind", "a.unbind(0)[1]", ((3, 4, 6),)),
    Case("getitem", "a[:, 0]", (IMAGE,)),
    Case("getitem", "a[..., 2:4]"),
    Case("getitem", "a[None, :, 1:]"),
    Case("getitem", "a[0]"),
    Case("size", "a.size(0) + a.numel()"),
    Case("getattr", "a.mT"),
)
"""Every op with a dimension rule has a case; `test_dims.py` holds it."""


def label(case: Case) -> str:
    """A name for each case."""
    sizes = ", ".join("x".join(map(str, shape)) for shape in case.shapes)
    call = case.call.replace("m(", f"{case.layer}(") if case.layer else case.call
    return f"{case.op}: {call} of {sizes or 'the input'}"


@functools.cache
def captured(cases: tuple[Case, ...]) -> MaseGraph:
    """The cases, captured and annotated."""
    x = torch.tensor([[1, 2], [3, 4]])
    graph = MaseGraph(AllCalls(cases).eval(), dummy_in={"x": x})
    graph, _ = passes.init_metadata_analysis_pass(graph)
    return passes.add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x}})[0]


def nodes_by_case(graph: MaseGraph) -> dict[int, list[fx.Node]]:
    """The nodes of each case, by its number: what it reads of its own, and all that follows."""
    of: dict[fx.Node, int] = {}
    for node in graph.nodes:
        target = str(node.target).split(".")
        if node.op in ("get_attr", "call_module") and target[0] == "calls":
            of[node] = int(target[1])
        elif node.op not in ("placeholder", "output"):
            sources = [source for source in node.all_input_nodes if source in of]
            if sources:
                of[node] = of[sources[0]]
    numbers = sorted(set(of.values()))
    return {number: [n for n in graph.nodes if of.get(n) == number] for number in numbers}


def removals(graph: MaseGraph) -> dict[int, str]:
    """What structured pruning makes of each case: groups of indices that go together.

    What the graph gives may not be removed, so it gives the input alone.
    """
    (source,) = graph.fx_graph.find_nodes(op="placeholder")
    output = graph.fx_graph.output_node()
    given, output.args = output.args, (source,)
    coupling = couple(graph, {"x": torch.tensor([[1, 2], [3, 4]])}, find_rule)
    output.args = given
    roots = coupling.labels.roots()
    return {
        number: _removal(graph, coupling, roots, number, nodes)
        for number, nodes in nodes_by_case(graph).items()
    }


def _removal(
    graph: MaseGraph, coupling: Coupling, roots: Labels, number: int, nodes: list[fx.Node]
) -> str:
    names: dict[int, str] = {0: "-"}  # what may not be removed

    def groups(dim: Labels) -> str:
        return "".join(names.setdefault(int(roots[i]), _LETTERS[len(names)]) for i in dim.tolist())

    def axes(value: Any) -> str:
        return " ".join("/".join(map(groups, each.dims)) for each in axes_in(value))

    own = graph.model.get_submodule(f"calls.{number}")
    tensors = {n: coupling.tensors.get(id(t)) for n, t in own.named_parameters()}
    told = [f"{n}={axes(held[1])}" for n, held in tensors.items() if held is not None]
    calls = [n for n in nodes if n.op.startswith("call") and axes_in(coupling.values[n])]
    told += [f"{n.op}={axes(coupling.values[n])}" for n in calls]
    layers = {id(m) for m in own.modules()}
    told += [f"makes {groups(d)}" for path, d, _ in coupling.producers if f".{number}." in path]
    told += [f"sets {name}" for module, name, _ in coupling.sizes if id(module) in layers]
    told += ["rewritten" for node, _ in coupling.rewrites if node in nodes]
    return "; ".join(told)


_LETTERS = string.ascii_letters + string.digits + "".join(map(chr, range(0xC0, 0x250)))


def splits(graph: MaseGraph) -> dict[int, str]:
    """What sharding makes of each case: the ways to run its nodes on two devices."""
    values = {value.name: value for value in program_of(graph).values}
    calls = {
        number: [values[n.name] for n in nodes if n.op.startswith("call") and n.name in values]
        for number, nodes in nodes_by_case(graph).items()
    }
    return {
        number: "; ".join(_way(way) for value in of for way in value.layouts(2)[1:])
        for number, of in calls.items()
    }


def _way(strategy: Strategy) -> str:
    operands = " ".join(f"{n}={layout}" for n, layout in strategy.operands.items())
    return f"{strategy.name}: {operands} -> {strategy.result}"


def told() -> dict[str, tuple[str, str]]:
    """Of every case, what pruning and what sharding make of it."""
    graph = captured(CASES)
    ways = splits(graph)
    groups = removals(graph)
    return {label(case): (groups[i], ways[i]) for i, case in enumerate(CASES)}


def pinned() -> dict[str, tuple[str, str]]:
    """What `told` gave when it was written down."""
    lines = [line.strip() for line in PINNED.read_text().splitlines()]
    rows = zip(lines[::3], lines[1::3], lines[2::3], strict=True)
    return {
        name: (removed.removeprefix("remove").strip(), split.removeprefix("split by").strip())
        for name, removed, split in rows
    }


if __name__ == "__main__":
    PINNED.write_text(
        "".join(
            f"{name}\n  remove {removed}\n  split by {split}\n".replace(" \n", "\n")
            for name, (removed, split) in told().items()
        )
    )
