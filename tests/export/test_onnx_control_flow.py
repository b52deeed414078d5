"""`If`, `Loop` and sequences of ONNX files, and inputs that are made constants."""

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx", reason="needs masegraph[export]")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from chop import MaseGraph  # noqa: E402
from chop.errors import ExportError, SizeError  # noqa: E402
from chop.export import from_onnx  # noqa: E402

RNG = np.random.default_rng(0)
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WEIGHTS = RNG.standard_normal((4, 4)).astype(np.float32)
value = helper.make_tensor_value_info


def node(operator, inputs, outputs=("y",), **attributes):
    return helper.make_node(operator, list(inputs), list(outputs), **attributes)


def constant(name, values):
    return numpy_helper.from_array(np.asarray(values), name)


def graph(nodes, inputs, output, constants=()):
    outputs = [value(name, TensorProto.UNDEFINED, None) for name in output]
    return helper.make_graph(list(nodes), "g", inputs, outputs, list(constants))


def branches(other="Neg"):
    """Return two branches; values inside have the names of values elsewhere."""
    linear = [node("MatMul", ("x", "w"), ("inner",)), node("Relu", ("inner",), ("out",))]
    then = graph(linear, [], ("out",), [constant("w", WEIGHTS)])
    return {
        "then_branch": then,
        "else_branch": graph([node(other, ("x",), ("out",))], [], ("out",)),
    }


def file_of(nodes, path, constants=(), extra=(), opset=17):
    inputs = [value("x", FLOAT, ["n", 4]), *extra]
    main = helper.make_graph(nodes, "g", inputs, [value("y", FLOAT, None)], list(constants))
    model = helper.make_model(main, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.save(model, path)
    return path


def expected(path, x, **others):
    return ReferenceEvaluator(str(path)).run(None, {"x": x, **others})[0]


X = RNG.standard_normal((3, 4)).astype(np.float32)


@pytest.mark.parametrize("condition", [True, False])
def test_an_if_with_a_constant_condition_is_its_branch(condition, tmp_path):
    nodes = [
        node("If", ("c",), ("a",), **branches()),
        node("If", ("c",), ("b",), **branches("Abs")),
    ]
    nodes.append(node("Add", ("a", "b")))
    path = file_of(nodes, tmp_path / "m.onnx", [constant("c", condition)])
    read = from_onnx(path)
    assert np.allclose(read.model(torch.from_numpy(X)).detach(), expected(path, X), atol=1e-6)
    linear = [m for m in read.model.modules() if isinstance(m, torch.nn.Linear)]
    assert len(linear) == (2 if condition else 0)


@pytest.mark.parametrize("opened", [1, 5])
def test_an_if_on_a_size_becomes_a_guard(opened, tmp_path):
    nodes = [
        node("Shape", ("x",), ("shape",), end=1),
        node("Greater", ("shape", "two"), ("c",)),
        node("If", ("c",), **branches()),
    ]
    path = file_of(nodes, tmp_path / "m.onnx", [constant("two", [2])])
    x = RNG.standard_normal((opened, 4)).astype(np.float32)
    read = from_onnx(path, inputs={"x": torch.from_numpy(x)})
    assert np.allclose(read.model(torch.from_numpy(x)).detach(), expected(path, x), atol=1e-6)
    with pytest.raises(SizeError):
        read.model(torch.randn(5 if opened == 1 else 1, 4))


def test_an_if_on_a_value_selects_between_branches_of_the_same_shape(tmp_path):
    nodes = [
        node("ReduceSum", ("x",), ("sum",), keepdims=0),
        node("Greater", ("sum", "zero"), ("c",)),
        node("If", ("c",), **branches()),
    ]
    path = file_of(nodes, tmp_path / "m.onnx", [constant("zero", np.float32(0))])
    read = from_onnx(path)
    for x in (np.abs(X), -np.abs(X)):
        assert np.allclose(read.model(torch.from_numpy(x)).detach(), expected(path, x), atol=1e-6)


def rate_file(path):
    """Return a file whose branch depends on an input, and whose branches have other shapes."""
    both = branches()
    both["else_branch"] = graph([node("Concat", ("x", "x"), ("out",), axis=1)], [], ("out",))
    nodes = [node("Equal", ("rate", "fast"), ("c",)), node("If", ("c",), **both)]
    return file_of(nodes, path, [constant("fast", 16000)], [value("rate", INT64, [])])


@pytest.mark.parametrize("rate", [8000, 16000])
def test_an_input_made_constant_decides_an_if(rate, tmp_path):
    path = rate_file(tmp_path / "m.onnx")
    read = from_onnx(path, constants={"rate": rate})
    found = read.model(torch.from_numpy(X)).detach()
    assert np.allclose(found, expected(path, X, rate=np.array(rate)), atol=1e-6)


def test_a_branch_that_depends_on_values_is_refused_by_name(tmp_path):
    path = rate_file(tmp_path / "m.onnx")
    with pytest.raises(ExportError, match=r"If.*condition 'c' depends on values.*constants="):
        from_onnx(path)


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({"speed": 1}, r"constants: no input 'speed'\. Its inputs: \['x', 'rate'\]"),
        ({"rate": [1, 2]}, r"constants: 'rate' has shape \[2\]\. Allowed: \[\]"),
        ({"rate": "fast"}, r"constants: 'rate' is no tensor"),
    ],
)
def test_constants_that_no_input_takes_are_refused(constants, words, tmp_path):
    with pytest.raises(ExportError, match=words):
        from_onnx(rate_file(tmp_path / "m.onnx"), constants=constants)


def loop_body(*, is_endless=False):
    """Return x -> relu(x W) with a count, and the sum of each step."""
    nodes = [
        node("MatMul", ("state", "w"), ("inner",)),
        node("Relu", ("inner",), ("next",)),
        node("ReduceSum", ("next",), ("total",), keepdims=0),
        node("Add", ("count", "one"), ("more",)),
        node("Less", ("more", "enough"), ("below",)),
        node("Identity", ("going" if is_endless else "below",), ("again",)),
    ]
    inputs = [value("step", INT64, []), value("going", BOOL, [])]
    inputs += [value("state", FLOAT, None), value("count", INT64, [])]
    constants = [constant("w", WEIGHTS), constant("one", 1), constant("enough", 3)]
    return graph(nodes, inputs, ("again", "next", "more", "total"), constants)


def test_a_loop_is_unrolled(tmp_path):
    outputs = ("last", "count", "totals")
    nodes = [node("Loop", ("most", "", "x", "none"), outputs, body=loop_body())]
    nodes += [node("ReduceSum", ("totals",), ("s",)), node("Add", ("last", "s"))]
    constants = [constant("most", 10), constant("none", 0)]
    read = from_onnx(file_of(nodes, tmp_path / "m.onnx", constants))
    for x in (torch.from_numpy(X), torch.from_numpy(X[:1])):
        state, total = x, torch.zeros(())
        for _ in range(3):
            state = torch.relu(state @ torch.from_numpy(WEIGHTS))
            total = total + state.sum()
        assert torch.allclose(read.model(x), state + total, atol=1e-4)
    assert len([m for m in read.model.modules() if isinstance(m, torch.nn.Linear)]) == 1
    read.export(tmp_path / "saved")
    again = MaseGraph.from_checkpoint(tmp_path / "saved")
    assert torch.equal(again.model(torch.from_numpy(X)), read.model(torch.from_numpy(X)))


def test_a_loop_without_end_is_refused(tmp_path):
    outputs = ("y", "count", "totals")
    nodes = [node("Loop", ("most", "", "x", "none"), outputs, body=loop_body(is_endless=True))]
    constants = [constant("most", 1 << 40), constant("none", 0)]
    path = file_of(nodes, tmp_path / "m.onnx", constants)
    with pytest.raises(ExportError, match=r"Loop.*run more than \d+ nodes"):
        from_onnx(path, inputs={"x": torch.from_numpy(X)})


def test_sequences_grow_in_a_loop(tmp_path):
    body = graph(
        [
            node("Mul", ("x", "two"), ("twice",)),
            node("SequenceInsert", ("parts", "twice"), ("longer",)),
            node("Identity", ("going",), ("again",)),
        ],
        [value("step", INT64, []), value("going", BOOL, []), value("parts", FLOAT, None)],
        ("again", "longer"),
        [constant("two", np.float32(2))],
    )
    nodes = [
        node("SequenceEmpty", (), ("empty",)),
        node("Loop", ("three", "", "empty"), ("all",), body=body),
        node("ConcatFromSequence", ("all",), axis=0),
    ]
    read = from_onnx(file_of(nodes, tmp_path / "m.onnx", [constant("three", 3)]))
    assert torch.equal(read.model(torch.from_numpy(X)), torch.from_numpy(X).repeat(3, 1) * 2)


def test_a_graph_that_makes_no_such_value_is_refused(tmp_path):
    both = branches()
    both["else_branch"].output[0].name = "gone"
    path = file_of([node("If", ("c",), **both)], tmp_path / "m.onnx", [constant("c", True)])
    with pytest.raises(ExportError, match="its graph makes no 'gone'"):
        from_onnx(path)
