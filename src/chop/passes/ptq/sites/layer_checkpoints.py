"""Per-layer checkpoints, so that an interrupted pass can resume.

A folder has a file for each layer, under the fingerprint of the graph, the data and the settings.
Checkpoints of other graphs, data or settings are neither read nor overwritten.
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
from chop.ir.graph import MaseGraph
from chop.ir.graph_fingerprint import LENGTH, add_tensor, graph_fingerprint
from chop.ir.node_arguments import tensors_in
from chop.ir.reclass import mask_name
from chop.log import get_logger
from chop.nn.modules.masked import stored_weight
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.ptq.sites.rounded_layers import WEIGHT, replace_weight, store_scale

logger = get_logger(__name__)

SCALE = f"{WEIGHT}_scale"
MASK = mask_name(WEIGHT)
RECORD = "record"

IGNORED = ("data", "batches", "keep", "loss", "scores", "dummy_in", "spill")
"""Settings that do not change the result, or that the batches and the graph decide."""

Layers = Mapping[str, nn.Module]
"""Layers by the names of their modules."""


@dataclass(frozen=True)
class LayerCheckpoint:
    """Weights and scales of layers, and their record in the report."""

    tensors: Mapping[str, Tensor]
    record: dict[str, Any]

    def restore(self, layers: Layers) -> dict[str, Any]:
        """Restore the tensors in `layers`; return the record."""
        for target, layer in layers.items():
            replace_weight(
                layer, self.tensors[f"{target}.{WEIGHT}"].to(stored_weight(layer).device)
            )
            if f"{target}.{SCALE}" in self.tensors:
                store_scale(cast(QuantizedModule, layer), WEIGHT, self.tensors[f"{target}.{SCALE}"])
        return self.record


class LayerCheckpoints:
    """Checkpoints of a pass, by the layers' names; none without a folder."""

    def __init__(self, folder: Path | None, who: str) -> None:
        self.folder, self.who = folder, who
        self._is_logged = False

    def find(self, layers: Layers, name: str) -> LayerCheckpoint | None:
        """Return the checkpoint `name` if it exists and fits `layers`."""
        if self.folder is None or not (file := self.folder / f"{name}.safetensors").is_file():
            return None
        checkpoint = _read(file, layers)
        if checkpoint is None:
            logger.warning("%s: checkpoint %s cannot be used, recomputing.", self.who, file)
        elif not self._is_logged:
            logger.info("%s: resumes from the checkpoints in %s.", self.who, self.folder)
            self._is_logged = True
        return checkpoint

    def put(self, layers: Layers, name: str, record: dict[str, Any]) -> dict[str, Any]:
        """Store the weights of `layers` under `name`, with their record; return the record."""
        if self.folder is not None:
            tensors = {
                f"{target}.{key}": tensor.detach().cpu().contiguous()
                for target, layer in layers.items()
                for key in (WEIGHT, SCALE, MASK)
                if isinstance(tensor := getattr(layer, key, None), Tensor)
            }
            with whole_file(self.folder / f"{name}.safetensors") as draft:
                save_file(tensors, draft, metadata={RECORD: json.dumps(record)})
        return record


def _read(file: Path, layers: Layers) -> LayerCheckpoint | None:
    """Return the checkpoint in `file`, or None if it does not fit `layers`."""
    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
            record = json.loads((opened.metadata() or {})[RECORD])
    except (SafetensorError, OSError, ValueError, KeyError):
        return None
    for target, layer in layers.items():
        weight, stored = cast(Tensor, layer.weight), tensors.get(f"{target}.{WEIGHT}")
        if stored is None or stored.shape != weight.shape or stored.dtype != weight.dtype:
            return None
    return LayerCheckpoint(tensors, record)


def layer_checkpoints(
    folder: str | Path | None, graph: MaseGraph, batches: Sequence[Any], settings: Any, who: str
) -> LayerCheckpoints:
    """Return the checkpoints of the pass `who` for this graph, these batches and settings."""
    if folder is None:
        return LayerCheckpoints(None, who)
    names = {field.name for field in fields(settings)}
    settings = replace(settings, **dict.fromkeys(names.intersection(IGNORED)))
    digest = hashlib.sha256(f"{who}:{settings}:{graph_fingerprint(graph)}".encode())
    for batch in batches:
        for number, tensor in enumerate(tensors_in(batch)):
            add_tensor(digest, str(number), tensor)
    return LayerCheckpoints(Path(folder) / f"{who}-{digest.hexdigest()[:LENGTH]}", who)
