"""ONNX files that are damaged, or made to do harm: an error that names the file, and no more."""

import random

import numpy as np
import pytest
import torch
from mutations import damaged

onnx = pytest.importorskip("onnx", reason="needs masegraph[export]")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from chop import MaseGraph  # noqa: E402
from chop.errors import ChopError, ExportError  # noqa: E402
from chop.export import from_onnx  # noqa: E402
from chop.export.onnx_import.call import OPERATORS  # noqa: E402

NUMBERS = [0, 1, -1, 2, 3, 7, 64, 2**31, 2**40, 2**62, -(2**63)]


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


def judged(path):
    """What became of reading the file: an error that names it, or a graph."""
    try:
        graph = from_onnx(path)
    except ChopError as error:
        assert str(path) in str(error), str(error)
        return "refused"
    assert isinstance(graph, MaseGraph)
    return "read"


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


@pytest.mark.parametrize("part", range(2))
def test_random_damage_is_refused_by_name(part, tmp_path):
    data, path = model().SerializeToString(), tmp_path / "m.onnx"
    path.write_bytes(data)
    assert judged(path) == "read"
    seen = set()
    for seed in range(60):
        rng = random.Random(1000 * part + seed)
        changed = damaged(data, rng) if part == 0 else forged(model(), rng).SerializeToString()
        path.write_bytes(changed)
        seen.add(judged(path))
    assert "refused" in seen


def test_every_cut_is_refused_or_read_as_what_is_left(tmp_path):
    data, path = model().SerializeToString(), tmp_path / "m.onnx"
    for end in range(0, len(data), 97):
        path.write_bytes(data[:end])
        assert judged(path) == "refused"


def refused(proto, path, words):
    onnx.save(proto, path)
    with pytest.raises(ExportError, match=words) as found:
        from_onnx(path)
    assert str(path) in str(found.value)


def changed(change):
    proto = model()
    change(proto.graph)
    return proto


def test_what_is_wrong_is_told_with_its_place(tmp_path):
    path = tmp_path / "m.onnx"
    add = helper.make_node

    def cycle(graph):
        graph.node[0].input[0] = "y"

    refused(changed(cycle), path, r"node 'conv' \(Conv of ai.onnx, opset 21\): its input 'y' is")

    def twice(graph):
        graph.node[3].output[0] = "a"

    refused(changed(twice), path, r"node 'batch' .*: makes \['a'\], made before")

    def unknown(graph):
        graph.node.extend([add("Frobnicate", ["y"], ["z"], "own", domain="my.ops")])

    refused(
        changed(unknown),
        path,
        r"node 'own' \(Frobnicate of my.ops, opset 0\): not a known operator. Known: Abs, .*Xor",
    )

    def bomb(graph):
        graph.initializer[11].CopyFrom(tensor("wide", np.array([1 << 40, 1, 1])))

    refused(changed(bomb), path, r"node 'expand' .*: would make 1099511627776 elements")

    def short(graph):
        graph.initializer[0].dims[0] = 4

    refused(changed(short), path, r"initialiser 'kernel': 216 bytes for shape .*, expected 288")

    def branch(graph):
        inner = helper.make_graph([], "inner", [], [])
        graph.node.extend([add("If", ["y"], ["z"], "fork", then_branch=inner, else_branch=inner)])

    refused(changed(branch), path, r"node 'fork' \(If of ai.onnx, opset 21\): not a known")
    proto = model()
    proto.opset_import[0].version = 5
    refused(proto, path, r"opset 5 of ONNX. Allowed: 7 to 28")
    with pytest.raises(ExportError, match=r"absent.onnx: no such file"):
        from_onnx(tmp_path / "absent.onnx")


def external(location, **more):
    proto = model()
    held = proto.graph.initializer[0]
    data = held.raw_data
    held.ClearField("raw_data")
    held.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": 0, "length": len(data), **more}.items():
        held.external_data.add(key=key, value=str(value))
    return proto, data


def test_data_beside_the_file_are_read_and_no_others(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "m.onnx"
    proto, data = external("kernel.bin")
    (folder / "kernel.bin").write_bytes(data)
    path.write_bytes(proto.SerializeToString())
    onnx.save(model(), tmp_path / "whole.onnx")
    x = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(from_onnx(path).model(x), from_onnx(tmp_path / "whole.onnx").model(x))
    secret = tmp_path / "secret.bin"
    secret.write_bytes(data)
    (folder / "link.bin").symlink_to(secret)
    outside = r"Allowed: a file in this folder"
    for location in ("../secret.bin", str(secret), "link.bin", "", "a/../../secret.bin", "."):
        refused_raw(external(location)[0], path, outside if location != "." else "")
    refused_raw(external("absent.bin")[0], path, r"its file 'absent.bin' is missing")
    refused_raw(external("kernel.bin", offset=8)[0], path, r"bytes 8 to 224 of 'kernel.bin'")
    refused_raw(external("kernel.bin", offset=-4)[0], path, r"bytes -4 to 212")
    refused_raw(external("kernel.bin", length=4)[0], path, r"it needs 216")
    refused_raw(external("kernel.bin", offset="x")[0], path, r"cannot be read")


def refused_raw(proto, path, words):
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ExportError, match=words) as found:
        from_onnx(path)
    assert str(path) in str(found.value)
