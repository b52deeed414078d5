"""ONNX files that are damaged, or made to do harm: an error that names the file, and no more."""

import random

import numpy as np
import pytest
import torch
from mutations import damaged

onnx = pytest.importorskip("onnx", reason="needs mase[export]")
from onnx import TensorProto, helper  # noqa: E402
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
