"""Synthesised tones for swift-f0 and basic-pitch: the frequencies and onsets are exact.

Training rows have the outputs of the float model as labels; test rows have the true values.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from chop.actions import METRICS
from chop.actions.trainer import scores_of
from chop.dataset import DATASETS, ArrayDataset
from chop.export import from_onnx

HARMONICS = 6
ROWS = {"train": 16, "validation": 8, "test": 16}
BATCH = 4
"""Rows of every batch: a graph of this model is for one size."""


def tone(frequency: np.ndarray, rate: int) -> np.ndarray:
    """Return a tone with falling harmonics; `frequency` in Hz for each sample."""
    phase = 2 * np.pi * np.cumsum(frequency) / rate
    parts = [np.sin(n * phase) / n**1.5 * (n * frequency < rate / 2) for n in range(1, HARMONICS)]
    return 0.3 * np.sum(parts, axis=0)


# -- swift-f0: pitch ----------------------------------------------------------------------------

PITCH_RATE, HOP, FRAMES = 16_000, 256, 64
LOWEST, HIGHEST = 46.875, 2093.75
"""Range of the model in Hz."""


class Pitch(nn.Module):
    """The model with its range of frequencies; rows are joined to the one row that it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.network = from_onnx(
            Path(os.environ["MASE_MODELS"], "swift-f0/swift_f0/model.onnx")
        ).model
        self.register_buffer("low", torch.tensor(LOWEST))
        self.register_buffer("high", torch.tensor(HIGHEST))

    def forward(self, audio: Tensor) -> Tensor:
        """Return the pitch of each frame in Hz."""
        pitch = scores_of(self.network(audio.reshape(1, -1), self.low, self.high))
        return pitch.float().reshape(audio.shape[0], -1)


def pitch() -> tuple[Pitch, Tensor]:
    """Return the model and the rows to capture it with."""
    return Pitch(), tones()["test"].columns["audio"][:BATCH]


@DATASETS.entry("tones")
@functools.cache
def tones() -> dict[str, ArrayDataset]:
    """Return slow glides at random frequencies, with the frequency of each frame."""
    draw = np.random.default_rng(0)
    return {name: _glides(draw, rows) for name, rows in ROWS.items()}


def _glides(draw: np.random.Generator, rows: int) -> ArrayDataset:
    start = 80 * (1200 / 80) ** draw.random((rows, 1))
    glide = 2 ** (draw.uniform(-0.1, 0.1, (rows, 1)) * np.linspace(0, 1, HOP * FRAMES))
    curves = start * glide
    audio = np.stack([tone(curve, PITCH_RATE) for curve in curves])
    audio += 0.003 * draw.standard_normal(audio.shape)
    labels = torch.tensor(curves[:, HOP // 2 :: HOP], dtype=torch.float32)
    return ArrayDataset({"audio": torch.tensor(audio, dtype=torch.float32), "labels": labels})


@METRICS.entry("pitch_accuracy")
def pitch_accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of frames within 50 cents of the true frequency; edges are not counted."""
    inner = slice(10, -10)  # the model looks 10 frames ahead and back, into other rows
    cents = 1200 * np.abs(np.log2(np.maximum(scores, 1) / labels))[:, inner]
    return float((cents < 50).mean())


# -- basic-pitch: notes -------------------------------------------------------------------------

NOTE_RATE, SAMPLES, NOTE_FRAMES, KEYS, FIRST_KEY = 22_050, 43_844, 172, 88, 27.5
FEW = {"train": 16, "test": 16}


@DATASETS.entry("notes")
@functools.cache
def notes() -> dict[str, ArrayDataset]:
    """Return four notes a row, with ones at their onsets; training rows have the float outputs."""
    draw = np.random.default_rng(1)
    splits = {name: _melodies(draw, rows) for name, rows in FEW.items()}
    model = from_onnx(Path(os.environ["MASE_MODELS"], NOTE_MODEL)).model
    train = splits["train"].columns["input"]
    with torch.no_grad():
        outputs = torch.cat([scores_of(model(rows)) for rows in train.split(4)])
    return {**splits, "train": ArrayDataset({"input": train, "labels": outputs})}


NOTE_MODEL = "basic-pitch/basic_pitch/saved_models/icassp_2022/nmp.onnx"


def _melodies(draw: np.random.Generator, rows: int) -> ArrayDataset:
    audio, labels = np.zeros((rows, SAMPLES)), np.zeros((rows, NOTE_FRAMES, KEYS))
    for row in range(rows):
        for begin, end, key in _notes(draw):
            frequency = np.full(end - begin, FIRST_KEY * 2 ** (key / 12))
            fade = np.minimum(1, np.arange(end - begin)[::-1] / 500)
            audio[row, begin:end] = (
                tone(frequency, NOTE_RATE) * fade * np.exp(-np.arange(end - begin) / 12_000)
            )
            labels[row, begin * NOTE_FRAMES // SAMPLES, key] = 1
    columns = {"input": torch.tensor(audio[..., None], dtype=torch.float32)}
    return ArrayDataset({**columns, "labels": torch.tensor(labels, dtype=torch.float32)})


def _notes(draw: np.random.Generator) -> Iterator[tuple[int, int, int]]:
    """Yield first sample, last sample and key of four notes, one after the other."""
    begin = int(draw.integers(2_000, 4_000))
    for _ in range(4):
        length = int(draw.integers(7_000, 9_500))
        yield begin, begin + length, int(draw.integers(20, 68))
        begin += length + 200


@METRICS.entry("onset_f1")
def onset_f1(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the F-measure of notes with the right key whose onset is within 50 ms."""
    near = 4  # frames of 11.6 ms
    high = scores > 0.5
    peaks = high & (scores >= np.roll(scores, 1, 1)) & (scores > np.roll(scores, -1, 1))
    hits = sum(
        peaks[r, max(t - near, 0) : t + near + 1, k].any() for r, t, k in np.argwhere(labels > 0.5)
    )
    return float(2 * hits / max(peaks.sum() + (labels > 0.5).sum(), 1))
