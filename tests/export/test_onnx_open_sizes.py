"""Files with open sizes stay open: read at one size, they run at all others."""

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx", reason="needs masegraph[export]")
runtime = pytest.importorskip("onnxruntime", reason="needs masegraph[export]")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from chop import MaseGraph  # noqa: E402
from chop.export import from_onnx  # noqa: E402
from chop.ir.guards import guards_of  # noqa: E402

RNG = np.random.default_rng(0)


def node(operator, inputs, outputs=("y",), **attributes):
    return helper.make_node(operator, list(inputs), list(outputs), **attributes)


def conv(**attributes):
    """Return a convolution of the input with a kernel of 3 x 3."""
    return [node("Conv", ("x", "kernel"), **attributes)]


def pool(operator, **attributes):
    return [node(operator, ("x",), kernel_shape=[2, 3], **attributes)]


def resized(**attributes):
    """Return a layer between two resizings by a factor, with the sizes of the input."""
    scaled = node("Resize", ("x", "", "factors"), ("a",), **attributes)
    return [scaled, node("Conv", ("a", "kernel"), pads=[1, 1, 1, 1])]


def shaped():
    """Return a resizing to sizes that are computed from the input, as PP-OCR has them."""
    return [
        node("Shape", ("x",), ("shape",)),
        node("Slice", ("shape", "zero", "two"), ("front",)),
        node("Slice", ("shape", "two", "four"), ("back",)),
        node("Mul", ("back", "two"), ("twice",)),
        node("Concat", ("front", "twice"), ("sizes",), axis=0),
        node("Resize", ("x", "", "", "sizes"), mode="linear"),
    ]


def clamped():
    """Return a padding up to a smallest size."""
    return [
        node("Shape", ("x",), ("shape",), start=3),
        node("Sub", ("twelve", "shape"), ("lack",)),
        node("Max", ("lack", "zero"), ("more",)),
        node("Concat", ("zero", "zero", "zero", "zero", "zero", "zero", "zero", "more"), ("pads",)),
        node("Pad", ("x", "pads")),
    ]


NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
NEAREST["nearest_mode"] = "floor"
SAME = ("SAME_UPPER", "SAME_LOWER")
MODELS = {
    **{f"Conv {a} stride {s}": conv(auto_pad=a, strides=[s, s]) for a in SAME for s in (1, 2, 4)},
    **{
        f"{p} {a}": pool(p, auto_pad=a, strides=[2, 2])
        for p in ("MaxPool", "AveragePool")
        for a in SAME
    },
    "Resize by factors": resized(**NEAREST),
    "Resize linear by factors": resized(mode="linear"),
    "Resize to sizes": shaped(),
    "Expand": [
        node("Shape", ("x",), ("shape",)),
        node("Expand", ("one", "shape"), ("ones",)),
        node("Add", ("x", "ones")),
    ],
    "largest of two sizes": clamped(),
}
CONSTANTS = {
    "kernel": RNG.standard_normal((2, 3, 3, 3)).astype(np.float32),
    "factors": np.float32([1, 1, 2, 2]),
    "one": np.float32([1]),
    "flat": np.array([-1, 48]),
    "image": np.array([-1, 3, 4, 4]),
    **{name: np.array([n]) for name, n in (("zero", 0), ("two", 2), ("four", 4), ("twelve", 12))},
}
SHAPES = ((1, 3, 8, 8), (2, 3, 7, 13), (5, 3, 16, 6), (1, 3, 21, 20))


def saved(nodes, sizes, path):
    """Write a file of these nodes and return its path."""
    for each in nodes:
        if each.op_type == "Concat" and not each.attribute:
            each.attribute.append(helper.make_attribute("axis", 0))
    value = helper.make_tensor_value_info
    used = {name for each in nodes for name in each.input}
    constants = [numpy_helper.from_array(v, n) for n, v in CONSTANTS.items() if n in used]
    ends = [value("x", TensorProto.FLOAT, sizes)], [value("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", *ends, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    onnx.save(model, path)
    return path


@pytest.mark.share(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_file_runs_at_sizes_that_it_was_not_read_at(name, tmp_path):
    path = saved(MODELS[name], ["n", 3, "height", "width"], tmp_path / "m.onnx")
    session = runtime.InferenceSession(str(path))
    graph = from_onnx(path)
    for shape in SHAPES:
        x = RNG.standard_normal(shape).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        found = graph.model(torch.from_numpy(x)).detach().numpy()
        assert found.shape == expected.shape
        assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["Conv SAME_UPPER stride 2", "MaxPool SAME_LOWER"])
def test_padding_of_fixed_sizes_is_fixed_and_the_batch_stays_open(name, tmp_path):
    path = saved(MODELS[name], ["n", 3, 9, 12], tmp_path / "m.onnx")
    graph = from_onnx(path)
    session = runtime.InferenceSession(str(path))
    for batch in (1, 4):
        x = RNG.standard_normal((batch, 3, 9, 12)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        assert np.allclose(graph.model(torch.from_numpy(x)).detach(), expected, atol=1e-5)
    pads = [n.args[1] for n in graph.nodes if n.target is torch.nn.functional.pad]
    assert all(type(p) is int for each in pads for p in each)


def test_sizes_of_minus_one_are_open(tmp_path):
    path = saved(conv(), ["n", 3, "h", "w"], tmp_path / "m.onnx")
    model = onnx.load(path)
    for size in model.graph.input[0].type.tensor_type.shape.dim:
        size.dim_value = -1 if not size.dim_value else size.dim_value
    onnx.save(model, path)
    graph = from_onnx(path)
    assert graph.model(torch.randn(3, 3, 5, 7)).shape == (3, 2, 3, 5)


def test_sizes_that_a_file_fixes_do_not_grow_into_expressions(tmp_path):
    """A chain of reshapes with -1 stays quick to follow: the batch is the only unknown."""
    nodes = []
    for i in range(40):
        nodes += [
            node("Reshape", (f"v{i}" if i else "x", "flat"), (f"w{i}",)),
            node("Reshape", (f"w{i}", "image"), (f"v{i + 1}",)),
        ]
    nodes.append(node("Identity", ("v40",)))
    graph = from_onnx(saved(nodes, ["n", 3, 4, 4], tmp_path / "m.onnx"))
    assert graph.model(torch.randn(5, 3, 4, 4)).shape == (5, 3, 4, 4)
    assert guards_of(graph.model) is not None
    assert {g.pins() for g in guards_of(graph.model).guards} >= {(("x",), 1), (("x",), 2)}
    assert (("x",), 0) not in {g.pins() for g in guards_of(graph.model).guards}


class Wrapped(torch.nn.Module):
    """A captured graph inside another model."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x)


def test_a_wrapped_graph_has_the_open_sizes_of_its_file(tmp_path):
    inner = from_onnx(saved(conv(), ["n", 3, 8, "w"], tmp_path / "m.onnx"))
    outer = MaseGraph(Wrapped(inner.model), dummy_in={"x": torch.randn(2, 3, 8, 9)})
    assert outer.open_sizes() == inner.open_sizes()
    assert outer.open_sizes()["x"][:3] == ["free", "pinned", "pinned"]
    x = torch.randn(5, 3, 8, 12)
    assert torch.equal(outer.model(x), inner.model(x))
