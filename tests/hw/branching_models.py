"""Random models whose paths part and join again: what can deadlock if a FIFO is too small.

`branching_case(seed)` depends on its seed alone. A model is built from values of rows × features.
Each step reads values that others read too, so that forks and joins are frequent: sums, products,
matrix products with transposed operands, softmax and norms, which wait for a whole row or tensor.
Every third model repeats a layer, and its design may have one block for all of them. Numbers are
in fixed point or in MXINT, by node. To add an op: a row in `UNARY` or `JOINS`.
"""

import torch
from random_models import CALLS, TABLE_WIDTHS, TABLES, Case, Draw, Step, Steps, _filled
from torch import nn

from chop.hw.lower import Parallelism
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.ops import find_op
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass

WIDTHS = (4, 5, 6, 8, 8)
ROW_OPS = ("layer_norm", "rms_norm", "softmax")
"""Ops with integer arithmetic of their own."""
BLOCK_OPS = ("linear", "matmul")
"""Ops that hardware computes in MXINT."""
ROUNDINGS = ("nearest_even", "nearest_even", "nearest_away")

UNARY = {
    "linear": lambda draw, size: nn.Linear(size, size, bias=draw.chance(0.7)),
    "relu": lambda draw, size: nn.ReLU(),
    "sigmoid": lambda draw, size: nn.Sigmoid(),
    "layer_norm": lambda draw, size: nn.LayerNorm(size, draw.choice((1e-5, 0.1))),
    "rms_norm": lambda draw, size: nn.RMSNorm(size, 0.1),
    "softmax": lambda draw, size: nn.Softmax(-1),
    "identity": lambda draw, size: nn.Identity(),
}
"""Steps from rows × features to the same."""


def squared(x, y):
    """The scores of two tensors, times themselves transposed: slower than what comes before it.

    A slow stage at the end makes FIFOs at the first fork unnecessary for the pace of the design, so
    that only the proof against deadlocks asks for them.
    """
    scores = torch.matmul(x, y.transpose(1, 2))
    return torch.matmul(scores, scores.transpose(1, 2))


JOINS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "mix": lambda x, y: torch.matmul(torch.matmul(x, y.transpose(1, 2)), x),
    "gram": lambda x, y: torch.matmul(x, torch.matmul(y.transpose(1, 2), y)),
    "powers": lambda x, y: torch.matmul(squared(x, y), y),
    "attend": lambda x, y: torch.matmul(torch.softmax(torch.matmul(x, y.transpose(1, 2)), -1), y),
}
"""Steps from two tensors of rows × features to one."""
ENDS = {
    "squared": squared,
    "scores": lambda x, y: torch.matmul(x, y.transpose(1, 2)),
    "turned": lambda x, y: torch.matmul(x.transpose(1, 2), y),
}
"""Joins with another shape, whose result leaves."""


class Layer(nn.Module):
    """A residual layer; `kinds` says what is on the path beside the input."""

    def __init__(self, draw, kinds, size, settings):
        super().__init__()
        alike = Draw(settings)  # for every layer the same
        self.path = nn.Sequential(*(_filled(draw, UNARY[kind](alike, size)) for kind in kinds))

    def forward(self, x):
        return x + self.path(x)


class Layers(nn.Module):
    """Layers alike, behind a product."""

    def __init__(self, draw, kinds, size, count):
        super().__init__()
        self.first = _filled(draw, nn.Linear(size, size))
        settings = draw.random()
        self.layers = nn.ModuleList(Layer(draw, kinds, size, settings) for _ in range(count))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


def branching_case(seed):
    """Return the case of a seed."""
    draw = Draw(f"branching {seed}")
    rows, size = draw.choice((1, 2, 3, 4, 5, 5, 6)), draw.choice((1, 2, 3, 4, 4, 6, 8))
    make = repeated_layers if seed % 3 == 0 else branches
    model, text = make(draw, size)
    graph = MaseGraph(model.eval(), dummy_in=torch.zeros(2, rows, size))
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph)
    is_repeated = make is repeated_layers
    rules = by_type(draw, graph) if is_repeated else by_name(draw, graph)
    if len(rules) > 1:  # a model in which no layer was drawn stays float
        quantize_transform_pass(graph, rules)
    for node in graph.fx_graph.find_nodes(op="placeholder"):
        result = mase_meta(node).common.results["data_out_0"]
        result["type"], result["precision"] = "fixed", [draw.choice(WIDTHS), draw.randint(1, 4)]
    shared = draw.choice((0, 1, 1, 2)) if is_repeated else 0
    parallelism = random_parallelism(draw, ("array",) if shared else MULTIPLIERS)
    return Case(seed, graph, parallelism, f"{(rows, size)}: {text}", shared)


MULTIPLIERS = ("array", "array", "tables", "shift_add")


def random_parallelism(draw, ways):
    """Lanes, and how many registers lie between operations: latencies differ with them."""
    return Parallelism(
        draw.choice((1, 2, 2, 3, 4, 8)),
        multiplier={"*": draw.choice(ways)},
        adders_per_stage=draw.randint(1, 3),
        clock_mhz=draw.choice((50.0, 100.0, 100.0, 150.0)),
    )


# -- models ----------------------------------------------------------------------------------------


def branches(draw, size):
    """Return a model of steps that part and join, and its text."""
    values, steps = 1, []
    if draw.chance(0.5):  # an operand that waits for the whole input, beside one that does not
        steps = _product_of_itself(draw)
        values += len(steps)
    for _ in range(draw.choice((2, 2, 3, 4)) - 2 * bool(steps)):
        steps.append(_step(draw, size, values))
        values += 1
    if draw.chance(0.5):
        steps.append(_join(draw, ENDS, _any(draw, values), values))
        values += 1
    used = {i for step in steps for i in step.sources}
    outputs = [i for i in range(1, values) if i not in used]
    text = "; ".join(f"{s.text}{list(s.sources)}" for s in steps)
    return Steps(steps, outputs), f"{text} -> {outputs}"


def _step(draw, size, values):
    if draw.chance(0.6):
        return _join(draw, JOINS, values - 1, values)
    name = draw.choice([*UNARY, "relu", "identity"])
    return Step(name, _filled(draw, UNARY[name](draw, size)), (_any(draw, values),))


def _product_of_itself(draw):
    """Return steps that multiply the input, or its rectifier, with the input transposed."""
    first = [Step("relu", nn.ReLU(), (0,))] if draw.chance(0.6) else []
    return [*first, Step("powers", JOINS["powers"], (len(first), 0))]


def _join(draw, joins, source, values):
    """Return a step from value `source` and another, often itself: then both paths are short."""
    name = draw.choice(list(joins))
    other = source if draw.chance(0.4) else _any(draw, values)
    return Step(name, joins[name], (source, other))


def _any(draw, values):
    """The input or any other value, the input more often: it then forks."""
    return 0 if draw.chance(0.4) else draw.randrange(values)


def repeated_layers(draw, size):
    """Return a model of layers alike, and its text."""
    kinds = draw.choices(("linear", "relu", "layer_norm", "rms_norm", "sigmoid"), k=2)
    kinds = [*kinds, "linear"]
    count = draw.randint(2, 3)
    return Layers(draw, kinds, size, count), f"{count} layers of {kinds}"


# -- formats ---------------------------------------------------------------------------------------


def by_name(draw, graph):
    """Return a format for each node."""
    nodes = [node for node in graph.fx_graph.nodes if node.op in CALLS]
    ops = {node.name: find_op(node) for node in nodes}
    rules = {
        name: {"config": random_config(draw, op.name)}
        for name, op in ops.items()
        if op is not None and op.compute is not None
    }
    return {"by": "name", **rules}


def by_type(draw, graph):
    """Return one format for each op, so that repeated layers stay alike."""
    ops = {find_op(node) for node in graph.fx_graph.nodes if node.op in CALLS} - {None}
    names = sorted(op.name for op in ops if op.compute is not None)
    result = _fixed(draw, "data_out", (6, 8))
    rules = {name: {"config": _integer(draw, name) | result} for name in names}
    return {"by": "type", **rules}


def random_config(draw, op):
    """Return a config for a node of the op named `op`."""
    is_mxint = op in BLOCK_OPS and draw.chance(0.7)
    return _mxint(draw, op) if is_mxint else _integer(draw, op)


def _roles(op):
    """Return the operands and parameters of an op: `weight` would stand for the second operand."""
    two = op in ("add", "sub", "mul", "matmul")
    return ("data_in_0", "data_in_1") if two else ("data_in", "weight", "bias")


def _integer(draw, op):
    config = {"name": "integer"}
    widths = TABLE_WIDTHS[3:] if op in TABLES else WIDTHS
    for role in (*_roles(op), "data_out"):
        config |= _fixed(draw, role, widths if role.startswith("data_in") else WIDTHS)
    return config | ({"arithmetic": "integer"} if op in ROW_OPS else {})


def _fixed(draw, role, widths):
    width = draw.choice(widths)
    settings = {"width": width, "frac_width": width - draw.randint(1, 4)}
    settings["rounding"] = draw.choice(ROUNDINGS)
    return {f"{role}_{key}": value for key, value in settings.items()}


def _mxint(draw, op):
    config = {"name": "mxint"}
    for role in (*_roles(op), *(["data_out"] if draw.chance(0.6) else [])):
        settings = {"width": draw.choice((4, 6, 8)), "block_size": draw.choice((1, 2, 3, 4, -1))}
        settings |= {"exponent_width": draw.randint(1, 4), "rounding": draw.choice(ROUNDINGS)}
        config |= {f"{role}_{key}": value for key, value in settings.items()}
    if op == "matmul":  # blocks lie along the sum
        config["data_in_1_axis"] = -2
    return config
