"""Tensors of a checkpoint: each stored once, with a checksum, and shared again on load.

A checkpoint is a `.json` and a `.safetensors` with the same id. The tensors are first written under
a temporary name. Replacing the `.json` makes the new checkpoint valid. A reader uses the temporary
file if it was not renamed yet.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from chop.errors import CheckpointError
from chop.files import bring_to_disk, folder_lock, make_folder, parse_json, read_text, shown
from chop.log import get_logger

logger = get_logger(__name__)
FORMAT = "mase-graph"
IDENTITY = re.compile(r"[0-9a-f]{32}", re.ASCII)
LARGEST_EXPANSION = 1 << 20
"""Most elements of a view that is larger than the tensor whose memory it shares."""
_LEFTOVER = re.compile(r"\.(json|safetensors)\.[0-9a-f]+", re.ASCII)
Facts = dict[str, dict[str, Any]]
"""Dtype, shape, checksum and, if not contiguous, strides of each stored tensor."""


def stored_tensors(
    named: Iterable[tuple[str, Tensor]],
) -> tuple[dict[str, Tensor], dict[str, str], dict[str, Any]]:
    """Return the tensors to store, names that share one of them, and names of views."""
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    own: dict[str, Tensor] = {}
    for name, tensor in named:
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            own[name] = tensor.detach()
    views = _views(own)
    return {n: t for n, t in own.items() if n not in views}, aliases, views


def _views(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the tensors that share the memory of another, with their place in it."""
    groups: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.layout == torch.strided and tensor.numel() and tensor.device.type != "meta":
            key = (tensor.untyped_storage().data_ptr(), tensor.dtype, tensor.device)
            groups.setdefault(key, []).append(name)
    views: dict[str, Any] = {}
    for names in groups.values():
        base = max(names, key=lambda n: (_is_dense(tensors[n]), tensors[n].numel()))
        for name in names:
            place = _place(tensors[name], tensors[base])
            if name != base and _is_dense(tensors[base]) and place is not None:
                views[name] = {"of": base, **place}
    return views


def _place(part: Tensor, whole: Tensor) -> dict[str, Any] | None:
    """Return the place of `part` in the memory of `whole`, or None if it reaches beyond."""
    offset = part.storage_offset() - whole.storage_offset()
    if offset < 0 or offset + _reach(part.shape, part.stride()) > whole.numel():
        return None
    return {"offset": offset, "shape": list(part.shape), "stride": list(part.stride())}


def _reach(shape: Iterable[int], stride: Iterable[int]) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def _is_dense(tensor: Tensor) -> bool:
    return _fills(tensor.shape, tensor.stride())


def _fills(shape: Iterable[int], stride: Iterable[int]) -> bool:
    """Return True if a tensor fills its memory exactly once, in any order of dimensions."""
    step = 1
    for s, n in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1):
        if s != step:
            return False
        step *= n
    return True


def facts_of(tensors: Mapping[str, Tensor]) -> Facts:
    """Return the facts that are checked when the tensors are read."""
    facts: Facts = {}
    for name, tensor in tensors.items():
        facts[name] = {**_kind(tensor), "sha256": checksum(tensor.contiguous())}
        if not tensor.is_contiguous() and _is_dense(tensor):
            facts[name]["stride"] = list(tensor.stride())
    return facts


def _kind(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}


def checksum(tensor: Tensor) -> str:
    """Return the SHA-256 of the values of a contiguous tensor."""
    values = tensor.detach().cpu().reshape(-1)
    data: Any = values.view(torch.uint8).numpy() if values.numel() else b""
    return hashlib.sha256(data).hexdigest()


def with_suffix(path: Path, suffix: str) -> Path:
    """Return `path` with a suffix; another dot is part of the name."""
    stem = path.name.removesuffix(".json").removesuffix(".safetensors")
    return path.with_name(stem + suffix)


def waiting(file: Path, identity: str) -> Path:
    """Return the temporary path of a file of the checkpoint `identity`."""
    return file.with_name(f".{file.name}.{identity}")


def write_pair(path: Path, text: str, tensors: Mapping[str, Tensor], identity: str) -> None:
    """Write both files so that a reader always finds the whole old or the whole new checkpoint.

    Processes that write to the same folder take turns. Files of interrupted writes are removed.
    """
    make_folder(path.parent)
    weights, graph = with_suffix(path, ".safetensors"), with_suffix(path, ".json")
    ready, draft = waiting(weights, identity), waiting(graph, identity)
    plain = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    with folder_lock(path.parent):
        tidy(path)
        try:
            save_file(plain, ready, metadata={"format": FORMAT, "id": identity})
            draft.write_text(text)
            bring_to_disk(ready)
            bring_to_disk(draft)
            os.replace(draft, graph)  # now the new checkpoint is valid
        except BaseException:
            draft.unlink(missing_ok=True)
            ready.unlink(missing_ok=True)
            raise
        os.replace(ready, weights)
        bring_to_disk(path.parent)


def move_pair(source: Path, target: Path) -> None:
    """Replace the checkpoint at `target` by the one at `source`, as `write_pair` does."""
    identity = _identity(with_suffix(source, ".json"))
    if identity is None:
        raise CheckpointError(f"{source}: not a checkpoint of this package.")
    tidy(target)
    weights = with_suffix(target, ".safetensors")
    os.replace(with_suffix(source, ".safetensors"), waiting(weights, identity))
    os.replace(with_suffix(source, ".json"), with_suffix(target, ".json"))
    os.replace(waiting(weights, identity), weights)


def tidy(path: Path) -> None:
    """Complete or remove an interrupted write of this checkpoint."""
    weights, graph = with_suffix(path, ".safetensors"), with_suffix(path, ".json")
    identity = _identity(graph)
    if identity is not None and waiting(weights, identity).is_file():
        os.replace(waiting(weights, identity), weights)
    stem = f".{graph.name.removesuffix('.json')}"
    for file in graph.parent.glob(".*"):
        rest = file.name.removeprefix(stem)
        if file.name.startswith(stem) and _LEFTOVER.fullmatch(rest):
            file.unlink(missing_ok=True)


def _identity(graph: Path) -> str | None:
    try:
        content = parse_json(read_text(graph, CheckpointError), str(graph), CheckpointError)
    except CheckpointError:
        return None
    identity = content.get("id") if isinstance(content, dict) else None
    return identity if isinstance(identity, str) and IDENTITY.fullmatch(identity) else None


def read_tensors(weights: Path, identity: Any) -> dict[str, Tensor]:
    """Return the tensors of the checkpoint `identity`."""
    if not isinstance(identity, str) or not IDENTITY.fullmatch(identity):
        raise CheckpointError(f"{weights}: the checkpoint's id is {shown(identity)}.")
    ready = waiting(weights, identity)
    if not weights.is_file() and not ready.is_file():
        raise CheckpointError(
            f"{weights}: no such file; a checkpoint is a .json and a .safetensors."
        )
    for file in (weights, ready):
        tensors, owner = _open(file) if file.is_file() else ({}, None)
        if owner == identity:
            return tensors
    raise CheckpointError(f"{weights}: belongs to another checkpoint than its .json file.")


def _open(file: Path) -> tuple[dict[str, Tensor], str | None]:
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in list(opened.keys())}
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file}: damaged safetensors file ({error}).") from error
    return tensors, metadata.get("id")


def check_facts(tensors: dict[str, Tensor], facts: Any, where: str) -> dict[str, Tensor]:
    """Check the tensors against their facts; return them with their strides."""
    if not isinstance(facts, dict) or facts.keys() != tensors.keys():
        raise CheckpointError(f"{where}: the file does not hold the tensors that tensors lists.")
    return {n: _checked(t, facts[n], f"{where}, tensor '{n}'") for n, t in tensors.items()}


def _checked(tensor: Tensor, facts: Any, where: str) -> Tensor:
    if not isinstance(facts, dict) or not {"dtype", "shape", "sha256"} <= facts.keys():
        raise CheckpointError(f"{where}: expected dtype, shape and sha256, got {shown(facts)}.")
    for key, value in _kind(tensor).items():
        if facts[key] != value:
            raise CheckpointError(f"{where}: {key} is {value}, the graph says {shown(facts[key])}.")
    if facts["sha256"] != checksum(tensor):
        raise CheckpointError(f"{where}: its checksum is not the one it was saved with.")
    stride = facts.get("stride")
    return tensor if stride is None else _with_stride(tensor, stride, where)


def _with_stride(tensor: Tensor, stride: Any, where: str) -> Tensor:
    is_numbers = isinstance(stride, list) and all(type(s) is int and s > 0 for s in stride)
    if is_numbers and len(stride) == tensor.dim() and _fills(tensor.shape, stride):
        return tensor.new_empty_strided(tensor.shape, stride).copy_(tensor)
    raise CheckpointError(f"{where}: stride {shown(stride)} does not fit {list(tensor.shape)}.")


class TensorFinder:
    """Lookup of tensors by name; names that shared a tensor or its memory share it again."""

    def __init__(self, tensors: Mapping[str, Tensor], aliases: Any, views: Any) -> None:
        self.tensors = tensors
        for where, value in (("aliases", aliases), ("views", views)):
            if not isinstance(value, dict):
                raise CheckpointError(f"{where}: expected a mapping, got {shown(value)}.")
        self.aliases: dict[str, Any] = aliases
        self.views: dict[str, Any] = views
        self.loaded: dict[str, Tensor] = {}
        self.used: set[str] = set()

    def check_all_used(self) -> None:
        """Raise if the file has a tensor that no module uses."""
        inputs = {name for name in self.tensors if name.startswith("dummy_in/")}
        bases = {view["of"] for name, view in self.views.items() if name in self.used}
        named = {*self.tensors, *self.aliases, *self.views} - inputs - bases
        if not named <= self.used:
            raise CheckpointError(f"tensors: '{min(named - self.used):.200}' is not used.")

    def parameter(self, name: str, requires_grad: Any, where: str) -> nn.Parameter:
        """Return the parameter `name`."""
        if not isinstance(requires_grad, bool):
            raise CheckpointError(f"{where}: expected true or false, got {shown(requires_grad)}.")
        first = self._first(name)
        if first not in self.loaded:
            tensor = self._tensor(first, where)
            if requires_grad and not (tensor.is_floating_point() or tensor.is_complex()):
                raise CheckpointError(f"{where}: '{name}' is {tensor.dtype}, which cannot train.")
            self.loaded[first] = nn.Parameter(tensor, requires_grad=requires_grad)
        parameter = self.loaded[first]
        if not isinstance(parameter, nn.Parameter) or parameter.requires_grad != requires_grad:
            raise CheckpointError(f"{where}: '{name}' and '{first}' are one tensor, and differ.")
        return parameter

    def buffer(self, name: str, where: str) -> Tensor:
        """Return the buffer `name`."""
        first = self._first(name)
        if first not in self.loaded:
            self.loaded[first] = self._tensor(first, where)
        return self.loaded[first]

    def _first(self, name: str) -> str:
        first = self.aliases.get(name, name)
        self.used |= {name} if not isinstance(first, str) else {name, first}
        if not isinstance(first, str) or first in self.aliases:
            raise CheckpointError(f"aliases.{name}: {shown(first)} is not the name of a tensor.")
        return first

    def _tensor(self, name: str, where: str) -> Tensor:
        if name in self.views:
            return self._view(self.views[name], f"views.{name}")
        if name not in self.tensors:
            raise CheckpointError(f"{where}: tensor '{name:.200}' is missing.")
        return self.tensors[name]

    def _view(self, view: Any, where: str) -> Tensor:
        keys = {"of", "offset", "shape", "stride"}
        if not isinstance(view, dict) or view.keys() != keys or view["of"] not in self.tensors:
            raise CheckpointError(f"{where}: expected of, offset, shape and stride.")
        whole, (shape, stride) = self.tensors[view["of"]], (view["shape"], view["stride"])
        are_lists = isinstance(shape, list) and isinstance(stride, list)
        numbers = [view["offset"], *shape, *stride] if are_lists else [None]
        is_plain = all(type(n) is int and 0 <= n < 2**48 for n in numbers)
        if not is_plain or len(shape) != len(stride):
            raise CheckpointError(f"{where}: expected lists of numbers as shape and stride.")
        if 0 in shape or view["offset"] + _reach(shape, stride) > whole.numel():
            raise CheckpointError(f"{where}: reaches beyond '{view['of']}'.")
        if math.prod(shape) > max(whole.numel(), LARGEST_EXPANSION):
            raise CheckpointError(
                f"{where}: shape {shown(shape)} repeats the elements of '{view['of']}'. "
                f"Allowed: at most {LARGEST_EXPANSION} elements."
            )
        return whole.as_strided(shape, stride, whole.storage_offset() + view["offset"])
