"""Small ONNX files, whole and forged."""

from __future__ import annotations

import functools
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from file_kinds import FAITHFUL, WRONG_SHAPES, Forged, Kind
from mutations import damaged
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from chop.export import from_onnx
from chop.export.onnx_import.call import OPERATORS

NUMBERS: list[int] = [0, 1, -1, 2, 3, 7, 64, 2**31, 2**40, 2**62, -(2**63)]


def tensor(name, values):
    return numpy_helper.from_array(np.asarray(values), name)


def model():
    """A convolution, sizes, a quantised layer, an embedding: some of everything."""
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    node = helper.make_node
    nodes = [
        node("Conv", ["x", "kernel"], ["a"], "conv", pads=[1, 1, 1, 1], strides=[1, 1]),
        node("MaxPool", ["a"], ["b"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", ["b"], ["shape"], "shape"),
        node("Gather", ["shape", "zero"], ["batch"], "batch"),
        node("Concat", ["batch", "rest"], ["sizes"], "sizes", axis=0),
        node("Reshape", ["b", "sizes"], ["c"], "flat"),
        node("DequantizeLinear", ["codes", "scale"], ["weight"], "values", axis=0),
        node("Gemm", ["c", "weight", "bias"], ["d"], "fc", transB=1),
        node("QuantizeLinear", ["d", "step", "middle"], ["q"], "quantise"),
        node("DequantizeLinear", ["q", "step", "middle"], ["e"], "dequantise"),
        node("ArgMax", ["e"], ["best"], "best", axis=1, keepdims=0),
        node("Gather", ["table", "best"], ["f"], "rows"),
        node("Pad", ["f", "pads"], ["g"], "pad"),
        node("Tile", ["g", "times"], ["h"], "tile"),
        node("Expand", ["h", "wide"], ["i"], "expand"),
        node("Add", ["i", "table_row"], ["y"], "sum"),
    ]
    constants = [
        tensor("kernel", drawn(3, 2, 3, 3)),
        tensor("zero", np.array([0])),
        tensor("rest", np.array([12])),
        tensor("codes", rng.integers(-9, 9, (5, 12)).astype(np.int8)),
        tensor("scale", np.abs(drawn(5)) + 0.1),
        tensor("bias", drawn(5)),
        tensor("step", np.float32(0.25)),
        tensor("middle", np.int8(0)),
        tensor("table", drawn(5, 4)),
        tensor("pads", np.array([0, 1, 0, 1])),
        tensor("times", np.array([1, 2])),
        tensor("wide", np.array([3, 1, 1])),
        tensor("table_row", drawn(12)),
    ]
    value = helper.make_tensor_value_info
    given = [value("x", TensorProto.FLOAT, ["batch", 2, 4, 4])]
    graph = helper.make_graph(nodes, "g", given, [value("y", TensorProto.FLOAT, None)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def float_model():
    """A small network without formats."""
    rng = np.random.default_rng(0)
    sizes = {"kernel": (4, 2, 3, 3), "fc": (6, 16), "bias": (6,), "last": (6, 5), "row": (5,)}
    constants = [tensor(n, rng.standard_normal(s).astype(np.float32)) for n, s in sizes.items()]
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "kernel"], ["a"], "conv", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"], "relu"),
        node("MaxPool", ["b"], ["c"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["c"], ["d"], "flat"),
        node("Gemm", ["d", "fc", "bias"], ["e"], "fc", transB=1),
        node("MatMul", ["e", "last"], ["f"], "product"),
        node("Add", ["f", "row"], ["y"], "sum"),
    ]
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, ["n", 2, 4, 4])], [value("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", *ends, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    made.ir_version = 10
    return made


def forged(proto, rng):
    """One to three changes of what a file says."""
    graph = proto.graph
    for _ in range(rng.choice((1, 1, 2, 3))):
        node, constant = rng.choice(graph.node), rng.choice(graph.initializer)
        kind = rng.randrange(10)
        if kind == 0 and node.input:
            names = [n for each in graph.node for n in (*each.input, *each.output)]
            node.input[rng.randrange(len(node.input))] = rng.choice([*names, "", "gone"])
        elif kind == 1:
            node.op_type = rng.choice(sorted(name for _, name in OPERATORS))
        elif kind == 2 and node.attribute:
            attribute = rng.choice(node.attribute)
            attribute.i = rng.choice(NUMBERS)
            attribute.ints[:] = [rng.choice(NUMBERS) for _ in range(rng.randrange(5))]
        elif kind == 3:
            constant.dims[:] = [rng.choice(NUMBERS) for _ in range(rng.randrange(4))]
        elif kind == 4:
            constant.data_type = rng.randrange(0, 26)
        elif kind == 5 and constant.data_type == TensorProto.INT64:
            count = len(constant.raw_data) // 8
            values = np.array([rng.choice(NUMBERS) for _ in range(count)])
            constant.raw_data = values.astype(np.int64).tobytes()
        elif kind == 6:
            graph.initializer.remove(constant)
        elif kind == 7:
            graph.node.remove(node)
        elif kind == 8:
            graph.node.insert(0, node)
        else:
            size = rng.choice(graph.input[0].type.tensor_type.shape.dim)
            size.dim_value = rng.choice(NUMBERS)
    return proto


ATTRIBUTES = (
    "axis",
    "axes",
    "perm",
    "to",
    "value",
    "alpha",
    "pads",
    "kernel_shape",
    "group",
    "mode",
)
ESCAPE = "\x1b[31mred\n\x07"


def odd(proto: Any, rng: random.Random) -> Any:
    """Change types, names, opsets or values that the other changes leave alone."""
    graph = proto.graph
    node, constant = rng.choice(graph.node), rng.choice(graph.initializer)
    kind = rng.randrange(10)
    if kind == 0:
        value = rng.choice((1, 1.5, "text", [1, 2], [0.5], ["a"], [2**62], -(2**63), float("nan")))
        node.attribute.append(helper.make_attribute(rng.choice(ATTRIBUTES), value))
    elif kind == 1 and node.attribute:
        rng.choice(node.attribute).type = rng.randrange(15)
    elif kind == 2:
        node.name = node.op_type = ESCAPE
    elif kind == 3:
        constant.name = rng.choice((ESCAPE, "", "x", "y", "a.b.c", "model/kernel:0"))
    elif kind == 4:
        proto.opset_import[0].version = rng.choice((0, 6, 7, 9, 11, 12, 13, 18, 28, 29, 2**62))
    elif kind == 5:
        proto.opset_import[0].domain = rng.choice(("", "ai.onnx", "x", "com.microsoft"))
    elif kind == 6 and constant.data_type == TensorProto.FLOAT:
        data = np.frombuffer(constant.raw_data, np.float32).copy()
        data[rng.randrange(len(data))] = rng.choice((np.nan, np.inf, 0, -1, 1e38))
        constant.raw_data = data.tobytes()
    elif kind == 7:
        node.domain = rng.choice(("ai.onnx", "x", "qonnx.custom_op.general"))
    elif kind == 8:
        graph.input[0].type.tensor_type.elem_type = rng.randrange(26)
    else:
        name = rng.choice([n for each in graph.node for n in each.output])
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return proto


def judged(folder: Path, rng: random.Random) -> str:
    """Write a forged file, read it, and compare the shapes with those of the reference."""
    proto = rng.choice((model, float_model))()
    for _ in range(rng.choice((0, 1, 1, 2))):
        proto = rng.choice((forged, odd))(proto, rng)
    data = proto.SerializeToString()
    (folder / "m.onnx").write_bytes(damaged(data, rng) if rng.random() < 0.15 else data)
    graph = from_onnx(folder / "m.onnx")
    return FAITHFUL if _has_shapes_of_reference(graph, folder / "m.onnx") else WRONG_SHAPES


def _has_shapes_of_reference(graph: Any, file: Path) -> bool:
    """Return whether outputs have the shapes that ONNX's own evaluator computes, if it can."""
    proto = onnx.load(file)
    sizes = [max(d.dim_value, 0) or 2 for d in proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.ones(sizes, np.float32)
    try:
        wanted = ReferenceEvaluator(proto).run(None, {"x": x})
    except Exception:  # the evaluator raises anything on files that it does not take
        return True
    made = graph.model(torch.from_numpy(x))
    found = list(made.values()) if isinstance(made, dict) else [made]
    return [tuple(f.shape) for f in found] == [np.shape(w) for w in wanted]


# -- files forged by hand ------------------------------------------------------------------------


def bare(nodes: list[Any], constants: list[Any], functions: Any = (), size: Any = 4) -> Any:
    """Return a file with one input x of `size` and one output y."""
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, [size])], [value("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", *ends, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions))


def made(operator: str, constants: dict[str, Any], **attributes: Any) -> Any:
    """Return a file that adds x to what `operator` makes of constants."""
    node = helper.make_node
    nodes = [
        node(operator, list(constants), ["big"], "bomb", **attributes),
        node("ReduceMax", ["big"], ["one"], keepdims=0),
        node("Add", ["x", "one"], ["y"], "sum"),
    ]
    return bare(nodes, [tensor(n, np.asarray(v)) for n, v in constants.items()])


def function(name: str, *calls: str) -> Any:
    """Return a function that calls others one after the other."""
    nodes = [
        helper.make_node(c, [f"v{i}"], [f"v{i + 1}"], domain="own" if c[0] == "f" else "")
        for i, c in enumerate(calls)
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["v0"], [f"v{len(calls)}"], nodes, opsets)


def laughs() -> Any:
    """Return a file of functions that each call the one before ten times."""
    functions = [function("f0", "Relu")]
    functions += [function(f"f{i}", *[f"f{i - 1}"] * 10) for i in range(1, 12)]
    return bare([helper.make_node("f11", ["x"], ["y"], domain="own")], [], functions)


def recursive(*names: str) -> Any:
    """Return a file of functions each of which calls the next, and the last the first."""
    functions = [function(n, "Relu", m) for n, m in zip(names, (*names[1:], names[0]), strict=True)]
    return bare([helper.make_node(names[0], ["x"], ["y"], domain="own")], [], functions)


def copies(count: int = 3000) -> Any:
    """Return a file of which each node makes a constant as large as the file's only one."""
    node = helper.make_node
    nodes = [node("Neg", [f"c{i}"], [f"c{i + 1}"]) for i in range(count)]
    nodes += [
        node("ReduceMax", [f"c{count}"], ["one"], keepdims=0),
        node("Add", ["x", "one"], ["y"]),
    ]
    return bare(nodes, [tensor("c0", np.zeros(1 << 18, np.float32))])


def outside(folder: Path, count: int, holes: bool = False) -> Any:
    """Return a file of `count` initialisers that lie on the same bytes of a file beside it."""
    data = folder / "data.bin"
    data.write_bytes(b"" if holes else bytes(1 << 24))
    os.truncate(data, (1 << 33) if holes else (1 << 24))
    constants = []
    for i in range(count):
        size = 1 << (31 if holes else 22)
        held = TensorProto(name=f"c{i}", dims=[size], data_type=TensorProto.FLOAT)
        held.data_location = TensorProto.EXTERNAL
        for key, value in {"location": "data.bin", "offset": "0", "length": str(4 * size)}.items():
            held.external_data.add(key=key, value=value)
        constants.append(held)
    node = helper.make_node
    nodes = [node("Concat", [c.name for c in constants], ["all"], axis=0)]
    nodes += [node("ReduceMax", ["all"], ["one"], keepdims=0), node("Add", ["x", "one"], ["y"])]
    return bare(nodes, constants)


def powers(count: int = 12) -> Any:
    """Return a file that takes the power of a size by itself, again and again."""
    node = helper.make_node
    nodes = [node("Shape", ["x"], ["s0"])]
    nodes += [node("Pow", [f"s{i}", f"s{i}"], [f"s{i + 1}"]) for i in range(count)]
    nodes += [node("Expand", ["x", f"s{count}"], ["y"])]
    return bare(nodes, [], size=64)


def branches(depth: int = 30) -> Any:
    """Return a file with a node of an operator whose name has control characters."""
    return bare([helper.make_node(ESCAPE, ["x"], ["y"], ESCAPE, domain=ESCAPE)], [])


LONG = np.zeros((1 << 16, 1), np.float32)
MAKES = r"would make [\d.]+ (bytes|elements)"
BOMBS: dict[str, tuple[Any, str]] = {
    "ConstantOfShape": (lambda: made("ConstantOfShape", {"n": [1 << 29]}), MAKES),
    "Expand": (lambda: made("Expand", {"v": np.float32([1]), "n": [1 << 29]}), MAKES),
    "Tile": (lambda: made("Tile", {"v": np.float32([1]), "n": [1 << 29]}), MAKES),
    "Range": (lambda: made("Range", {"a": 0, "b": 1 << 40, "c": 1}), MAKES),
    "sum of a row and a column": (lambda: made("Add", {"v": LONG, "w": LONG.T}), MAKES),
    "product of a column and a row": (lambda: made("MatMul", {"v": LONG, "w": LONG.T}), MAKES),
    "Einsum": (
        lambda: made("Einsum", {"v": LONG[:, 0], "w": LONG[:, 0]}, equation="i,j->ij"),
        MAKES,
    ),
    "Gather of one row": (
        lambda: made("Gather", {"v": LONG.T, "n": np.zeros(1 << 14, np.int64)}),
        MAKES,
    ),
    "OneHot": (
        lambda: made(
            "OneHot", {"v": np.zeros(1 << 12, np.int64), "n": [1 << 20], "w": np.float32([0, 1])}
        ),
        MAKES,
    ),
    "Pad": (lambda: made("Pad", {"v": LONG, "n": [0, 1 << 30, 0, 0]}), MAKES),
    "constants computed again and again": (copies, r"take \d+ bytes"),
    "functions that grow": (laughs, r"its functions make \d+ nodes"),
    "a function that calls itself": (lambda: recursive("f0"), "call themselves"),
    "functions that call each other": (lambda: recursive("f0", "f1", "f2"), "call themselves"),
    "powers of sizes": (powers, r"to the power of|bits"),
    "names with control characters": (branches, r"not a known operator"),
}


def forged_files() -> list[Forged]:
    """Return small files that ask for much memory or time, or carry odd names."""

    def write(make: Any, folder: Path) -> None:
        (folder / "m.onnx").write_bytes(make().SerializeToString())

    def write_outside(count: int, holes: bool, folder: Path) -> None:
        (folder / "m.onnx").write_bytes(outside(folder, count, holes).SerializeToString())

    rows = [
        Forged(f"onnx: {name}", functools.partial(write, make), _read, words)
        for name, (make, words) in BOMBS.items()
    ]
    shared, holes = (
        functools.partial(write_outside, 200, False),
        functools.partial(write_outside, 1, True),
    )
    rows.append(Forged("onnx: initialisers on the same bytes", shared, _read, "share the bytes of"))
    rows.append(Forged("onnx: data in holes", holes, _read, "without large holes"))
    return rows


def _read(folder: Path) -> Any:
    return from_onnx(folder / "m.onnx")


def warm_up() -> None:
    """Read valid files."""
    with tempfile.TemporaryDirectory() as folder:
        for make in (model, float_model):
            onnx.save(make(), Path(folder, "m.onnx"))
            _has_shapes_of_reference(_read(Path(folder)), Path(folder, "m.onnx"))


KINDS = {"ONNX": Kind(judged, 0.03)}
