"""Words rendered as images for PP-OCR: the text, the place and the direction are known.

Training rows of recognition and detection have the outputs of the float model as labels.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np
import onnx
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage
from torch import Tensor

from chop.actions import METRICS
from chop.dataset import DATASETS, ArrayDataset
from chop.export import from_onnx

FOLDER = "rapidocr-onnxruntime/rapidocr_onnxruntime/models"
RECOGNITION, DETECTION = "ch_PP-OCRv4_rec_infer.onnx", "ch_PP-OCRv4_det_infer.onnx"
WORDS = [
    "capture",
    "quantise",
    "weight",
    "Kernel",
    "2026",
    "Signal",
    "bridge",
    "WINDOW",
    "mirror",
    "packet",
    "orange",
    "40317",
    "River",
    "silver",
    "module",
    "Printer",
    "58.25",
    "export",
    "Garden",
    "number",
    "yellow",
    "HARBOUR",
    "stream",
    "planet",
    "7:45",
    "Letter",
]
ROWS = {"train": 64, "test": 48}
MEAN, SPREAD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def _file(name: str) -> Path:
    return Path(os.environ["MASE_MODELS"], FOLDER, name)


def _text(draw: np.random.Generator) -> str:
    return " ".join(draw.choice(WORDS, 2))


def _line(text: str, height: int, width: int, draw: np.random.Generator) -> np.ndarray:
    """Return an image of one line, dark on light, with noise; values from 0 to 255."""
    image = Image.new("RGB", (width, height), tuple(draw.integers(200, 256, 3).tolist()))
    size = int(draw.integers(height // 2, height * 3 // 4))
    font = ImageFont.load_default(size)
    while font.getlength(text) > width - 8:
        font = ImageFont.load_default(font.size - 1)
    colour = tuple(draw.integers(0, 80, 3).tolist())
    ImageDraw.Draw(image).text((4, height // 2), text, colour, font, anchor="lm")
    return np.asarray(image) + draw.normal(0, 3, (height, width, 3))


def _tensor(images: list[np.ndarray]) -> Tensor:
    return torch.tensor(np.stack(images).transpose(0, 3, 1, 2), dtype=torch.float32)


# -- recognition --------------------------------------------------------------------------------

SIZE, PLACES = (48, 320), 40
"""Height and width of an image, and places along it at which the model reads."""


@DATASETS.entry("rendered-text")
@functools.cache
def rendered_text() -> dict[str, ArrayDataset]:
    """Return images of two words; labels have a class for each place."""
    draw = np.random.default_rng(0)
    texts = {name: [_text(draw) for _ in range(rows)] for name, rows in ROWS.items()}
    images = {
        n: _tensor([_line(t, *SIZE, draw) for t in ts]) / 127.5 - 1 for n, ts in texts.items()
    }
    model = from_onnx(_file(RECOGNITION)).model
    with torch.no_grad():
        read = torch.cat([model(rows).argmax(-1) for rows in images["train"].split(8)])
    labels = {"train": read, "test": torch.tensor([_spelled(t) for t in texts["test"]])}
    return {n: ArrayDataset({"x": images[n], "labels": labels[n]}) for n in ROWS}


@functools.cache
def _alphabet() -> list[str]:
    """Return the characters of the classes from 1 on; class 0 is blank."""
    model = onnx.load(_file(RECOGNITION))
    stored = {entry.key: entry.value for entry in model.metadata_props}
    return [*stored["character"].splitlines(), " "]


def _spelled(text: str) -> list[int]:
    """Return classes that are read as `text`: its characters with blanks between."""
    classes = [c for letter in text for c in (_alphabet().index(letter) + 1, 0)]
    return [*classes, *[0] * (PLACES - len(classes))][:PLACES]


@METRICS.entry("texts_read")
def texts_read(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of the texts that are read without a fault."""
    pairs = zip(scores.argmax(-1), labels, strict=True)
    return float(np.mean([_read(ours) == _read(true) for ours, true in pairs]))


def _read(classes: np.ndarray) -> str:
    """Return the text: repeated classes count once, blanks and spaces at the ends not at all."""
    starts = np.diff(classes, prepend=-1) != 0
    return "".join(_alphabet()[c - 1] for c in classes[starts] if c).strip()


# -- direction ----------------------------------------------------------------------------------


@DATASETS.entry("turned-text")
@functools.cache
def turned_text() -> dict[str, ArrayDataset]:
    """Return images of two words; those with label 1 are upside down."""
    draw = np.random.default_rng(1)
    splits = {}
    for name, rows in ROWS.items():
        labels = [n % 2 for n in range(rows)]
        lines = [_line(_text(draw), 48, 192, draw) for _ in labels]
        turned = [np.rot90(x, 2) if label else x for x, label in zip(lines, labels, strict=True)]
        columns = {"x": _tensor(turned) / 127.5 - 1, "labels": torch.tensor(labels)}
        splits[name] = ArrayDataset(columns)
    return splits


# -- detection ----------------------------------------------------------------------------------

PAGE, LINES = (160, 320), 3


@DATASETS.entry("pages")
@functools.cache
def pages() -> dict[str, ArrayDataset]:
    """Return pages with one word on each of three lines; labels are 1 inside the words."""
    draw = np.random.default_rng(2)
    splits = {name: _pages(draw, rows // 2) for name, rows in ROWS.items()}
    model, train = from_onnx(_file(DETECTION)).model, splits["train"].columns["x"]
    with torch.no_grad():
        outputs = torch.cat([model(rows) for rows in train.split(4)])
    return {**splits, "train": ArrayDataset({"x": train, "labels": outputs})}


def _pages(draw: np.random.Generator, rows: int) -> ArrayDataset:
    images, masks = [], np.zeros((rows, 1, *PAGE), dtype=np.float32)
    for row in range(rows):
        image = Image.new("RGB", PAGE[::-1], (245, 240, 235))
        for line in range(LINES):
            place = (int(draw.integers(8, 150)), 10 + line * 50)
            font = ImageFont.load_default(int(draw.integers(20, 30)))
            pen, word = ImageDraw.Draw(image), str(draw.choice(WORDS))
            pen.text(place, word, (20, 20, 60), font)
            left, top, right, bottom = map(int, pen.textbbox(place, word, font))
            masks[row, 0, top : bottom + 1, left : right + 1] = 1
        images.append((np.asarray(image) / 255 - MEAN) / SPREAD)
    return ArrayDataset({"x": _tensor(images), "labels": torch.tensor(masks)})


@METRICS.entry("words_found")
def words_found(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the F-measure of regions above 0.3 and words: a region is in one word, and back."""
    hits = regions = words = 0
    for score, label in zip(scores[:, 0], labels[:, 0], strict=True):
        true, count = ndimage.label(label > 0.5)
        ours, found = ndimage.label(score > 0.3)
        centres = ndimage.center_of_mass(ours > 0, ours, range(1, found + 1))
        inside = [true[round(y), round(x)] for y, x in centres]
        hits += sum(inside.count(word) == 1 for word in range(1, count + 1))
        regions, words = regions + found, words + count
    return 2 * hits / max(regions + words, 1)
