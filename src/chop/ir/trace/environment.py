"""The world a model is traced in: patched where it must be, put back as it was afterwards."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from chop.ir.trace.builtin_names import keeping_sizes

_HELPER_MODULES = (
    "transformers.masking_utils",
    "transformers.modeling_attn_mask_utils",
    "transformers.modeling_rope_utils",
    "transformers.modeling_utils",
    "transformers.pytorch_utils",
    "transformers.utils.generic",
)
"""Shared source files of Hugging Face models, treated as part of every model."""


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Keep the logger `name` from reporting failures that are handled here."""
    other = logging.getLogger(name)
    before = other.level
    other.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        other.setLevel(before)


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set `owner.name` to `value` for a while; nothing happens where there is no such name."""
    if name not in vars(owner):
        yield
        return
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def source_modules(model: nn.Module) -> list[ModuleType]:
    """The Python modules that define the classes of `model`, without torch's own."""
    names = {type(m).__module__ for m in model.modules()}
    names |= {base.__module__ for m in model.modules() for base in type(m).__mro__}
    outside = {n for n in names if n.split(".")[0] not in ("torch", "builtins", "chop", "typing")}
    if any(n.startswith("transformers.") for n in outside):
        outside |= set(_HELPER_MODULES)
    return [sys.modules[n] for n in sorted(outside) if n in sys.modules]


@contextlib.contextmanager
def tracing_environment(model: nn.Module, *, cache: bool = False) -> Iterator[None]:
    """Everything about the world, apart from recording itself, that tracing changes."""
    sources = source_modules(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_unchanged(model))
        stack.enter_context(_without_caches(sources))
        stack.enter_context(keeping_sizes([vars(s) for s in sources]))
        stack.enter_context(_python_instead_of_torchscript(sources))
        stack.enter_context(_hugging_face_told(model, cache))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())  # what the model switches off must show
        fast_path = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # its fused kernel hides the layers
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        yield


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of every module, and of every config, as they were."""
    owners: list[Any] = list(model.modules())
    configs = {id(m.config): m.config for m in owners if hasattr(m, "config")}
    owners += [c for c in configs.values() if hasattr(c, "__dict__")]
    before = [(owner, _shallow(vars(owner))) for owner in owners]
    try:
        yield
    finally:
        for owner, attributes in before:
            vars(owner).clear()
            vars(owner).update(attributes)


def _shallow(attributes: dict[str, Any]) -> dict[str, Any]:
    """A copy in which the containers nn.Module keeps its parts in are copies as well."""
    containers = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
    return {k: v.copy() if k in containers else v for k, v in attributes.items()}


@contextlib.contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Put the values of all buffers back: counters are written to even on fake tensors."""
    before = [(b, b.detach().clone()) for b in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode within; each as it was after."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextlib.contextmanager
def _without_caches(sources: list[ModuleType]) -> Iterator[None]:
    """Bypass the lru_caches of the model's files: they would keep fake tensors alive."""
    classes = [
        thing
        for source in sources
        for thing in vars(source).values()
        if isinstance(thing, type) and thing.__module__ == source.__name__
    ]
    with contextlib.ExitStack() as stack:
        for owner in [*sources, *classes]:
            for name, thing in list(vars(owner).items()):
                if isinstance(thing, functools._lru_cache_wrapper):
                    stack.enter_context(patched(owner, name, thing.__wrapped__))
        yield


@contextlib.contextmanager
def _python_instead_of_torchscript(sources: list[ModuleType]) -> Iterator[None]:
    """TorchScript functions swallow tensors without a trace: run their Python source."""
    with contextlib.ExitStack() as stack:
        for source in sources:
            for name, thing in list(vars(source).items()):
                if isinstance(thing, torch.jit.ScriptFunction):
                    original = getattr(thing, "_torchdynamo_inline", thing)
                    stack.enter_context(patched(source, name, original))
        yield


@contextlib.contextmanager
def _hugging_face_told(model: nn.Module, cache: bool) -> Iterator[None]:
    """Answer "are we tracing?" with yes, which takes the path that does not depend on data."""
    helpers = sys.modules.get("transformers.utils.import_utils")
    with contextlib.ExitStack() as stack:
        if helpers is not None:
            stack.enter_context(patched(helpers, "is_jit_tracing", lambda: True))
        for config in _configs(model):
            if (
                getattr(config, "use_cache", False) and not cache
            ):  # a graph of one pass keeps no past keys
                vars(config)["use_cache"] = False
            # "eager" loops over the experts that tokens hit, which depends on data.
            if getattr(config, "_experts_implementation", None) == "eager":
                vars(config)["_experts_implementation_internal"] = "batched_mm"
        yield


def _configs(model: nn.Module) -> list[Any]:
    found = [m.config for m in model.modules() if hasattr(m, "config")]
    return list({id(c): c for c in found}.values())


@contextlib.contextmanager
def devices_seen_by(see: Callable[[torch.Tensor, torch.device], torch.device]) -> Iterator[None]:
    """Route reads of a fake tensor's `.device`, which bypass the function mode, to `see`."""
    read = FakeTensor.device.fget  # type: ignore[attr-defined]
    with patched(FakeTensor, "device", property(lambda tensor: see(tensor, read(tensor)))):
        yield
