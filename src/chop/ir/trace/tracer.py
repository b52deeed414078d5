"""Capture of a model as a torch.fx GraphModule: run, record, reconcile the two modes.

Fake tensors are tried first, real tensors if the model needs values. Without inputs, torch.fx
traces a plain module symbolically.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from chop.errors import TraceError
from chop.ir.guards import Guard, Guards
from chop.ir.node_arguments import holds_tensor
from chop.ir.outputs import OutputTemplate
from chop.ir.store.traced import TracedModule
from chop.ir.trace.cache_capture import PastRecording, make_masks_optional
from chop.ir.trace.effects import is_mutation, is_random_draw
from chop.ir.trace.environment import kept_buffers, model_mode, quiet, tracing_environment
from chop.ir.trace.recorder import Recorder, user_frame
from chop.ir.trace.resolution import RecordedRun, find_guards, shapes, simplified
from chop.ir.trace.result_cache import FakeResults
from chop.ir.trace.tracked import ValueDependenceError
from chop.ir.trace.training_mode import ModesDifferError, ModeTrace, follow_training_flag, merge
from chop.log import get_logger

logger = get_logger(__name__)

_CONTAINERS = (
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Transformer),
    *(nn.TransformerEncoder, nn.TransformerEncoderLayer),
    *(nn.TransformerDecoder, nn.TransformerDecoderLayer),
)
"""Modules of torch.nn whose submodules become nodes."""
_REMEDY = (
    "Rewrite it without looking at values (torch.where, masking), make the module that does it a "
    "leaf (leaf_modules=[…] or mase_leaf = True on the class), or pass specialize=True to keep the "
    "branch this input takes."
)


@dataclasses.dataclass(frozen=True)
class TraceOptions:
    """Options of a capture."""

    leaf_modules: tuple[Any, ...] = ()
    specialize: bool = False
    cache: bool = False

    def is_leaf(self, module: nn.Module, name: str) -> bool:
        """Return True if `module` is one node of the graph."""
        is_named = name in self.leaf_modules or type(module) in self.leaf_modules
        if is_named or getattr(module, "mase_leaf", False):
            return True
        inside_torch = type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))
        return inside_torch and not isinstance(module, _CONTAINERS)


def trace(
    model: nn.Module, inputs: Mapping[str, Any] | None, options: TraceOptions
) -> TracedModule:
    """Return a module that computes the same as `model` on inputs of these names."""
    with tracing_environment(model, cache=options.cache):
        # A tensor created in inference mode has no gradient; its copy has.
        copies = inputs and {
            k: _map_tensors(v, lambda t: t.clone() if t.is_inference() else t)
            for k, v in inputs.items()
        }
        captured, template, guards = _capture(model, copies, options)
    module = build(model, captured, template)
    if options.cache:
        guards = make_masks_optional(module.graph, guards)
        module.generation_config = getattr(model, "generation_config", None)
        module.recompile()
    guards.attach(module)
    return module


def _capture(
    model: nn.Module, inputs: Mapping[str, Any] | None, options: TraceOptions
) -> tuple[ModeTrace, OutputTemplate, Guards]:
    """Trace both modes and merge them; a module in which they cannot be merged becomes a leaf."""
    run = _Capture(model, inputs, options)
    while True:
        evaluated, template = run.trace(training=False)
        try:
            trained, _ = run.trace(training=True)
            merge(evaluated, trained)
        except ModesDifferError as difference:
            if run.can_be_leaf(difference.owner):
                run.add_leaf(difference.owner)
                continue
            logger.warning(
                "%s: its code goes another way in training, which this graph does not hold: it "
                "computes what evaluation does, also while it trains. Name the module in "
                "leaf_modules to keep both ways.",
                f"module '{difference.owner}'" if difference.owner else type(model).__name__,
            )
            evaluated, template = run.trace(training=False)
            follow_training_flag(evaluated)
        except Exception as error:
            logger.warning(
                "%s: training mode could not be captured (%s). The graph computes what evaluation "
                "does, also while it trains.",
                type(model).__name__,
                error,
            )
            follow_training_flag(evaluated)
        return evaluated, template, run.guards()


@dataclasses.dataclass
class _Capture:
    """Traces of one model under one set of options."""

    model: nn.Module
    inputs: Mapping[str, Any] | None
    options: TraceOptions
    on_real: bool = False
    results: FakeResults = dataclasses.field(default_factory=FakeResults)
    decided: set[Any] = dataclasses.field(default_factory=set)
    conditions: list[Guard] = dataclasses.field(default_factory=list)

    def can_be_leaf(self, owner: str) -> bool:
        """Return True if the module `owner` has no parameters that a single node would hide."""
        if not owner or owner in self.options.leaf_modules:
            return False
        try:
            module = self.model.get_submodule(owner)
        except AttributeError:
            return False
        return next(module.parameters(), None) is None

    def add_leaf(self, name: str) -> None:
        """Trace the module `name`, and all modules of its class, as one node."""
        leaves = (*self.options.leaf_modules, name, type(self.model.get_submodule(name)))
        self.options = dataclasses.replace(self.options, leaf_modules=leaves)

    def trace(self, *, training: bool) -> tuple[ModeTrace, OutputTemplate]:
        """Trace the model in one mode."""
        with model_mode(self.model, training=training), kept_buffers(self.model):
            if self.inputs is None:
                return _symbolic(self.model, self.options)
            if not self.on_real:
                try:
                    with quiet("torch._subclasses.fake_tensor"):
                        world = FakeTensorMode(allow_non_fake_inputs=True)
                        fakes = {
                            name: _map_tensors(value, world.from_tensor)
                            for name, value in self.inputs.items()
                        }
                        return self._record(world, fakes)
                except (TraceError, ModesDifferError):
                    raise
                except Exception as reason:  # fake tensors lack values and some kernels
                    logger.debug("fake tensors do not suffice (%s); using real ones.", reason)
                    self.on_real = True
            return self._record(contextlib.nullcontext(), self.inputs)

    def _record(
        self, world: contextlib.AbstractContextManager[Any], inputs: Mapping[str, Any]
    ) -> tuple[ModeTrace, OutputTemplate]:
        recorder = Recorder(
            self.model,
            self.options.is_leaf,
            training=self.model.training,
            specialize=self.options.specialize,
            results=None if self.on_real else self.results,
        )
        with world, _explained(), recorder.recording():
            result = self._call(recorder, inputs)
        template = OutputTemplate.of(result)
        new = [d for d in recorder.decisions if d.key() not in self.decided]  # in another mode
        self.decided.update(d.key() for d in new)
        run = RecordedRun(new, recorder.attributes, self._tensors(), recorder.tensor_node)
        self.conditions += find_guards(run)
        recorder.output(template.plain(result))
        drop_dead_nodes(recorder.graph, recorder.attributes.__getitem__, keep=is_random_draw)
        return ModeTrace(recorder.graph, recorder.attributes, _taken_names(self.model)), template

    def _tensors(self) -> dict[str, Any]:
        return {k: v for k, v in (self.inputs or {}).items() if holds_tensor(v)}

    def guards(self) -> Guards:
        """Return the conditions on the sizes of the inputs, in either mode."""
        return Guards(simplified(self.conditions), shapes(self._tensors()))

    def _call(self, recorder: Recorder, inputs: Mapping[str, Any]) -> Any:
        for name, value in inputs.items():
            if holds_tensor(value):
                recorder.placeholder(name, value)
        if self.options.cache:
            past = PastRecording(self.model, recorder)
            with past.world():
                return self.model(**past.inputs(inputs))
        if any(name.startswith("args_") for name in inputs):
            return self.model(*inputs.values())
        return self.model(**inputs)


def _taken_names(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_modules()}


def _map_tensors(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {k: _map_tensors(v, change) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_map_tensors(v, change) for v in value)
    return value


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn a read of a tensor's value into an error with its place and a remedy."""
    try:
        yield
    except ValueDependenceError as error:
        where = user_frame(traceback.extract_tb(error.__traceback__))
        raise TraceError(f"{where}: value-dependent control flow ({error}). {_REMEDY}") from None


def _symbolic(model: nn.Module, options: TraceOptions) -> tuple[ModeTrace, OutputTemplate]:
    """Trace a model without inputs by torch.fx's proxies."""
    tracer = _SymbolicTracer(options)
    try:
        graph = tracer.trace(model)
    except Exception as error:
        raise TraceError(
            f"{type(model).__name__} cannot be traced without inputs ({error}). "
            "Give an example: MaseGraph(model, dummy_in={name: tensor, …})."
        ) from error
    attributes = {}
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            attributes[str(node.target)] = operator.attrgetter(str(node.target))(model)
        node.meta["owner"] = ""
    return ModeTrace(graph, attributes, _taken_names(model)), OutputTemplate(None, {})


class _SymbolicTracer(fx.Tracer):
    def __init__(self, options: TraceOptions) -> None:
        super().__init__()
        self.options = options

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self.options.is_leaf(m, module_qualified_name)


def build(model: nn.Module, captured: ModeTrace, template: OutputTemplate) -> TracedModule:
    """Return the GraphModule of a trace; it shares modules and parameters with `model`."""
    drop_dead_nodes(captured.graph, captured.attributes.__getitem__)
    targets = {str(n.target) for n in captured.graph.nodes if n.op in ("call_module", "get_attr")}
    attributes = {name: captured.attributes[name] for name in sorted(targets)}
    _check_names(model, attributes)
    module = TracedModule(attributes, captured.graph, class_name=type(model).__name__)
    _keep_buffers_transient(model, module)
    parts = set(model.modules())
    for part in module.modules():
        if part not in parts:  # the model's own parts keep their mode
            part.training = model.training
    if hasattr(model, "config"):
        module.config = model.config
    template.attach(module)
    return module


@functools.cache
def _names_of_graph_modules() -> frozenset[str]:
    """Return the attributes that torch.fx and TracedModule use beside those of every module."""
    empty = TracedModule({}, fx.Graph())
    return frozenset({*dir(TracedModule), *vars(empty)}) - {*dir(nn.Module), *vars(nn.Module())}


def _check_names(model: nn.Module, attributes: Iterable[str]) -> None:
    """Raise if the model has a parameter, buffer or module with a name that a graph needs."""
    for name in attributes:
        first = name.partition(".")[0]
        if first in _names_of_graph_modules():
            raise TraceError(
                f"{type(model).__name__}: it has a parameter, buffer or module '{first}', and a "
                "graph has an attribute of that name itself. Rename it, or make the model a part "
                "of another module (self.model = model)."
            )


def drop_dead_nodes(
    graph: fx.Graph,
    module_of: Callable[[str], nn.Module],
    keep: Callable[[fx.Node], bool] = lambda node: False,
) -> int:
    """Remove unused nodes and return their number; a mutation is always used."""
    before = len(graph.nodes)
    for node in reversed(graph.nodes):
        needed = node.op in ("placeholder", "output") or node.users or keep(node)
        if not needed and not is_mutation(node, module_of):
            graph.erase_node(node)
    return before - len(graph.nodes)


def _keep_buffers_transient(model: nn.Module, module: nn.Module) -> None:
    """Keep buffers out of the graph's state_dict that are not in the model's."""
    stored = set(model.state_dict(keep_vars=True))
    for name, _ in model.named_buffers():
        owner_name, _, leaf = name.rpartition(".")
        with contextlib.suppress(AttributeError):
            owner = module.get_submodule(owner_name)
            if name not in stored and leaf in owner._buffers:
                owner._non_persistent_buffers_set.add(leaf)
