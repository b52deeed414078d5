"""Every operator that is read computes what the reference of ONNX computes."""

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx", reason="needs masegraph[export]")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from traced_zoo import tensors  # noqa: E402

from chop.export import from_onnx  # noqa: E402
from chop.export.onnx_import.call import OPERATORS, OWN  # noqa: E402
from chop.export.onnx_import.onnx_file import OnnxFile  # noqa: E402
from chop.export.onnx_import.onnx_model import build_model  # noqa: E402
from chop.export.onnx_import.quantised import DOMAINS  # noqa: E402
from chop.export.onnx_import.rewrites import Folded  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)
UNIT = (RNG.random((2, 3, 4)) * 0.8 + 0.1).astype(np.float32)
IMAGE = RNG.standard_normal((2, 4, 7, 9)).astype(np.float32)
ROW = RNG.standard_normal(4).astype(np.float32)
TABLE = RNG.standard_normal((6, 4)).astype(np.float32)
WHOLE = RNG.integers(-9, 9, (2, 3, 4))
TRUTH = X > 0


def ints(*values):
    return np.array(values, dtype=np.int64)


def floats(*values):
    return np.array(values, dtype=np.float32)


def words(text):
    return text.split()


UNARY = words(
    "Abs Atan Asinh Ceil Cos Cosh Erf Exp Floor HardSwish IsNaN Mish Neg Reciprocal Relu Round "
    "Sigmoid Sign Sin Sinh Softplus Softsign Tan Tanh Identity Gelu LeakyRelu Elu Celu Selu "
    "HardSigmoid ThresholdedRelu Shrink Softmax LogSoftmax Hardmax IsInf Dropout Swish"
)
BINARY = words("Add Sub Mul Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Sum Mean")
REDUCTIONS = words(
    "ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare "
    "ReduceLogSumExp"
)
NORM = [floats(*RNG.random(4) + 0.5) for _ in range(4)]
W_CONV = RNG.standard_normal((6, 2, 3, 3)).astype(np.float32)
W_TURNED = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)
BIAS = RNG.standard_normal(6).astype(np.float32)
SOUND = RNG.standard_normal((2, 64, 1)).astype(np.float32)
BYTES = RNG.integers(0, 9, (2, 2, 6, 6)).astype(np.uint8)
RESIZE = {"coordinate_transformation_mode": "pytorch_half_pixel"}
CODES = RNG.integers(-8, 8, (6, 4)).astype(np.int8)

# operator, inputs (arrays; those in a list are constants of the file), attributes, opset
CASES = [
    *((name, (X,), {}) for name in UNARY if name != "Swish"),
    ("Swish", (X,), {}, 24),
    *((name, (UNIT,), {}) for name in ("Acos", "Asin", "Atanh", "Log", "Sqrt")),
    ("Acosh", (UNIT + 1,), {}),
    ("Gelu", (X,), {"approximate": "tanh"}),
    ("Not", (TRUTH,), {}),
    *((name, (TRUTH, X < 0.5), {}) for name in ("And", "Or", "Xor")),
    *((name, (WHOLE, WHOLE + 1), {}) for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    ("BitwiseNot", (WHOLE,), {}),
    *((name, (X, ROW), {}) for name in BINARY),
    *((name, (X, [ROW]), {}) for name in ("Add", "Mul")),
    *((name, (X, [floats(0.5)[0]]), {}) for name in ("Add", "Mul", "Max", "Min")),
    ("Pow", (UNIT, [np.float32(0.5)]), {}),
    ("Pow", (UNIT, ROW), {}),
    ("Div", (WHOLE, [ints(3)]), {}),
    ("Mod", (WHOLE, [ints(5)]), {}),
    ("Mod", (X, [floats(0.7)]), {"fmod": 1}),
    ("Clip", (X, [np.float32(-0.5)], [np.float32(0.7)]), {}),
    ("Clip", (X, np.float32(-0.5), [np.float32(0.7)]), {}),
    ("Clip", (X, [np.float32(-0.5)], np.float32(0.7)), {}),
    ("Clip", (X,), {"min": -0.5, "max": 0.7}, 10),
    ("PRelu", (X, [ROW]), {}),
    ("Where", (TRUTH, X, [np.float32(0)]), {}),
    ("Cast", (X,), {"to": TensorProto.INT64}),
    ("CastLike", (X, WHOLE), {}),
    ("Softmax", (X,), {"axis": 1}),
    *((name, (X, [ints(1)]), {}) for name in REDUCTIONS),
    ("ReduceMean", (X,), {"axes": [0, 2], "keepdims": 0}, 13),
    ("ReduceSum", (X,), {}),
    ("ReduceLogSum", (UNIT, [ints(1)]), {}),
    *((name, (X,), {"axis": 1}) for name in ("ArgMax", "ArgMin")),
    ("ArgMax", (np.round(X),), {"axis": 2, "select_last_index": 1, "keepdims": 0}),
    ("TopK", (X, [ints(2)]), {}),
    ("CumSum", (X, [ints(1)[0]]), {}),
    ("CumSum", (X, [ints(1)[0]]), {"exclusive": 1, "reverse": 1}),
    ("MatMul", (X, TABLE.T.copy()), {}),
    ("MatMul", (X, [TABLE.T.copy()]), {}),
    ("Gemm", (X[0], [TABLE], [BIAS]), {"transB": 1}),
    ("Gemm", (X[0], [TABLE.T.copy()], [BIAS]), {}),
    ("Gemm", (X[0], [TABLE], [BIAS]), {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Einsum", (X, TABLE), {"equation": "abc,dc->adb"}),
    ("Reshape", (X, [ints(0, -1)]), {}),
    ("Flatten", (IMAGE,), {}),
    ("Flatten", (IMAGE,), {"axis": 2}),
    ("Flatten", (IMAGE,), {"axis": 0}),
    ("Squeeze", (X[:, :1], [ints(1)]), {}),
    ("Squeeze", (X[:, :1],), {"axes": [1]}, 11),
    ("Unsqueeze", (X, [ints(0, -1)]), {}),
    ("Transpose", (X,), {"perm": [2, 0, 1]}),
    ("Transpose", (X,), {}),
    ("Concat", (X, X * 2), {"axis": 1}),
    ("Expand", (X[:, :1], [ints(3, 1)]), {}),
    ("Expand", (X[:, :1], [ints(2, 2, 3, 4)]), {}),
    ("Tile", (X, [ints(1, 2, 2)]), {}),
    ("Slice", (X, [ints(1, 0)], [ints(2**62, -1)], [ints(1, 2)], [ints(1, 2)]), {}),
    ("Slice", (X, [ints(-1)], [ints(-(2**62))], [ints(2)], [ints(-1)]), {}),
    ("Slice", (X,), {"starts": [1], "ends": [3], "axes": [2]}, 9),
    ("Split", (X, [ints(1, 3)]), {"axis": 2}, 21, 2),
    ("Split", (X,), {"axis": 2, "num_outputs": 2}, 21, 2),
    ("Gather", ([TABLE], ints(1, 5, 0)), {}),
    ("Gather", (X, [ints(0, -1)]), {"axis": 1}),
    ("Gather", (X, [ints(1)[0]]), {"axis": 2}),
    ("GatherElements", (X, RNG.integers(0, 3, (2, 2, 4))), {"axis": 1}),
    ("GatherND", (X, [np.array([[0, 1], [1, 2]])]), {}),
    ("GatherND", (X, [np.array([[1], [2]])]), {"batch_dims": 1}),
    ("ScatterND", (X, [np.array([[0, 1], [1, 2]])], X[:, 0]), {}),
    ("ScatterElements", (X, RNG.integers(0, 3, (2, 1, 4)), X[:, :1]), {"axis": 1}),
    ("OneHot", (ints(1, 0, 2), [ints(4)[0]], [floats(0, 1)]), {}),
    ("Trilu", (X,), {}),
    ("Trilu", (X, [ints(-1)[0]]), {"upper": 0}),
    ("NonZero", (TRUTH,), {}),
    ("Pad", (X, [ints(0, 1, 0, 0, 0, 2)], [np.float32(1.5)]), {}),
    ("Pad", (IMAGE, [ints(0, 0, 1, 2, 0, 0, 2, 1)]), {"mode": "reflect"}),
    ("Pad", (IMAGE, [ints(0, 0, 1, 2, 0, 0, 2, 1)]), {"mode": "edge"}),
    ("DepthToSpace", (IMAGE,), {"blocksize": 2}),
    ("DepthToSpace", (IMAGE,), {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", (IMAGE[:, :, :6, :8],), {"blocksize": 2}),
    ("EyeLike", (X[0],), {"k": 1}),
    ("Shape", (X,), {}),
    ("Size", (X,), {}),
    ("ConstantOfShape", ([ints(2, 3)],), {}),
    ("Range", ([ints(1)[0]], [ints(9)[0]], [ints(2)[0]]), {}),
    ("GlobalAveragePool", (IMAGE,), {}),
    ("GlobalMaxPool", (IMAGE,), {}),
    ("MaxPool", (IMAGE,), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 0]}),
    ("MaxPool", (IMAGE,), {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 1, 1, 0]}),
    ("AveragePool", (IMAGE,), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("AveragePool", (IMAGE,), {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("Conv", (IMAGE, [W_CONV], [BIAS]), {"group": 2, "pads": [1, 1, 1, 1]}),
    ("Conv", (IMAGE, [W_CONV]), {"group": 2, "strides": [2, 2], "pads": [0, 1, 1, 0]}),
    ("Conv", (IMAGE, W_CONV), {"group": 2, "auto_pad": "SAME_LOWER"}),
    ("ConvTranspose", (IMAGE, [W_TURNED]), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("BatchNormalization", (IMAGE, *([n] for n in NORM)), {}),
    ("LayerNormalization", (X, [ROW], [NORM[0]]), {}),
    ("LayerNormalization", (X, ROW), {}),
    ("RMSNormalization", (X, [ROW]), {}, 23),
    ("GroupNormalization", (IMAGE, [NORM[0]], [NORM[1]]), {"num_groups": 2}),
    ("InstanceNormalization", (IMAGE, [NORM[0]], [NORM[1]]), {}),
    ("LpNormalization", (X,), {"axis": 1}),
    ("Resize", (IMAGE, "", "", [ints(2, 4, 14, 18)]), {"mode": "linear"}),
    *(
        ("Resize", (IMAGE, "", [floats(1, 1, *factors)]), settings)
        for factors in ((0.6, 1.5), (2, 2))
        for settings in (
            {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
            {"mode": "nearest"},
            {"mode": "nearest", "nearest_mode": "ceil"},
            {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
            {"mode": "cubic", "coordinate_transformation_mode": "asymmetric"},
        )
    ),
    ("Resize", (IMAGE, "", "", [ints(2, 4, 1, 4)]), {**RESIZE, "mode": "linear"}),
    ("TopK", (np.round(X), [ints(2)]), {}),
    ("SpaceToDepth", (IMAGE[:, :, :6, :8],), {"blocksize": 2, "mode": "CRD"}, 25),
    ("MatMulInteger", (CODES[:3], [CODES.T.copy()], [np.int8(2)], [np.int8(-1)]), {}),
    ("ConvInteger", (BYTES, [BYTES[:, :, :3, :3]], [np.uint8(3)], [np.uint8(1)]), {}),
    ("DynamicQuantizeLinear", (X,), {}, 21, 3),
    ("STFT", (SOUND, [ints(8)[0]], [np.hanning(16).astype(np.float32)]), {}),
    ("STFT", (SOUND, [ints(4)[0]], "", [ints(16)[0]]), {"onesided": 0}),
    ("DFT", (SOUND[:, :16], "", [ints(1)[0]]), {}),
    ("DFT", (SOUND[:, :16],), {"onesided": 1, "axis": 1}, 17),
    ("SoftmaxCrossEntropyLoss", (TABLE, ints(0, 1, 2, 3, 0, 1)), {}),
    ("NegativeLogLikelihoodLoss", (TABLE, ints(0, 1, 2, 3, 0, 1)), {}),
    ("DequantizeLinear", ([CODES], [floats(*np.abs(BIAS))]), {"axis": 0}),
    ("DequantizeLinear", ([CODES], [np.float32(0.5)], [np.int8(3)]), {}),
    ("QuantizeLinear", (X, [np.float32(0.1)], [np.int8(3)]), {}),
    (
        "QLinearMatMul",
        (
            *(CODES[:3].view(np.uint8), [np.float32(0.125)], [np.uint8(7)]),
            *([CODES.T.copy()], [np.float32(0.25)], [np.int8(0)]),
            *([np.float32(0.5)], [np.uint8(100)]),
        ),
        {},
    ),
]
SEQUENCES = {"SplitToSequence", "SequenceConstruct", "SequenceAt", "ConcatFromSequence"}
SEQUENCES |= {"SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "If", "Loop"}
ELSEWHERE = SEQUENCES | {"LSTM", "GRU", "RNN", "LRN", "Constant", "Scatter", "Upsample"}
"""Tried by other tests, or another name of what is tried; the reference's LRN is not runtimes'."""


def model_of(name, inputs, attributes, opset=21, outputs=1):
    """A file of one node, and its inputs."""
    names, given, constants, values = [], {}, [], []
    for i, value in enumerate(inputs):
        if isinstance(value, str):
            names.append("")
            continue
        names.append(f"in{i}")
        if isinstance(value, list):
            constants.append(numpy_helper.from_array(np.asarray(value[0]), f"in{i}"))
            continue
        given[f"in{i}"] = np.asarray(value)
        kind = helper.np_dtype_to_tensor_dtype(given[f"in{i}"].dtype)
        values.append(helper.make_tensor_value_info(f"in{i}", kind, given[f"in{i}"].shape))
    made = [f"out{i}" for i in range(2 if name == "TopK" else outputs)]
    node = helper.make_node(name, names, made, name="it", **attributes)
    results = [helper.make_tensor_value_info(m, TensorProto.UNDEFINED, None) for m in made]
    graph = helper.make_graph([node], "g", values, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), given


@pytest.mark.share(3)
@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_it_computes_what_the_reference_computes(case, tmp_path):
    model, given = model_of(*case)
    onnx.save(model, tmp_path / "m.onnx")
    built = build_model(Folded(OnnxFile(tmp_path / "m.onnx")))
    found = built.build({k: torch.from_numpy(v.copy()) for k, v in given.items()})
    expected = ReferenceEvaluator(model).run(None, given)
    read = found.values() if isinstance(found, dict) else [found]
    for ours, theirs in zip(read, expected, strict=True):
        mine = ours.detach().numpy() if isinstance(ours, torch.Tensor) else np.asarray(ours)
        assert mine.shape == np.shape(theirs)
        assert np.allclose(mine, theirs, atol=2e-5, rtol=1e-5)


def test_softmax_of_older_files_takes_the_rest_of_the_dimensions_as_one(tmp_path):
    model, _ = model_of("Softmax", (X,), {"axis": 1}, 11)
    onnx.save(model, tmp_path / "m.onnx")
    found = from_onnx(tmp_path / "m.onnx").model(torch.from_numpy(X.copy()))
    expected = torch.from_numpy(X.copy()).flatten(1).softmax(-1).reshape(X.shape)
    assert torch.equal(found, expected)


def test_every_operator_has_a_case():
    tried = {c[0] for c in CASES} | ELSEWHERE | {"QLinearConv"}
    known = {name for domain, name in OPERATORS if domain not in (OWN, *DOMAINS)}
    assert known - tried == set()


def test_sequences_are_read(tmp_path):
    nodes = [
        helper.make_node("SplitToSequence", ["x", "two"], ["s"], axis=2),
        helper.make_node("SequenceAt", ["s", "one"], ["b"]),
        helper.make_node("SequenceConstruct", ["b", "b"], ["t"]),
        helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=1),
    ]
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    constants = [numpy_helper.from_array(ints(v)[0], n) for v, n in ((2, "two"), (1, "one"))]
    graph = helper.make_graph(nodes, "g", values, results, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    onnx.save(made, tmp_path / "m.onnx")
    back = from_onnx(tmp_path / "m.onnx")
    x = torch.from_numpy(X.copy())
    assert torch.equal(tensors(back.model(x))[0], torch.cat([x[..., 2:]] * 2, 1))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "LRN"])
def test_recurrent_layers_compute_what_onnxruntime_computes(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="needs masegraph[export]")
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}.get(name, 1)
    x = RNG.standard_normal((5, 2, 3)).astype(np.float32)
    sizes = ((2, gates * 4, 3), (2, gates * 4, 4), (2, 2 * gates * 4))
    weights = [[RNG.standard_normal(s).astype(np.float32)] for s in sizes]
    settings = {"direction": "bidirectional", "hidden_size": 4}
    settings |= {"linear_before_reset": 1} if name == "GRU" else {}
    case = (name, (x, *weights), settings) if name != "LRN" else (name, (IMAGE,), {"size": 3})
    model, given = model_of(*case)
    model.ir_version = 10
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(model, tmp_path / "m.onnx")
    expected = runtime.InferenceSession(model.SerializeToString()).run(None, given)[0]
    back = from_onnx(tmp_path / "m.onnx")
    with torch.no_grad():
        found = back.model(torch.from_numpy(given["in0"].copy()))
    assert np.allclose(found.numpy(), expected, atol=1e-5)
