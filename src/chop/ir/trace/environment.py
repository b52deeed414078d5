"""Environment of a trace: patches and settings, restored afterwards."""

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

from chop.ir.reclass import OWN_TABLES
from chop.ir.trace.builtin_names import keeping_sizes

_HELPER_MODULES = (
    "transformers.masking_utils",
    "transformers.modeling_attn_mask_utils",
    "transformers.modeling_rope_utils",
    "transformers.modeling_utils",
    "transformers.pytorch_utils",
    "transformers.utils.generic",
)
"""Shared modules of transformers, treated as part of every one of its models."""


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Silence the logger `name`, whose failures are handled here."""
    other = logging.getLogger(name)
    before = other.level
    other.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        other.setLevel(before)


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set `owner.name` to `value` inside the context, if `owner` has that name."""
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
    """Return the Python modules that define the classes of `model`, without torch's."""
    names = {type(m).__module__ for m in model.modules()}
    names |= {base.__module__ for m in model.modules() for base in type(m).__mro__}
    outside = {n for n in names if n.split(".")[0] not in ("torch", "builtins", "chop", "typing")}
    if any(n.startswith("transformers.") for n in outside):
        outside |= set(_HELPER_MODULES)
    return [sys.modules[n] for n in sorted(outside) if n in sys.modules]


@contextlib.contextmanager
def tracing_environment(model: nn.Module, *, cache: bool = False) -> Iterator[None]:
    """Apply all patches of tracing except recording itself."""
    sources = source_modules(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_unchanged(model))
        stack.enter_context(_without_caches(sources))
        stack.enter_context(keeping_sizes([vars(s) for s in sources]))
        stack.enter_context(_python_instead_of_torchscript(sources))
        stack.enter_context(_transformers_patched(model, cache))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())  # a no_grad of the model must be visible
        fast_path = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # its fused kernel hides the layers
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        yield


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of every module and config afterwards."""
    owners: list[Any] = list(model.modules())
    owners += [c for c in _configs(model) if hasattr(c, "__dict__")]
    before = [
        (owner, {k: v.copy() if k in OWN_TABLES else v for k, v in vars(owner).items()})
        for owner in owners
    ]
    try:
        yield
    finally:
        for owner, attributes in before:
            vars(owner).clear()
            vars(owner).update(attributes)


@contextlib.contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the values of buffers: counters are written even with fake tensors.

    A module whose class sets `has_constant_buffers` never writes its own. They are not copied:
    those of packed layers are the weights of the model.
    """
    writers = (m for m in model.modules() if not getattr(m, "has_constant_buffers", False))
    buffers = {id(b): b for module in writers for b in module.buffers(recurse=False)}
    before = [(b, b.detach().clone()) for b in buffers.values()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


@contextlib.contextmanager
def model_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Set the mode of every module inside the context, and restore each afterwards."""
    others = [module for module in model.modules() if module.training != training]
    for module in others:
        module.training = training
    try:
        yield
    finally:
        for module in others:
            module.training = not training


def evaluation_mode(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Set every module to evaluation mode inside the context."""
    return model_mode(model, training=False)


@contextlib.contextmanager
def _without_caches(sources: list[ModuleType]) -> Iterator[None]:
    """Bypass the lru_caches of the model's source files: they would keep fake tensors alive."""
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
    """Run the Python source of TorchScript functions, which hide tensors from the recorder."""
    with contextlib.ExitStack() as stack:
        for source in sources:
            for name, thing in list(vars(source).items()):
                if isinstance(thing, torch.jit.ScriptFunction):
                    original = getattr(thing, "_torchdynamo_inline", thing)
                    stack.enter_context(patched(source, name, original))
        yield


@contextlib.contextmanager
def _transformers_patched(model: nn.Module, cache: bool) -> Iterator[None]:
    """Make transformers use its tracing paths, which do not depend on data."""
    helpers = sys.modules.get("transformers.utils.import_utils")
    with contextlib.ExitStack() as stack:
        if helpers is not None:
            stack.enter_context(patched(helpers, "is_jit_tracing", lambda: True))
        for config in _configs(model):
            if getattr(config, "use_cache", False) and not cache:
                vars(config)["use_cache"] = False
            # "eager" loops over the experts that tokens hit, which depends on data.
            if getattr(config, "_experts_implementation", None) == "eager":
                vars(config)["_experts_implementation_internal"] = "batched_mm"
        yield


def _configs(model: nn.Module) -> list[Any]:
    configs = [m.config for m in model.modules() if hasattr(m, "config")]
    return list({id(c): c for c in configs}.values())


@contextlib.contextmanager
def devices_seen_by(see: Callable[[torch.Tensor, torch.device], torch.device]) -> Iterator[None]:
    """Call `see` for reads of a fake tensor's `.device`, which bypass the function mode."""
    read = FakeTensor.device.fget  # type: ignore[attr-defined]
    with patched(FakeTensor, "device", property(lambda tensor: see(tensor, read(tensor)))):
        yield
