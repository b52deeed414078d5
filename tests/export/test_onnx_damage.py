"""ONNX files that are damaged, or made to do harm: an error that names the file, and no more."""

import logging
import random

import numpy as np
import pytest
import torch
from covering import first_and_slow
from mutations import damaged

onnx = pytest.importorskip("onnx", reason="needs masegraph[export]")
import onnx_files  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_files import forged, model, tensor  # noqa: E402

from chop import MaseGraph  # noqa: E402
from chop.errors import ChopError, ExportError  # noqa: E402
from chop.export import from_onnx  # noqa: E402


def judged(path):
    """What became of reading the file: an error that names it, or a graph."""
    try:
        graph = from_onnx(path)
    except ChopError as error:
        assert str(path) in str(error), str(error)
        return "refused"
    assert isinstance(graph, MaseGraph)
    return "read"


@pytest.mark.parametrize("part", first_and_slow(range(2)))
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
        graph.node.extend([add("Scan", ["y"], ["z"], "fork", body=inner, num_scan_inputs=1)])

    refused(changed(branch), path, r"node 'fork' \(Scan of ai.onnx, opset 21\): not a known")
    proto = model()
    proto.opset_import[0].version = 5
    refused(proto, path, r"opset 5 of ONNX. Allowed: 6 to 28")
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


def test_inputs_whose_names_python_does_not_have_are_logged_with_their_new_ones(tmp_path, caplog):
    proto = onnx_files.float_model()
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "x:0"
    proto.graph.initializer[0].name = proto.graph.node[0].input[1] = "kernel:0"
    onnx.save(proto, tmp_path / "m.onnx")
    logger = logging.getLogger("chop")
    logger.addHandler(caplog.handler)
    try:
        graph = from_onnx(tmp_path / "m.onnx")
    finally:
        logger.removeHandler(caplog.handler)
    assert "m.onnx: 1 inputs have new names: 'x:0' is now 'x_0'." in caplog.text
    assert graph.model(x_0=torch.ones(2, 2, 4, 4)).shape == (2, 5)


def test_a_size_of_minus_one_is_open(tmp_path):
    proto = onnx_files.float_model()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(proto, tmp_path / "m.onnx")
    graph = from_onnx(tmp_path / "m.onnx")
    for batch in (1, 3):
        assert graph.model(torch.ones(batch, 2, 4, 4)).shape == (batch, 5)


@pytest.mark.parametrize(
    "operator, numbers, wanted",
    [
        ("Reshape", [[-1]], (6,)),
        ("Reshape", [[0, -1, 1]], (2, 3, 1)),
        ("Reshape", [[-1, 0]], (2, 3)),
        ("Slice", [[0], [-1], [1]], (2, 2)),
        ("Slice", [[-1], [-(2**63)], [1], [-1]], (2, 3)),
        ("Slice", [[-2], [2**63 - 1], [-1]], (2, 2)),
    ],
)
def test_sizes_and_places_of_minus_one_are_those_of_onnx(operator, numbers, wanted, tmp_path):
    names = [f"n{i}" for i in range(len(numbers))]
    constants = [tensor(n, np.array(v)) for n, v in zip(names, numbers, strict=True)]
    node = helper.make_node(operator, ["x", *names], ["y"])
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, [2, 3])], [value("y", TensorProto.FLOAT, None)]
    proto = helper.make_model(
        helper.make_graph([node], "g", *ends, constants),
        opset_imports=[helper.make_opsetid("", 21)],
    )
    onnx.save(proto, tmp_path / "m.onnx")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (reference,) = ReferenceEvaluator(proto).run(None, {"x": x})
    found = from_onnx(tmp_path / "m.onnx").model(torch.from_numpy(x))
    assert tuple(found.shape) == wanted and np.array_equal(found.numpy(), reference)
