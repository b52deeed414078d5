"""MaseGraph: a model captured as a torch.fx graph whose nodes carry MASE metadata."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx, nn

from chop import notebook
from chop.arguments import MANY, MAPPING, NEW_FILE, NONE, STEM, Kind, an, check, takes
from chop.errors import CheckpointError, ChopError, GraphError, TraceError
from chop.ir.drawing import draw
from chop.ir.graph.generating_model import Generator, has_cache
from chop.ir.guards import guards_of
from chop.ir.store.checkpoint import load_graph, save_graph, save_state_dict
from chop.ir.store.traced import TracedModule
from chop.ir.trace.cache_capture import (
    check_generates,
    check_has_cache,
    names_with_cache,
    takes_cache,
)
from chop.ir.trace.capture_check import warn_if_different
from chop.ir.trace.inputs import check_concrete, example_inputs
from chop.ir.trace.recapture import CaptureAgain, structure_of
from chop.ir.trace.tracer import TraceOptions, trace
from chop.log import get_logger
from chop.registry import suggest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = get_logger(__name__)

MODEL = an(nn.Module, "a torch.nn.Module")
CLASSES = Kind(
    "a list of classes and functions",
    lambda value: MANY.accepts(value) and all(callable(each) for each in value),
)


class MaseGraph:
    """Model as a graph: `model` runs it, `fx_graph` is it, `node.meta["mase"]` annotates it.

    `hf_input_names` are the inputs of a Hugging Face model; `dummy_in` are example inputs (a
    mapping, a tensor or a tuple). `custom_ops` names your own modules and functions:
    `{"modules": {MyLayer: {"mase_op": "my_layer"}}}` makes MyLayer one node. `leaf_modules` are
    further modules, by name or class, that become one node. `specialize` keeps the branch of these
    inputs where control flow depends on values. `cf_args` are arguments of forward that are not
    inputs; each must have its default.

    A call with sizes at which the model's code would branch differently raises a SizeError; with
    `recapture` an unchanged graph is captured again.

    With `cache` a language model is captured with its key-value cache, so that `generate` works.

    The graph shares modules and parameters with `model`: training one trains the other.
    """

    model: TracedModule
    _structure: Any = None
    """Structure of the unchanged graph of a model that could have a cache."""

    @takes(
        TraceError,
        model=MODEL,
        hf_input_names=MANY | NONE,
        custom_ops=MAPPING | NONE,
        leaf_modules=MANY,
        cf_args=MAPPING | NONE,
    )
    def __init__(
        self,
        model: nn.Module,
        hf_input_names: Iterable[str] | None = None,
        dummy_in: Any = None,
        custom_ops: Mapping[str, Any] | None = None,
        *,
        leaf_modules: Iterable[str | type[nn.Module]] = (),
        specialize: bool = False,
        cf_args: Mapping[str, Any] | None = None,
        recapture: bool = False,
        cache: bool = False,
    ) -> None:
        check_custom_ops(custom_ops or {})
        check_concrete(model, cf_args or {})
        self.custom_ops: dict[str, Any] = dict(custom_ops or {})
        self.original = model
        self._shared: set[int] = set()
        if isinstance(model, TracedModule):
            self.dummy_in: dict[str, Any] | None = None
            self.model = model
            return
        leaves = (*leaf_modules, *self.custom_ops.get("modules", {}))
        check_leaves(model, leaf_modules)
        options = TraceOptions(leaves, specialize, cache)
        if cache:
            check_has_cache(model)
            hf_input_names = names_with_cache(model, hf_input_names, dummy_in)
        self.dummy_in = example_inputs(model, hf_input_names, dummy_in)
        self.model = _captured(model, self.dummy_in, options)
        if cache:
            check_generates(model, self.model, self.dummy_in or {})
        self._shared.update(id(p) for p in self.model.parameters())
        warn_if_different(model, self.model, self.dummy_in)
        if not cache and takes_cache(model):
            self._structure = structure_of(self.model)
        if recapture:
            example = self.dummy_in or {}
            self.model.recapture = CaptureAgain(
                self.model, model, lambda inputs: trace(model, {**example, **inputs}, options)
            )

    @property
    def original(self) -> nn.Module | None:
        """Model of the capture; only a weak reference once passes have replaced parameters."""
        return self._original() if isinstance(self._original, weakref.ref) else self._original

    @original.setter
    def original(self, model: nn.Module | None) -> None:
        self._original: nn.Module | weakref.ref[nn.Module] | None = model

    def _release_original(self) -> None:
        """Release the model once it does not share all parameters, to keep one copy of them."""
        now = {id(p) for p in self.model.parameters()}
        if isinstance(self._original, nn.Module) and not self._shared <= now:
            self._original = weakref.ref(self._original)
            self.model.recapture = None  # it captures the unchanged model

    @classmethod
    def from_module(cls, model: nn.Module, *args: Any, **options: Any) -> MaseGraph:
        """Return `MaseGraph(model, …)`."""
        return cls(model, *args, **options)

    @property
    def fx_graph(self) -> fx.Graph:
        """Graph of torch.fx; assigning one recompiles the model."""
        return self.model.graph

    @fx_graph.setter
    def fx_graph(self, graph: fx.Graph) -> None:
        self.model.graph = graph

    @property
    def nodes(self) -> Any:
        """Nodes of the graph, in order of execution."""
        return self.fx_graph.nodes

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Modules of the model, by qualified name."""
        return dict(self.model.named_modules())

    def open_sizes(self) -> dict[str, list[str]]:
        """Return `free`, `pinned` or the condition of every size of every input.

        The table is empty for a graph captured without inputs.
        """
        guards = guards_of(self.model)
        return {} if guards is None else guards.openness()

    def recompile(self) -> None:
        """Check the graph and make `model` run it, after a change to its nodes."""
        self.fx_graph.lint()
        self.model.recompile()
        self._release_original()

    def generate(self, *args: Any, native: bool | None = None, **kwargs: Any) -> Any:
        """Generate tokens by transformers' `generate`, run on this graph.

        The arguments are those of transformers: `mg.generate(**inputs, max_new_tokens=20)`,
        sampling, beams, a streamer, `past_key_values`, `cache_implementation="static"`. A graph
        that was captured without a cache is captured again with one if no pass has changed it.

        With `native=False` the steps of one sequence on the CPU run op by op in PyTorch too, from
        this call on. By default each is one native call, if all its ops have native code.
        """
        model: Any = self.as_transformers()
        if not has_cache(self.model) and kwargs.get("use_cache") is not False:
            model = self._with_cache().as_transformers()
        if native is not None:
            model.uses_native_step = native
        return model.generate(*args, **kwargs)

    def _with_cache(self) -> MaseGraph:
        """Return a graph with a cache of the same unchanged model; raise if passes changed it."""
        kind, original = type(self.model).__name__, self.original
        if original is None or structure_of(self.model) != self._structure:
            raise GraphError(
                f"generate: {kind} was captured without its cache, and changed since. Capture "
                "it with MaseGraph(model, cache=True) before the passes, or pass use_cache=False: "
                "each token then takes a run over all before it."
            )
        again: MaseGraph | None = self.__dict__.get("_cached")
        if again is None:
            logger.warning(
                "generate: %s was captured without its cache. It is captured again; "
                "MaseGraph(model, cache=True) captures it once.",
                kind,
            )
            again = self.__dict__["_cached"] = MaseGraph(
                original, custom_ops=self.custom_ops, cache=True
            )
        again.model.train(self.model.training)
        return again

    def as_transformers(self) -> PreTrainedModel:
        """Return this graph as a model of its original class, with that class's `generate`.

        The model is created again only after the graph has changed, so that compiled code of one
        call of `generate` is used by the next.
        """
        generator: Generator | None = self.__dict__.get("_generator")
        if generator is None or not generator.is_of(self.model):
            original = self.original
            generator = Generator(self.model, None if original is None else type(original))
            self.__dict__["_generator"] = generator
        return generator.model

    @takes(GraphError, path=NEW_FILE, file=NEW_FILE | NONE)
    def draw(self, path: str | Path = "mase_graph.svg", *, file: str | Path | None = None) -> Path:
        """Draw the graph, as SVG or DOT by the suffix, and return the path.

        `file` is another name for `path`.
        """
        return draw(self.fx_graph, path if file is None else file, type(self.model).__name__)

    @takes(CheckpointError, path=STEM)
    def export(
        self,
        path: str | Path = "mase_graph",
        save_format: Literal["graph", "packed", "state_dict"] = "graph",
    ) -> None:
        """Write `<path>.json` and `<path>.safetensors`, or with "state_dict" only the tensors.

        "packed": parameters in formats of at most 8 bits are stored with those bits, without
        their float values.
        """
        if save_format not in ("graph", "packed", "state_dict"):
            raise CheckpointError(
                f"export: unknown save_format '{save_format}'. Allowed: graph, packed, state_dict."
            )
        if save_format == "state_dict":
            save_state_dict(self.model, path)
        else:
            save_graph(self.model, path, self.dummy_in, is_packed=save_format == "packed")

    @classmethod
    @takes(CheckpointError, path=STEM, classes=CLASSES, custom_ops=MAPPING | NONE)
    def from_checkpoint(
        cls, path: str | Path, classes: Iterable[Any] = (), custom_ops: Any = None
    ) -> MaseGraph:
        """Load a graph that `export` wrote; `classes` are your own classes and functions in it."""
        loaded = load_graph(path, (*classes, *(custom_ops or {}).get("modules", {})))
        graph = cls(loaded.model, custom_ops=custom_ops)
        graph.dummy_in = loaded.dummy_in
        graph.original = None
        return graph

    def __deepcopy__(self, memo: dict[int, Any]) -> MaseGraph:
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.model = copy.deepcopy(self.model, memo)
        new.dummy_in = copy.deepcopy(self.dummy_in, memo)
        new.custom_ops = dict(self.custom_ops)
        new._shared = set()
        new.original = None  # it shares parameters with the copied graph
        return new

    def __getstate__(self) -> dict[str, Any]:
        original = self._original if isinstance(self._original, nn.Module) else None
        private = ("_generator", "_cached", "_structure")  # their ids differ elsewhere
        state = {k: v for k, v in vars(self).items() if k not in private}
        return {**state, "_original": original, "_shared": set()}

    def _repr_html_(self) -> str | None:
        """Return the graph with its inspector for notebooks, or None without a report package."""
        return notebook.view_of(self)

    def __repr__(self) -> str:
        return f"MaseGraph({type(self.model).__name__}, {len(self.nodes)} nodes)"


def check_custom_ops(custom_ops: Mapping[str, Any]) -> None:
    """Raise for keys other than modules and functions."""
    for kind, listed in custom_ops.items():
        if kind not in ("modules", "functions"):
            raise TraceError(f"custom_ops: unknown key '{kind}'. Allowed: modules, functions.")
        check(f"custom_ops['{kind}']", MAPPING, listed, TraceError)


def check_leaves(model: nn.Module, leaves: Iterable[Any]) -> None:
    """Raise for the name of a module that does not exist."""
    paths = [path for path, _ in model.named_modules() if path]
    for leaf in leaves:
        if isinstance(leaf, str) and leaf not in paths:
            raise TraceError(f"leaf_modules: no module '{leaf}'. {suggest(leaf, paths)}")


def _captured(model: nn.Module, inputs: Any, options: TraceOptions) -> TracedModule:
    try:
        return trace(model, inputs, options)
    except (TypeError, RuntimeError, ValueError, IndexError, AttributeError) as error:
        if inputs is None or isinstance(error, ChopError):
            raise
        runs = _runs(model, inputs)
        if runs and options.cache:
            raise TraceError(
                f"cache: {type(model).__name__} uses its cache in a way that cannot be recorded "
                f"({type(error).__name__}: {error}). Capture it without a cache."
            ) from error
        if runs or isinstance(error, AttributeError):
            raise
        shown = ", ".join(f"{name} ({_shape(value)})" for name, value in inputs.items())
        raise TraceError(
            f"{type(model).__name__} does not run on the inputs {shown}: {error}. Give dummy_in "
            "that it takes: a mapping by name, a tensor or a tuple."
        ) from error


def _runs(model: nn.Module, inputs: Mapping[str, Any]) -> bool:
    """Return True if the model itself runs, so that the capture failed."""
    try:
        with torch.no_grad():
            copy.deepcopy(model).eval()(**inputs)
    except Exception:  # the user's model, and any error in it
        return False
    return True


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{list(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__
