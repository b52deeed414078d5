"""Samples of wine for tabpfn, which learns from labelled rows in its input.

The labelled rows are part of the model here; each row of the data is one question.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from sklearn.datasets import load_wine
from torch import Tensor, nn

from chop.dataset import DATASETS, ArrayDataset

CHECKPOINT = "tabpfn/tabpfn/models_diff/prior_diff_real_checkpoint_n_0_epoch_42.cpkt"
FEATURES, WIDTH, HEADS, LAYERS, HIDDEN, CLASSES = 100, 512, 4, 12, 1024, 10
"""Sizes of the published checkpoint."""


@functools.cache
def _wine() -> tuple[Tensor, Tensor]:
    """Return rows as tabpfn reads them, in a random order: standardised, padded, scaled."""
    content = load_wine()
    x, y = torch.tensor(content.data).float(), torch.tensor(content.target)
    x = (x - x.mean(0)) / x.std(0) * FEATURES / x.shape[1]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return nn.functional.pad(x, (0, FEATURES - x.shape[1]))[order], y[order]


@DATASETS.entry("wine")
@functools.cache
def wine() -> dict[str, ArrayDataset]:
    """Return questions; the first third of the samples is the labelled rows in the model."""
    x, y = _wine()
    third = len(x) // 3
    parts = {"train": slice(third, 2 * third), "test": slice(2 * third, None)}
    return {n: ArrayDataset({"x": x[part], "labels": y[part]}) for n, part in parts.items()}


class Layer(nn.Module):
    """One layer of an encoder, normalised after each part; rows attend to the labelled ones."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.linear1, self.linear2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, rows: Tensor, labelled: Tensor) -> Tensor:
        """Return the next values of `rows`."""
        parts = (self.query(rows), self.key(labelled), self.value(labelled))
        q, k, v = (p.unflatten(-1, (HEADS, -1)).transpose(0, 1)[None] for p in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        rows = self.norm1(rows + self.out(mixed[0].transpose(0, 1).flatten(1)))
        return self.norm2(rows + self.linear2(nn.functional.gelu(self.linear1(rows))))

    def load(self, weights: Mapping[str, Tensor], prefix: str) -> None:
        """Copy the weights of a layer of the checkpoint, which joins query, key and value."""
        own = {
            name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)
        }
        for kind in ("weight", "bias"):
            joined = own.pop(f"self_attn.in_proj_{kind}").chunk(3)
            own |= dict(zip((f"query.{kind}", f"key.{kind}", f"value.{kind}"), joined, strict=True))
            own[f"out.{kind}"] = own.pop(f"self_attn.out_proj.{kind}")
        self.load_state_dict(own)


class Classifier(nn.Module):
    """The checkpoint with labelled rows; its input is rows without labels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.y_encoder = nn.Linear(FEATURES, WIDTH), nn.Linear(1, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        ends = (nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CLASSES))
        self.decoder = nn.Sequential(*ends)
        self._load(Path(os.environ["MASE_MODELS"], CHECKPOINT))
        x, y = _wine()
        self.register_buffer("x", x[: len(x) // 3])
        self.register_buffer("y", y[: len(x) // 3, None].float())

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the three classes."""
        labelled, rows = self.encoder(self.x) + self.y_encoder(self.y), self.encoder(x)
        for layer in self.layers:
            labelled, rows = layer(labelled, labelled), layer(rows, labelled)
        return self.decoder(rows)[:, :3]

    def _load(self, file: Path) -> None:
        stored = torch.load(file, map_location="cpu", weights_only=True)[0]
        weights = {name.removeprefix("module."): value for name, value in stored.items()}
        for number, layer in enumerate(self.layers):
            layer.load(weights, f"transformer_encoder.layers.{number}.")
        for part in ("encoder", "y_encoder", "decoder"):
            own = {
                n.removeprefix(f"{part}."): w
                for n, w in weights.items()
                if n.startswith(f"{part}.")
            }
            getattr(self, part).load_state_dict(own)
