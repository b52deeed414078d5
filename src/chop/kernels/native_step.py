"""Decode step of a captured language model as one native call, on the CPU."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.ir.guards import Guards, guards_of
from chop.ir.outputs import OutputTemplate, template_of
from chop.ir.store.traced import TracedModule
from chop.kernels.native_prompt import (
    EmptyCache,
    blocks_of,
    is_prompt,
    length_without_results,
    longest_prompt,
)
from chop.kernels.step_builder import MASKS, PAST, POSITIONS, BuiltStep, build_step
from chop.kernels.step_cache import LayerAccess, access_to, add_pages, check_layer, kind_of
from chop.kernels.step_code import (
    KINDS,
    LayerRecord,
    PastRecord,
    UnsupportedError,
    Update,
    library,
)
from chop.kernels.step_rules import Past
from chop.log import get_logger
from chop.nn.quantizers.kernels import is_traced

_log = get_logger(__name__)

TOKENS, KEPT_LOGITS, LOGITS = "input_ids", "logits_to_keep", "logits"
INPUTS = frozenset((TOKENS, PAST, POSITIONS, KEPT_LOGITS, *MASKS))
MOST_TOKENS = 16
"""New tokens of one sequence in a native step; a prompt is read in blocks of as many."""
ALL, LAST, NONE = "all", "last", "none"
"""Tokens of a step whose results are computed; of one sequence it may be the last token alone."""
MOST_FAILURES = 3
"""Steps in a row whose activations have no native product before native steps end."""


@dataclass(frozen=True)
class _Program:
    """Native program of a step of some rows; `form` is what it was built for.

    `stored`: number of its instructions after which the new tokens are in the cache.
    """

    step: BuiltStep
    code: Any
    hooks: list[Any]
    form: tuple[Any, ...]
    stored: int
    longest_prompt: int


class NativeStep:
    """Native decode step of `model`: a new token of each row of a batch, or some of one sequence.

    Short prompts are read in blocks of tokens (`chop.kernels.native_prompt`).

    Each token has the bits that it has alone. `run` returns None for a call that is no decode
    step, and for all calls if an op has no native code; the caller then runs the model. `problem`
    has the reason.
    """

    def __init__(self, model: TracedModule) -> None:
        self.problem: str | None = None
        self._model = model
        self._programs: dict[int, _Program | None] = {}  # by rows; None: not supported
        self._access: list[LayerAccess] = []
        self._kinds: list[tuple[type, Any]] = []
        self._checked: tuple[weakref.ref[Any], int] | None = None  # last cache and rows
        self._failures = 0
        self._error: BaseException | None = None
        self._lock = threading.Lock()  # the buffers serve one call at a time

    def __reduce__(self) -> Any:
        return NativeStep, (self._model,)  # a copy builds its own programs

    def run(self, arguments: Mapping[str, Any]) -> Any:
        """Return the model's output for new tokens, None if the native step does not apply."""
        if self.problem is not None or not _may_run(arguments):
            return None
        with self._lock:
            try:
                if is_prompt(arguments):
                    return self._read(arguments)
                is_step = _is_decode_step(arguments)
                return self._step(arguments, arguments[TOKENS].numel()) if is_step else None
            except UnsupportedError as error:
                _log.debug("generate: a step runs in PyTorch: %s.", error)
                return None

    def _step(self, arguments: Mapping[str, Any], rows: int, results: str = ALL) -> Any:
        """Run one step of a program of `rows` rows, of which the tokens are the first.

        Return None if it failed, and a dict without outputs for the results `NONE`.
        """
        program = self._program(rows)
        self._check(program, arguments)
        past = self._opened(arguments, rows)
        return self._run(program, arguments, past, results)

    def _read(self, arguments: Mapping[str, Any]) -> Any:
        """Read a prompt into an empty cache, block by block; return None if a block failed."""
        parts = list(blocks_of(arguments, MOST_TOKENS))
        program, past = self._program(1), arguments[PAST]
        tensors = [k for k, v in program.step.outputs.items() if isinstance(v, Tensor)]
        longest = program.longest_prompt
        if arguments[TOKENS].shape[1] > longest or tensors != [LOGITS]:
            raise UnsupportedError("a prompt that PyTorch reads faster")
        cache, results, is_read = EmptyCache(past.layers, program.step.appended), [], False
        only_last = bool(arguments.get(KEPT_LOGITS))
        try:
            cache.begin()
            for number, part in enumerate(parts, 1):
                results_of = (LAST if number == len(parts) else NONE) if only_last else ALL
                count = part[TOKENS].shape[1]
                rows = count if count in self._programs else MOST_TOKENS  # a program takes long
                result = self._step(part, rows, results_of)
                if result is None:
                    return None
                results.append(result)
            is_read = True
        finally:
            if not is_read:
                cache.restore()
        return _joined(results, only_last=only_last)

    def _program(self, rows: int) -> _Program:
        """Return the program of some rows; raise UnsupportedError if there is none."""
        if rows not in self._programs:
            self._programs[rows] = self._built(rows)
        program = self._programs[rows]
        if program is None:
            raise UnsupportedError(f"no program of {rows} rows")
        return program

    def _built(self, rows: int) -> _Program | None:
        try:
            if library() is None:
                raise UnsupportedError("the native code cannot be built")
            with torch.inference_mode(False), torch.no_grad():  # buffers that every mode may write
                step = build_step(self._model, rows)
        except UnsupportedError as error:
            if rows > 1:
                _log.info("generate: steps of %d rows run in PyTorch: %s.", rows, error)
            else:
                self._give_up(str(error))
            return None
        if not any(self._programs.values()):
            self._layers = (LayerRecord * len(step.appended))()
            self._tables, self._checked = _tables(self._model), None
        modules = [module for module in step.modules if module is not self._model]
        hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        form, stored = _form(step, self._tables), length_without_results(step)
        return _Program(step, step.program.finish(), hooks, form, stored, longest_prompt(step))

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        _log.info("generate: decode steps run in PyTorch: %s.", problem)

    def _check(self, program: _Program, arguments: Mapping[str, Any]) -> None:
        """Raise UnsupportedError if the sizes, the cache, modules or weights have another form."""
        step, guards, past = program.step, guards_of(self._model), arguments[PAST]
        if guards is not None and guards.guards and guards.broken(arguments) is not None:
            raise UnsupportedError("sizes that the graph refuses")
        layers = getattr(past, "layers", ())
        if len(layers) != len(step.appended):
            raise UnsupportedError("a cache with other layers")
        kinds = [kind_of(layer) for layer in layers]
        if kinds != self._kinds:
            self._access, self._kinds = [access_to(layer) for layer in layers], kinds
        for access, layer in zip(self._access, layers, strict=True):
            if not access.owns(layer):
                check_layer(layer, len(arguments[TOKENS]))
        if any(program.hooks) or _has_own_hooks(self._model):
            raise UnsupportedError("a module with hooks")
        rows, last = len(step.token), self._checked
        if last is None or last[0]() is not past or last[1] != rows:
            self._check_form(program)
            self._checked = weakref.ref(past), rows

    def _check_form(self, program: _Program) -> None:
        """Raise UnsupportedError if layers, parameters or modes were exchanged.

        This runs at the first step of some rows on a cache: it takes longer than the attention of a
        small model.
        """
        if program.form != _form(program.step, self._tables):
            self._programs = {}
            raise UnsupportedError("other layers, weights or modes; the programs are built again")

    def _opened(self, arguments: Mapping[str, Any], rows: int) -> PastRecord:
        """Return the record of the cache, with room in its layers; raise UnsupportedError."""
        past, sequences = arguments[PAST], len(arguments[TOKENS])
        starts = _starts(arguments)
        for access, layer, record in zip(self._access, past.layers, self._layers, strict=True):
            access.open(layer, record, rows // sequences)
        is_sequence = rows > sequences
        length, used = past.get_seq_length() + 1, arguments[TOKENS].numel()
        program = self._programs[rows]
        assert program is not None, "a program is built before its record"
        in_use = (rows, used, len(program.code), 0)
        record = PastRecord(self._layers, Update(), starts, length, is_sequence, *in_use)
        if hasattr(past, "page_table"):
            add_pages(record, past, starts)
        return record

    def _run(
        self,
        program: _Program,
        arguments: Mapping[str, Any],
        record: PastRecord,
        results: str,
    ) -> Any:
        step, past, tokens = program.step, arguments[PAST], arguments[TOKENS]
        positions, count = arguments.get(POSITIONS), tokens.shape[1]
        if positions is None:
            positions = torch.arange(count).expand(tokens.shape) + past.get_seq_length()
        for buffer, values in ((step.token, tokens), (step.position, positions)):
            buffer[: values.numel()] = values.reshape(-1, 1)
            buffer[values.numel() :] = values.reshape(-1)[-1]  # rows that nothing reads
        parts = list(zip(self._access, past.layers, self._layers, strict=True))
        length = program.stored if results == NONE else len(program.code)
        if results == LAST:
            record.results_from, record.first_result = program.stored, count - 1
        if self._execute(program, past, record, length=length):
            for access, layer, own in parts:
                access.close(layer, own, count)
            self._failures = 0
            return {} if results == NONE else self._output(step, past, count)
        for access, layer, _ in parts:
            access.undo(layer)
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            self._give_up("activations without a native product")
        return None

    def _execute(
        self, program: _Program, past: Any, record: PastRecord, *, length: int, times: Any = None
    ) -> bool:
        """Run the first `length` instructions; return False if one could not."""
        step, built = program.step, library()
        assert built is not None, "a program is built before it runs"

        def update(index: int) -> int:
            # an exception must not pass through the native code
            try:
                layer = past.layers[index]
                self._access[index].update(layer, self._layers[index], *step.appended[index])
            except BaseException as error:  # raised again below
                self._error = error
                return 0
            return 1

        record.update = Update(update)
        threads = torch.get_num_threads()
        is_sound = built.mase_step(program.code, length, record, threads, times)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return bool(is_sound)

    def _output(self, step: BuiltStep, past: Any, count: int) -> Any:
        template = template_of(self._model)
        values = {key: _result(value, past, count) for key, value in step.outputs.items()}
        return values if template is None else template.restore(values)

    def profile(self, arguments: Mapping[str, Any]) -> dict[str, float]:
        """Return the seconds of each kind of instruction in one step on float keys and values.

        The step writes behind the last token of the cache, which stays as it is. The seconds are
        those of the first thread, with its waiting.
        """
        past, program = arguments[PAST], self._programs.get(arguments[TOKENS].numel())
        assert program is not None, "run a step before its profile"
        seconds = (ctypes.c_double * len(program.code))()
        record, length = self._opened(arguments, arguments[TOKENS].numel()), len(program.code)
        self._execute(program, past, record, length=length, times=seconds)
        totals = dict.fromkeys(KINDS, 0.0)
        for instruction, each in zip(program.code, seconds, strict=True):
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
    formats = [dict(vars(module).get("quantizers", ())) for module in step.modules]
    return parts, addresses, formats, [vars(module)["training"] for module in step.modules]


def _result(value: Any, past: Any, count: int) -> Any:
    """Return an output of the program; the tokens of one sequence become its second dimension."""
    if isinstance(value, Past):
        return past
    if not isinstance(value, Tensor):
        return value
    return value.clone() if count == 1 else value[:count].transpose(0, 1).clone()


def _has_own_hooks(model: torch.nn.Module) -> bool:
    """Return True if a graph has hooks other than its output classes and its guards."""
    hooks = (*model._forward_hooks.values(), *model._forward_pre_hooks.values())
    return any(not isinstance(hook, OutputTemplate | Guards) for hook in hooks)


def _joined(results: list[Any], *, only_last: bool) -> Any:
    """Return the output of a prompt from those of its blocks."""
    last = results[-1]
    if only_last:
        last[LOGITS] = last[LOGITS][:, -1:].contiguous()
    elif len(results) > 1:
        last[LOGITS] = torch.cat([result[LOGITS] for result in results], 1)
    return last


def _may_run(arguments: Mapping[str, Any]) -> bool:
    """Return True for tokens and a cache on the CPU whose operators nothing else has to see."""
    tokens = arguments.get(TOKENS)
    if type(tokens) is not Tensor or tokens.dim() != 2 or not tokens.is_cpu or not tokens.numel():
        return False
    if not arguments.keys() <= INPUTS or arguments.get(PAST) is None or _is_watched(tokens):
        return False
    positions = arguments.get(POSITIONS)
    are_known = positions is None or positions.shape == tokens.shape
    return are_known and arguments.get(KEPT_LOGITS, 0) in (0, 1)


def _is_decode_step(arguments: Mapping[str, Any]) -> bool:
    """Return True for one new token of each row, or some of one row."""
    rows, count = arguments[TOKENS].shape
    if count == 1:
        return True
    return rows == 1 and count <= MOST_TOKENS and not arguments.get(KEPT_LOGITS)


def _starts(arguments: Mapping[str, Any]) -> Any:
    """Return the first token of each row by the masks, None if all rows have all tokens.

    Raise UnsupportedError for masks other than those of padding on the left, and for padding
    without positions, which some models count by the mask.
    """
    masks = [arguments[name] for name in MASKS if arguments.get(name) is not None]
    length = arguments[PAST].get_seq_length() + arguments[TOKENS].shape[1]
    if any(mask.dim() != 2 or mask.shape[1] != length for mask in masks):
        raise UnsupportedError("a mask that is not one number per token")
    padded = [mask.bool() for mask in masks if not mask.all()]
    if not padded:
        return None
    if len(padded) > 1 or arguments.get(POSITIONS) is None or arguments[TOKENS].shape[1] > 1:
        raise UnsupportedError("padding without positions, or of several new tokens")
    starts = length - padded[0].sum(1)
    if (
        not torch.equal(padded[0], torch.arange(length) >= starts[:, None])
        or starts.max() == length
    ):
        raise UnsupportedError("a mask other than that of padding on the left")
    return (ctypes.c_int64 * len(starts))(*starts.tolist())


def _is_watched(tokens: Tensor) -> bool:
    """Return True if gradients, autocast, a compiler, a mode or a tracer must see the operators."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return True
    if torch.compiler.is_compiling() or torch._C._is_torch_function_mode_enabled():
        return True
    return torch._C._len_torch_dispatch_stack() > 0 or is_traced(tokens)
