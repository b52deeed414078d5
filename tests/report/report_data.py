"""What the tests of the report show: small graphs, studies, sweeps and a design."""

import copy

import torch
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.hw.flow.hardware_report import pipeline_records
from chop.hw.flow.roofline import roofline
from chop.hw.flow.route.parts import get_part
from chop.passes.emit_design import lowered_design
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass

FIXED = {
    f"{of}_{what}": bits
    for of in ("data_in", "weight", "bias")
    for what, bits in (("width", 8), ("frac_width", 5))
}


class Net(nn.Module):
    """Two linear layers."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def annotated(model=None):
    """The graph of a model, with common metadata."""
    torch.manual_seed(0)
    graph = MaseGraph(model or Net(), dummy_in=torch.randn(2, 8))
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph)
    return graph


def compressed(graph, ops=("linear", "relu")):
    """A copy of `graph`, half pruned and in fixed point of 8 bits."""
    after = copy.deepcopy(graph)
    weight = {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}
    after, _ = passes.prune_transform_pass(after, {"weight": weight})
    rules = {op: {"config": {"name": "integer", **FIXED}} for op in ops}
    if "relu" in rules:
        rules["relu"] = {"config": {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5}}
    return passes.quantize_transform_pass(after, {"by": "type", **rules})[0]


def with_hardware(graph):
    """`graph` with hardware metadata, and the records of its design."""
    graph, _ = add_hardware_metadata_analysis_pass(graph, {"max_parallelism": 2})
    design = lowered_design(graph).design
    roofs = roofline(design, get_part(ROUTED["part"]), ROUTED["mhz"]).records()
    return graph, {**pipeline_records(design), "routed": ROUTED, "roofline": roofs}


ROUTED = {
    "part": "ecp5-25k",
    "device": "LFE5U-25F-6BG381",
    "mhz": 135.8,
    "clocks": {"1": 135.8, "2": 120.25, "3": 131.0},
    "used": {"lut": 592, "dsp": 2},
    "available": {"lut": 24288, "dsp": 28},
    "path": [{"kind": "setup", "nanoseconds": 0.5, "where": "u_top.u_fc1.sum", "stage": "fc1"}],
    "tensors_per_second": 265293.4,
    "simulated": "640 of 640 output values bit-exact in 4066 cycles",
    "bitstream": "top.bit",
}
"""What place and route tells of a design, as in its report."""


def trial(number, accuracy, bits, state="complete"):
    values = {"accuracy": accuracy, "bits": bits} if state == "complete" else {}
    return {
        "number": number,
        "state": state,
        "values": values,
        "params": {"fc1.weight_width": number % 3 + 2, "fc2.weight_width": 4},
        "attributes": {},
        "seconds": 0.5,
        "reason": None if state == "complete" else "the loss is not finite",
    }


STUDY = {
    "name": "widths",
    "objectives": {"accuracy": "maximize", "bits": "minimize"},
    "sampler": "tpe",
    "seed": 7,
    "importance": {"accuracy": {"fc2.weight_width": 0.25, "fc1.weight_width": 0.75}},
    "trials": [
        trial(0, 0.90, 6.0),
        trial(1, 0.80, 3.0),
        trial(2, 0.85, 7.0),
        trial(3, 0.0, 0.0, "failed"),
        trial(4, 0.95, 6.5),
        trial(5, 0.80, 3.0),
    ],
}
SWEEP = [
    {"sweep": "sparsity", "method": m, "seed": seed, "sparsity": x, "before": y, "after": y + 0.1}
    for m, drop in (("random", 0.4), ("l1-norm", 0.1))
    for seed in (0, 1)
    for x, y in ((0.2, 0.8), (0.8, 0.8 - drop + seed / 100))
]


def many_nodes(count):
    """The record of a graph of `count` nodes in a chain with side branches."""
    ops = ("linear", "relu", "sigmoid", "mul", "add")
    nodes = [
        {
            "name": f"{ops[i % 5]}_{i}",
            "kind": "call_function",
            "target": ops[i % 5],
            "op": ops[i % 5],
            "type": "builtin_func",
            "flops": 10 + i,
            "format": "float32",
        }
        for i in range(count)
    ]
    edges = [(i - 1, i) for i in range(1, count)] + [(i - 3, i) for i in range(4, count, 5)]
    totals = {"nodes": count, "parameters": 0, "bytes": 0, "bits": None, "sparsity": None}
    return {
        "label": "many",
        "model": "Many",
        "nodes": nodes,
        "edges": edges,
        "totals": {**totals, "flops": 0, "macs": 0},
    }


SENSITIVITY = {
    "table": [
        {
            "layer": layer,
            "format": f"mxint{w}",
            "bits": w + 0.25,
            "elements": 64,
            "loss": 4.0**-w * k,
        }
        for k, layer in enumerate(("fc1", "fc2"), 1)
        for w in (2, 4, 8)
    ],
    "assignment": {"fc1": "mxint4", "fc2": "mxint8"},
    "bits": 5.25,
    "loss": 0.004,
}
