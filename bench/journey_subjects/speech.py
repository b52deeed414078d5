"""Recorded speech of the package pyannote-audio, with its true segments.

silero-vad has the segments as labels. openwakeword's embedding has the outputs of the float model.
"""

from __future__ import annotations

import functools
import os
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from chop.actions import METRICS
from chop.actions.trainer import scores_of
from chop.dataset import DATASETS, ArrayDataset
from chop.export import from_onnx

RATE, WINDOW, CONTEXT, STATE = 16_000, 512, 64, 128
CHUNK = 32
"""Windows that follow each other, as one batch; chunks are training and test rows in turn."""
SAMPLE = "pyannote-audio/pyannote/audio/sample/sample"


def _place(name: str) -> Path:
    return Path(os.environ["MASE_MODELS"], name)


def _recording() -> np.ndarray:
    with wave.open(str(_place(f"{SAMPLE}.wav"))) as opened:
        return np.frombuffer(opened.readframes(opened.getnframes()), "<i2") / 2**15


class VoiceActivity(nn.Module):
    """The model from an empty state; its rows are windows that follow each other."""

    def __init__(self) -> None:
        super().__init__()
        file = _place("silero-vad/silero_vad/data/silero_vad_16k_sequence.onnx")
        self.network = from_onnx(file).model
        self.register_buffer("state", torch.zeros(1, 1, STATE))

    def forward(self, input: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of silence and of speech."""
        speech = scores_of(self.network(input, self.state, self.state)).clamp(1e-6, 1 - 1e-6)
        return torch.stack([1 - speech, speech], -1).log()


def voice_activity() -> tuple[VoiceActivity, Tensor]:
    """Return the model and the windows to capture it with."""
    return VoiceActivity(), speech()["test"].columns["input"][:CHUNK]


@DATASETS.entry("speech")
@functools.cache
def speech() -> dict[str, ArrayDataset]:
    """Return windows of 32 ms with their context; label 1 if a person speaks in the middle."""
    audio = _recording()
    count = len(audio) // WINDOW
    padded = np.concatenate([np.zeros(CONTEXT), audio])
    rows = np.stack([padded[n * WINDOW : (n + 1) * WINDOW + CONTEXT] for n in range(count)])
    middles = (np.arange(count) + 0.5) * WINDOW / RATE
    labels = np.zeros(count, dtype=np.int64)
    for line in _place(f"{SAMPLE}.rttm").read_text().splitlines():
        begin, length = map(float, line.split()[3:5])
        labels |= (begin <= middles) & (middles < begin + length)
    chunk = np.arange(count) // CHUNK
    whole = chunk < count // CHUNK
    return {
        name: _dataset(rows[whole & (chunk % 2 == odd)], labels[whole & (chunk % 2 == odd)])
        for name, odd in (("train", 1), ("test", 0), ("validation", 1))
    }


def _dataset(rows: np.ndarray, labels: np.ndarray) -> ArrayDataset:
    columns = {"input": torch.tensor(rows, dtype=torch.float32)}
    return ArrayDataset({**columns, "labels": torch.tensor(labels)})


# -- openwakeword: embeddings -------------------------------------------------------------------

WAKE = "openwakeword/openwakeword/resources/models/"
FRAMES, STEP = 76, 8
"""Frames of a spectrogram per embedding, and from one to the next."""


@DATASETS.entry("spectrograms")
@functools.cache
def spectrograms() -> dict[str, ArrayDataset]:
    """Return pieces of the spectrogram of the recording, with the embeddings of the float model."""
    audio = torch.tensor(_recording() * 2**15, dtype=torch.float32)[None]
    embed = from_onnx(_place(f"{WAKE}embedding_model.onnx")).model
    with torch.no_grad():
        frames = from_onnx(_place(f"{WAKE}melspectrogram.onnx")).model(audio)
        frames = frames.reshape(-1, 32) / 10 + 2
        rows = frames.unfold(0, FRAMES, STEP).transpose(1, 2)[..., None].contiguous()
        labels = embed(rows)
    test = torch.arange(len(rows)) % 3 == 0
    return {
        name: ArrayDataset({"input": rows[chosen], "labels": labels[chosen]})
        for name, chosen in (("train", ~test), ("test", test))
    }


@METRICS.entry("cosine_to_float")
def cosine_to_float(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean cosine of the outputs and those of the float model."""
    ours, theirs = scores.reshape(len(scores), -1), labels.reshape(len(labels), -1)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(1) / lengths).mean())
