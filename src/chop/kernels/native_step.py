"""Decode step of a captured language model as one native call, on the CPU."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chop.ir.guards import Guards, guards_of
from chop.ir.outputs import OutputTemplate, template_of
from chop.ir.store.traced import TracedModule
from chop.kernels.step_builder import MASKS, PAST, POSITIONS, BuiltStep, build_step
from chop.kernels.step_cache import LayerAccess, access_to, check_layer, kind_of
from chop.kernels.step_code import KINDS, LayerRecord, UnsupportedError, Update, library
from chop.kernels.step_rules import Past
from chop.log import get_logger
from chop.nn.quantizers.kernels import is_traced

_log = get_logger(__name__)

TOKENS, KEPT_LOGITS = "input_ids", "logits_to_keep"
INPUTS = frozenset((TOKENS, PAST, POSITIONS, KEPT_LOGITS, *MASKS))
MOST_FAILURES = 3
"""Steps in a row whose activations have no native product before native steps end."""


class NativeStep:
    """Native decode step of `model`.

    `run` returns None for a call that is no decode step of one row, and for all calls if an op has
    no native code; the caller then runs the model. `problem` has the reason.
    """

    def __init__(self, model: TracedModule) -> None:
        self.problem: str | None = None
        self._model = model
        self._step: BuiltStep | None = None
        self._access: list[LayerAccess] = []
        self._kinds: list[tuple[type, Any]] = []
        self._seen: weakref.ref[Any] | None = None
        self._failures = 0
        self._error: BaseException | None = None
        self._lock = threading.Lock()  # the buffers serve one call at a time

    def __reduce__(self) -> Any:
        return NativeStep, (self._model,)  # a copy builds its own program

    def run(self, arguments: Mapping[str, Any]) -> Any:
        """Return the model's output for one new token, None if the native step does not apply."""
        if self.problem is not None or not _is_decode_step(arguments):
            return None
        with self._lock:
            if self._step is None and not self._build():
                return None
            try:
                self._check(arguments)
            except UnsupportedError as error:
                _log.debug("generate: a decode step runs in PyTorch: %s.", error)
                return None
            return self._run(arguments)

    def _build(self) -> bool:
        try:
            if library() is None:
                raise UnsupportedError("the native code cannot be built")
            with torch.inference_mode(False), torch.no_grad():  # buffers that every mode may write
                self._step = step = build_step(self._model)
        except UnsupportedError as error:
            self._give_up(str(error))
            return False
        self._code = step.program.finish()
        self._layers = (LayerRecord * len(step.appended))()
        self._tables, self._seen = _tables(self._model), None
        modules = [module for module in step.modules if module is not self._model]
        self._hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self._form = _form(step, self._tables)
        return True

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        _log.info("generate: decode steps run in PyTorch: %s.", problem)

    def _check(self, arguments: Mapping[str, Any]) -> None:
        """Raise UnsupportedError if the sizes, the cache, modules or weights have another form."""
        step, guards = self._step, guards_of(self._model)
        assert step is not None, "a step is built before it is checked"
        if guards is not None and guards.guards and guards.broken(arguments) is not None:
            raise UnsupportedError("sizes that the graph refuses")
        layers = getattr(arguments[PAST], "layers", ())
        if len(layers) != len(step.appended):
            raise UnsupportedError("a cache with other layers")
        kinds = [kind_of(layer) for layer in layers]
        if kinds != self._kinds:
            self._access, self._kinds = [access_to(layer) for layer in layers], kinds
        for access, layer in zip(self._access, layers, strict=True):
            if not access.owns(layer):
                check_layer(layer)
        if any(self._hooks) or _has_own_hooks(self._model):
            raise UnsupportedError("a module with hooks")
        if self._seen is None or self._seen() is not arguments[PAST]:
            self._check_form(step)
            self._seen = weakref.ref(arguments[PAST])

    def _check_form(self, step: BuiltStep) -> None:
        """Raise UnsupportedError if layers, parameters or modes were exchanged.

        This runs at the first step on a cache: it takes longer than the attention of a small model.
        """
        if self._form != _form(step, self._tables):
            self._step = None
            raise UnsupportedError("other layers, weights or modes; the program is built again")

    def _run(self, arguments: Mapping[str, Any]) -> Any:
        step, past = self._step, arguments[PAST]
        assert step is not None, "a step is built before it runs"
        position = arguments.get(POSITIONS)
        step.token.fill_(arguments[TOKENS].item())
        step.position.fill_(past.get_seq_length() if position is None else position.item())
        parts = list(zip(self._access, past.layers, self._layers, strict=True))
        for access, layer, record in parts:
            access.open(layer, record)
        if self._execute(past):
            for access, layer, record in parts:
                access.close(layer, record)
            self._failures = 0
            return self._output(past)
        for access, layer, _ in parts:
            access.undo(layer)
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            self._give_up("activations without a native product")
        return None

    def _execute(self, past: Any, times: Any = None) -> bool:
        """Run the program; return False if an instruction could not."""
        step, built = self._step, library()
        assert step is not None and built is not None, "a step is built before it runs"

        def update(index: int) -> int:
            # an exception must not pass through the native code
            try:
                layer = past.layers[index]
                self._access[index].update(layer, self._layers[index], *step.appended[index])
            except BaseException as error:  # raised again below
                self._error = error
                return 0
            return 1

        threads = torch.get_num_threads()
        is_sound = built.mase_step(
            self._code, len(self._code), self._layers, Update(update), threads, times
        )
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return bool(is_sound)

    def _output(self, past: Any) -> Any:
        step, template = self._step, template_of(self._model)
        assert step is not None, "a step has run"
        values = {key: _result(value, past) for key, value in step.outputs.items()}
        return values if template is None else template.restore(values)

    def profile(self, arguments: Mapping[str, Any]) -> dict[str, float]:
        """Return the seconds of each kind of instruction in one step on float keys and values.

        The step writes behind the last token of the cache, which stays as it is. The seconds are
        those of the first thread, with its waiting.
        """
        assert self._step is not None, "run a step before its profile"
        seconds = (ctypes.c_double * len(self._code))()
        self._execute(arguments[PAST], seconds)
        totals = dict.fromkeys(KINDS, 0.0)
        for instruction, each in zip(self._code, seconds, strict=True):
            totals[KINDS[instruction.kind]] += each
        return totals


def _tables(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Return the tables that hold the modules, parameters and buffers of a model."""
    names = ("_modules", "_parameters", "_buffers")
    tables = (vars(module)[name] for module in model.modules() for name in names)
    return [table for table in tables if table]


def _form(step: BuiltStep, tables: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Return what a program is built for: modules, tensors, their addresses and the modes."""
    parts = [tuple(map(id, table.values())) for table in tables]
    addresses = [parameter.data_ptr() for parameter in step.program.parameters]
    return parts, addresses, [vars(module)["training"] for module in step.modules]


def _result(value: Any, past: Any) -> Any:
    if isinstance(value, Past):
        return past
    return value.clone() if isinstance(value, Tensor) else value


def _has_own_hooks(model: torch.nn.Module) -> bool:
    """Return True if a graph has hooks other than its output classes and its guards."""
    hooks = (*model._forward_hooks.values(), *model._forward_pre_hooks.values())
    return any(not isinstance(hook, OutputTemplate | Guards) for hook in hooks)


def _is_decode_step(arguments: Mapping[str, Any]) -> bool:
    """Return True for one new token of one row on the CPU, without gradients or padding."""
    tokens = arguments.get(TOKENS)
    if type(tokens) is not Tensor or tokens.shape != (1, 1) or not tokens.is_cpu:
        return False
    if not arguments.keys() <= INPUTS or arguments.get(PAST) is None or _is_watched(tokens):
        return False
    masks = [arguments[name] for name in MASKS if arguments.get(name) is not None]
    positions = arguments.get(POSITIONS)
    is_one = positions is None or positions.numel() == 1
    is_one = is_one and arguments.get(KEPT_LOGITS, 0) in (0, 1)
    return is_one and all(mask.dim() == 2 and bool(mask.all()) for mask in masks)


def _is_watched(tokens: Tensor) -> bool:
    """Return True if gradients, autocast, a compiler, a mode or a tracer must see the operators."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return True
    if torch.compiler.is_compiling() or torch._C._is_torch_function_mode_enabled():
        return True
    return torch._C._len_torch_dispatch_stack() > 0 or is_traced(tokens)
