"""Fingerprint of a graph: a short text that is equal for equal contents."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from chop.ir.graph import MaseGraph

LENGTH = 16
"""Hexadecimal digits of a fingerprint."""
_PLAIN = (bool, int, float, str, type(None))
_ADDRESS = re.compile(r"0x[0-9a-f]+")


class Hash(Protocol):
    """Hash function."""

    def update(self, data: Any, /) -> None:
        """Add bytes."""


def graph_fingerprint(graph: MaseGraph) -> str:
    """Return the fingerprint of a graph's operations, module settings and tensors."""
    digest = hashlib.sha256()
    for node in graph.fx_graph.nodes:
        digest.update(_ADDRESS.sub("", str(node.format_node())).encode())
    for name, module in graph.model.named_modules():
        digest.update(f"{name}:{_settings(module)}".encode())
    for name, tensor in graph.model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor):
            add_tensor(digest, name, tensor)
    return digest.hexdigest()[:LENGTH]


def _settings(module: nn.Module) -> str:
    """Return the class and the plain attributes of a module, without its mode."""
    plain = {
        name: value
        for name, value in sorted(vars(module).items())
        if name != "training" and not name.startswith("_") and _is_plain(value)
    }
    return f"{type(module).__qualname__}({plain}; {_ADDRESS.sub('', module.extra_repr())})"


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(each) for each in value)
    return isinstance(value, _PLAIN)


def add_tensor(digest: Hash, name: str, tensor: Tensor) -> None:
    """Add a tensor with its dtype and shape."""
    digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    digest.update(flat.view(torch.uint8).numpy())
