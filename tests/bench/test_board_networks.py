"""Networks of other authors: read with any batch, and exact in RTL where their packages are."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from chop.actions import build_hardware

BENCH = Path(__file__).parents[2] / "bench"
PACKAGES = {
    "mnist_conv": ("qonnx", "package"),
    "super_resolution": ("qonnx",),
    "voice_activity": ("silero_vad", "pyannote_audio"),
    "wake_word": ("openwakeword", "pyannote_audio"),
}


@pytest.fixture
def board_networks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import board_networks

    yield board_networks
    for name in ("board_networks", "mnist_tables"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("name", PACKAGES)
def test_a_network_of_another_author_is_exact_in_rtl(name, board_networks, tmp_path):
    folder = Path(os.environ.get("MASE_MODELS", "models"))
    missing = [each for each in PACKAGES[name] if not (folder / each).is_dir()]
    if missing:
        pytest.skip(f"set MASE_MODELS to a folder with the unpacked {', '.join(missing)}")
    network = getattr(board_networks, name)(folder)
    built = build_hardware(
        network.graph,
        tmp_path,
        inputs=network.inputs,
        parallelism=network.settings,
        family=None,
    )
    assert built.verdict.is_exact
    assert built.verdict.compared > 0


def test_a_file_with_a_batch_of_one_is_read_with_an_open_batch(board_networks, tmp_path):
    onnx = pytest.importorskip("onnx")
    make, kind = onnx.helper.make_node, onnx.TensorProto.FLOAT
    matrix = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    constants = {"w": matrix, "rows": np.array([6, 4]), "flat": np.array([1, 6])}
    nodes = [
        make("Reshape", ["x", "flat"], ["f"]),
        make("Reshape", ["w", "rows"], ["m"]),  # of weights: no batch
        make("MatMul", ["f", "m"], ["y"]),
    ]
    info = onnx.helper.make_tensor_value_info
    stored = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = onnx.helper.make_graph(
        nodes, "g", [info("x", kind, [1, 2, 3])], [info("y", kind, [1, 4])], stored
    )
    onnx.save(onnx.helper.make_model(graph, ir_version=9), tmp_path / "m.onnx")
    x = torch.randn(5, 2, 3)
    found = board_networks.read_open(tmp_path / "m.onnx", x=(2, 2, 3)).model(x)
    torch.testing.assert_close(found, x.flatten(1) @ torch.from_numpy(matrix).reshape(6, 4))
