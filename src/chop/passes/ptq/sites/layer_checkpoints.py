"""Layers that a pass has done with, on disk: after an interruption it goes on behind them.

A folder has a file for each layer, under the fingerprint of the graph, the data and the settings:
what was made of others is neither read nor overwritten.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from chop.files import whole_file
from chop.ir.arguments import tensors_in
from chop.ir.fingerprint import LENGTH, add_tensor, graph_fingerprint
from chop.ir.graph import MaseGraph
from chop.ir.reclass import mask_name
from chop.log import get_logger
from chop.nn.modules.masked import stored_weight
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.ptq.sites.rounded_layers import WEIGHT
from chop.passes.ptq.sites.stored_scales import store_scale

logger = get_logger(__name__)

SCALE = f"{WEIGHT}_scale"
MASK = mask_name(WEIGHT)
RECORD = "record"

NOT_ASKED = ("data", "batches", "keep", "loss", "scores", "dummy_in")
"""Settings that say nothing of what is made, or that the batches and the graph say."""

Layers = Mapping[str, nn.Module]
"""Layers by the names of their modules."""


@dataclass(frozen=True)
class Kept:
    """Weights and scales of layers, and what was told of them."""

    tensors: Mapping[str, Tensor]
    record: dict[str, Any]

    def give_to(self, layers: Layers) -> dict[str, Any]:
        """Let `layers` have them; the record."""
        for target, layer in layers.items():
            old = stored_weight(layer)
            kept = self.tensors[f"{target}.{WEIGHT}"].to(old.device)
            layer.weight = nn.Parameter(kept, requires_grad=old.requires_grad)
            if f"{target}.{SCALE}" in self.tensors:
                store_scale(cast(QuantizedModule, layer), WEIGHT, self.tensors[f"{target}.{SCALE}"])
        return self.record


class KeptLayers:
    """What a pass has made of layers so far, by the layers' names; without a folder nothing."""

    def __init__(self, folder: Path | None, who: str) -> None:
        self.folder, self.who = folder, who
        self._is_told = False

    def find(self, layers: Layers, name: str) -> Kept | None:
        """What is kept of `layers` under `name`, if it is there and fits them."""
        file = None if self.folder is None else self._file(self.folder, name)
        if file is None or not file.is_file():
            return None
        found = _read(file, layers)
        if found is None:
            logger.warning("%s: %s cannot be used and is made again.", self.who, file)
        elif not self._is_told:
            logger.info("%s: goes on with what is in %s.", self.who, self.folder)
            self._is_told = True
        return found

    def put(self, layers: Layers, name: str, record: dict[str, Any]) -> dict[str, Any]:
        """Keep the weights of `layers` as they are now under `name`, with their record."""
        if self.folder is not None:
            tensors = {
                f"{target}.{key}": tensor.detach().cpu().contiguous()
                for target, layer in layers.items()
                for key in (WEIGHT, SCALE, MASK)
                if isinstance(tensor := getattr(layer, key, None), Tensor)
            }
            with whole_file(self._file(self.folder, name)) as draft:
                save_file(tensors, draft, metadata={RECORD: json.dumps(record)})
        return record

    @staticmethod
    def _file(folder: Path, name: str) -> Path:
        return folder / f"{name}.safetensors"


def _read(file: Path, layers: Layers) -> Kept | None:
    """The tensors and the record of a file; None where they are not those of `layers`."""
    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
            record = json.loads((opened.metadata() or {})[RECORD])
    except (SafetensorError, OSError, ValueError, KeyError):
        return None
    for target, layer in layers.items():
        weight, kept = cast(Tensor, layer.weight), tensors.get(f"{target}.{WEIGHT}")
        if kept is None or kept.shape != weight.shape or kept.dtype != weight.dtype:
            return None
    return Kept(tensors, record)


def kept_layers(
    folder: str | Path | None, graph: MaseGraph, batches: Sequence[Any], settings: Any, who: str
) -> KeptLayers:
    """What `who` has kept in `folder` of this graph, with these batches and settings."""
    if folder is None:
        return KeptLayers(None, who)
    names = {field.name for field in fields(settings)}
    asked = replace(settings, **dict.fromkeys(names.intersection(NOT_ASKED)))
    digest = hashlib.sha256(f"{who}:{asked}:{graph_fingerprint(graph)}".encode())
    for batch in batches:
        for number, tensor in enumerate(tensors_in(batch)):
            add_tensor(digest, str(number), tensor)
    return KeptLayers(Path(folder) / f"{who}-{digest.hexdigest()[:LENGTH]}", who)
