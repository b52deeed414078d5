"""Captures a model as a torch.fx GraphModule: run it, record it, reconcile the two modes.

Fake tensors are tried first, real ones where the model needs values. Without inputs, a plain
module is traced symbolically by torch.fx instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from chop.errors import TraceError
from chop.ir.guards import Guard, Guards
from chop.ir.outputs import OutputTemplate
from chop.ir.store.traced import TracedModule
from chop.ir.trace.cache_capture import PastRecording, make_masks_optional
from chop.ir.trace.effects import is_mutation, is_random_draw
from chop.ir.trace.environment import kept_buffers, quiet, tracing_environment
from chop.ir.trace.recorder import Recorder, user_frame
from chop.ir.trace.resolution import Recorded, find_guards, shapes, simplified
from chop.ir.trace.result_cache import FakeResults
from chop.ir.trace.tracked import ValueDependenceError
from chop.ir.trace.training_mode import ModesDifferError, Trace, follow_training_flag, merge
from chop.log import get_logger

logger = get_logger(__name__)

_CONTAINERS = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
"""Modules of torch.nn that are made of others and are looked into."""
_REMEDY = (
    "Rewrite it without looking at values (torch.where, masking), make the module that does it a "
    "leaf (leaf_modules=[…] or mase_leaf = True on the class), or pass specialize=True to keep the "
    "branch this input takes."
)


@dataclasses.dataclass(frozen=True)
class TraceOptions:
    """What the user may say about how a model is captured."""

    leaf_modules: tuple[Any, ...] = ()
    specialize: bool = False
    cache: bool = False

    def is_leaf(self, module: nn.Module, name: str) -> bool:
        """Whether `module` is one node of the graph."""
        if getattr(module, "mase_leaf", False):
            return True
        if name in self.leaf_modules or type(module) in self.leaf_modules:
            return True
        inside_torch = type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))
        return inside_torch and not isinstance(module, _CONTAINERS)


def trace(
    model: nn.Module, inputs: Mapping[str, Any] | None, options: TraceOptions
) -> TracedModule:
    """The module that computes what `model` computes on inputs of these names."""
    with tracing_environment(model, cache=options.cache):
        # A tensor made in inference mode takes no part in gradients; its copy does.
        usable = inputs and {k: _map_tensors(v, _usable) for k, v in inputs.items()}
        captured, template, guards = _capture(model, usable, options)
    module = build(model, captured, template)
    if options.cache:
        guards = make_masks_optional(module.graph, guards)
        module.generation_config = getattr(model, "generation_config", None)
        module.recompile()
    guards.attach(module)
    return module


def _capture(
    model: nn.Module, inputs: Mapping[str, Any] | None, options: TraceOptions
) -> tuple[Trace, OutputTemplate, Guards]:
    """Both modes traced and made one; a module in which they cannot be is made a leaf."""
    run = _Run(model, inputs, options)
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


class _Run:
    """Runs of one model under one set of options."""

    def __init__(
        self, model: nn.Module, inputs: Mapping[str, Any] | None, options: TraceOptions
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.options = options
        self.on_real = False
        self.results = FakeResults()
        self.decided: set[Any] = set()
        self.found: list[Guard] = []

    def can_be_leaf(self, owner: str) -> bool:
        """A module without parameters of its own hides nothing when it becomes one node."""
        if not owner or owner in self.options.leaf_modules:
            return False
        try:
            module = self.model.get_submodule(owner)
        except AttributeError:
            return False
        return next(module.parameters(), None) is None

    def add_leaf(self, name: str) -> None:
        """Trace the module `name`, and all of its class, as one node from now on."""
        leaves = (*self.options.leaf_modules, name, type(self.model.get_submodule(name)))
        self.options = dataclasses.replace(self.options, leaf_modules=leaves)

    def trace(self, *, training: bool) -> tuple[Trace, OutputTemplate]:
        """One trace in one mode."""
        with _mode(self.model, training), kept_buffers(self.model):
            if self.inputs is None:
                return _symbolic(self.model, self.options)
            if not self.on_real:
                try:
                    with quiet("torch._subclasses.fake_tensor"):
                        return self._record(*_fake(self.inputs))
                except (TraceError, ModesDifferError):
                    raise
                except Exception as reason:  # fakes lack values and some kernels: real ones decide
                    logger.debug("fake tensors do not suffice (%s); using real ones.", reason)
                    self.on_real = True
            return self._record(contextlib.nullcontext(), self.inputs)

    def _record(
        self, world: contextlib.AbstractContextManager[Any], inputs: Mapping[str, Any]
    ) -> tuple[Trace, OutputTemplate]:
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
        self._find_guards(recorder)
        recorder.output(template.plain(result))
        drop_dead_nodes(recorder.graph, recorder.attributes.__getitem__, keep=is_random_draw)
        return Trace(recorder.graph, recorder.attributes, _taken_names(self.model)), template

    def _find_guards(self, recorder: Recorder) -> None:
        """Add what this run decided; what an earlier one did, in another mode, is known."""
        new = [d for d in recorder.decisions if d.key() not in self.decided]
        self.decided.update(d.key() for d in new)
        recorded = Recorded(new, recorder.attributes, self._tensors(), recorder.tensor_node)
        self.found += find_guards(recorded)

    def _tensors(self) -> dict[str, Any]:
        return {k: v for k, v in (self.inputs or {}).items() if holds_tensor(v)}

    def guards(self) -> Guards:
        """What must hold of the sizes of the inputs, whatever the mode."""
        return Guards(simplified(self.found), shapes(self._tensors()))

    def _call(self, recorder: Recorder, inputs: Mapping[str, Any]) -> Any:
        for name, value in inputs.items():
            if holds_tensor(value):
                recorder.placeholder(name, value)
        if self.options.cache:
            past = PastRecording(self.model, recorder)
            with past.world():
                return self.model(**past.inputs(inputs))
        positional = [v for k, v in inputs.items() if k.startswith("args_")]
        named = {k: v for k, v in inputs.items() if not k.startswith("args_")}
        return self.model(*positional, **named) if not positional else self._positional(inputs)

    def _positional(self, inputs: Mapping[str, Any]) -> Any:
        return self.model(*inputs.values())


def _taken_names(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_modules()}


def holds_tensor(value: Any) -> bool:
    """Whether a tensor is in `value`, so that it becomes an input of the graph."""
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, Mapping):
        return any(holds_tensor(v) for v in value.values())
    return isinstance(value, tuple | list) and any(holds_tensor(v) for v in value)


@contextlib.contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    before = [(m, m.training) for m in model.modules()]
    for module, _ in before:
        module.training = training
    try:
        yield
    finally:
        for module, was in before:
            module.training = was


def _fake(inputs: Mapping[str, Any]) -> tuple[FakeTensorMode, dict[str, Any]]:
    """A world of fake tensors and the inputs in it."""
    world = FakeTensorMode(allow_non_fake_inputs=True)
    return world, {name: _map_tensors(value, world.from_tensor) for name, value in inputs.items()}


def _usable(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if tensor.is_inference() else tensor


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
    """Turn a question about values into an error that says where and what to do."""
    try:
        yield
    except ValueDependenceError as error:
        where = user_frame(traceback.extract_tb(error.__traceback__))
        raise TraceError(f"{where}: value-dependent control flow ({error}). {_REMEDY}") from None


def _symbolic(model: nn.Module, options: TraceOptions) -> tuple[Trace, OutputTemplate]:
    """A trace by torch.fx's proxies, for a model that came without inputs."""
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
            attributes[str(node.target)] = _attribute(model, str(node.target))
        node.meta["owner"] = ""
    return Trace(graph, attributes, _taken_names(model)), OutputTemplate(None, {})


class _SymbolicTracer(fx.Tracer):
    def __init__(self, options: TraceOptions) -> None:
        super().__init__()
        self.options = options

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self.options.is_leaf(m, module_qualified_name)


def _attribute(model: nn.Module, name: str) -> Any:
    value: Any = model
    for part in name.split("."):
        value = getattr(value, part)
    return value


def build(model: nn.Module, captured: Trace, template: OutputTemplate) -> TracedModule:
    """The GraphModule of a trace: it shares modules and parameters with `model`."""
    drop_dead_nodes(captured.graph, captured.attributes.__getitem__)
    targets = {str(n.target) for n in captured.graph.nodes if n.op in ("call_module", "get_attr")}
    attributes = {name: captured.attributes[name] for name in sorted(targets)}
    module = TracedModule(attributes, captured.graph, class_name=type(model).__name__)
    _keep_buffers_transient(model, module)
    _keep_modes(model, module)
    if hasattr(model, "config"):
        module.config = model.config
    template.attach(module)
    return module


def _keep_modes(model: nn.Module, module: nn.Module) -> None:
    """Parts of the model stay in the mode they are in; new parts take the model's."""
    known = set(model.modules())
    for part in module.modules():
        if part not in known:
            part.training = model.training


def drop_dead_nodes(
    graph: fx.Graph,
    module_of: Callable[[str], nn.Module],
    keep: Callable[[fx.Node], bool] = lambda node: False,
) -> int:
    """Remove what nothing uses, and say how many; a mutation is always used."""
    before = len(graph.nodes)
    for node in reversed(graph.nodes):
        needed = node.op in ("placeholder", "output") or node.users or keep(node)
        if not needed and not is_mutation(node, module_of):
            graph.erase_node(node)
    return before - len(graph.nodes)


def _keep_buffers_transient(model: nn.Module, module: nn.Module) -> None:
    """A buffer the model leaves out of its state_dict stays out of the graph's."""
    kept = set(model.state_dict(keep_vars=True))
    for name, _ in model.named_buffers():
        owner_name, _, leaf = name.rpartition(".")
        with contextlib.suppress(AttributeError):
            owner = module.get_submodule(owner_name)
            if name not in kept and leaf in owner._buffers:
                owner._non_persistent_buffers_set.add(leaf)
