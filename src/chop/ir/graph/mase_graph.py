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
from chop.ir.trace.cache_capture import check_has_cache, names_with_cache
from chop.ir.trace.capture_check import warn_if_different
from chop.ir.trace.inputs import check_concrete, example_inputs
from chop.ir.trace.recapture import CaptureAgain
from chop.ir.trace.tracer import TraceOptions, trace
from chop.registry import suggest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODEL = an(nn.Module, "a torch.nn.Module")
CLASSES = Kind(
    "a list of classes and functions",
    lambda value: MANY.accepts(value) and all(callable(each) for each in value),
)


class MaseGraph:
    """A model as a graph: `model` runs it, `fx_graph` is it, `node.meta["mase"]` annotates it.

    `hf_input_names` are the inputs a Hugging Face model is traced with; `dummy_in` gives example
    inputs (a mapping, a tensor or a tuple). `custom_ops` names modules and functions of your own:
    `{"modules": {MyLayer: {"mase_op": "my_layer"}}}` makes MyLayer one node. `leaf_modules` are
    further modules, by name or class, to keep whole. `specialize` keeps the branch this input
    takes where control flow depends on values. `cf_args` are arguments of forward that are no
    inputs; each must have its default.

    Called with sizes at which the model's code would have gone another way, the graph raises a
    SizeError; with `recapture` it is captured again there, as long as it is as it was captured.

    With `cache` a language model is captured with its cache of keys and values: `generate` runs.

    The graph shares modules and parameters with `model`: training one trains the other.
    """

    model: TracedModule

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
        self._shared.update(id(p) for p in self.model.parameters())
        warn_if_different(model, self.model, self.dummy_in)
        if recapture:
            self._recapture_with(model, options)

    def _recapture_with(self, model: nn.Module, options: TraceOptions) -> None:
        example = self.dummy_in or {}

        def capture(inputs: Mapping[str, Any]) -> TracedModule:
            return trace(model, {**example, **inputs}, options)

        self.model.recapture = CaptureAgain(self.model, model, capture)

    @property
    def original(self) -> nn.Module | None:
        """The model this was captured from, until passes have replaced parameters of it.

        From then on the graph does not keep it: it is there as long as somebody else does.
        """
        kept = self._original
        return kept() if isinstance(kept, weakref.ref) else kept

    @original.setter
    def original(self, model: nn.Module | None) -> None:
        self._original: nn.Module | weakref.ref[nn.Module] | None = model

    def _release_original(self) -> None:
        """Keep no second copy of the weights: hold the model only while it shares all of them."""
        now = {id(p) for p in self.model.parameters()}
        if isinstance(self._original, nn.Module) and not self._shared <= now:
            self._original = weakref.ref(self._original)
            self.model.recapture = None  # it speaks of the model as it was

    @classmethod
    def from_module(cls, model: nn.Module, *args: Any, **options: Any) -> MaseGraph:
        """The same as `MaseGraph(model, …)`."""
        return cls(model, *args, **options)

    @property
    def fx_graph(self) -> fx.Graph:
        """The torch.fx graph; assigning one recompiles the model."""
        return self.model.graph

    @fx_graph.setter
    def fx_graph(self, graph: fx.Graph) -> None:
        self.model.graph = graph

    @property
    def nodes(self) -> Any:
        """The nodes of the graph, in order of execution."""
        return self.fx_graph.nodes

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The live modules of the model, by qualified name."""
        return dict(self.model.named_modules())

    def open_sizes(self) -> dict[str, list[str]]:
        """Of every size of every input: `free`, `pinned`, or the condition it must meet.

        A graph captured without inputs has no such table: torch.fx refuses to decide by a size.
        """
        guards = guards_of(self.model)
        return {} if guards is None else guards.openness()

    def recompile(self) -> None:
        """Check the graph and make `model` run it, after a change to its nodes."""
        self.fx_graph.lint()
        self.model.recompile()
        self._release_original()

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Tokens that follow the ones given: transformers' own `generate`, run on this graph.

        It takes what transformers' takes: `mg.generate(**inputs, max_new_tokens=20)`, sampling,
        beams, a streamer, `past_key_values`, `cache_implementation="static"`. The graph must have
        been captured with `cache=True`; with `use_cache=False` any does.
        """
        model: Any = self.as_transformers()
        if not has_cache(self.model) and kwargs.get("use_cache") is not False:
            raise GraphError(
                f"generate: {type(self.model).__name__} was captured without its cache. Capture "
                "it with MaseGraph(model, cache=True), or pass use_cache=False: each token then "
                "takes a run over all before it."
            )
        return model.generate(*args, **kwargs)

    def as_transformers(self) -> PreTrainedModel:
        """This graph as a model of the class it came from, with that class's `generate`.

        It holds the graph as it is now, and is made again only after the graph has changed, so
        what was compiled for one call of `generate` serves the next.
        """
        known: Generator | None = self.__dict__.get("_generator")
        if known is None or not known.is_of(self.model):
            kept = self.original
            known = Generator(self.model, None if kept is None else type(kept))
            self.__dict__["_generator"] = known
        return known.model

    @takes(GraphError, path=NEW_FILE, file=NEW_FILE | NONE)
    def draw(self, path: str | Path = "mase_graph.svg", *, file: str | Path | None = None) -> Path:
        """Write a picture of the graph, as SVG or DOT by the suffix, and say where.

        `file` is another name for `path`.
        """
        return draw(self.fx_graph, path if file is None else file, type(self.model).__name__)

    @takes(CheckpointError, path=STEM)
    def export(
        self,
        path: str | Path = "mase_graph",
        save_format: Literal["graph", "packed", "state_dict"] = "graph",
    ) -> None:
        """Write `<path>.json` and `<path>.safetensors`, or with "state_dict" the tensors alone.

        "packed": what layers have in formats of at most 8 bits takes those bits; the float values
        it was rounded from are not kept.
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
        """The graph that `export` wrote. `classes` are classes and functions of your own in it."""
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
        new.original = None  # shares parameters with the graph this is a copy of
        return new

    def __getstate__(self) -> dict[str, Any]:
        kept = self._original if isinstance(self._original, nn.Module) else None
        state = {k: v for k, v in vars(self).items() if k != "_generator"}
        return {**state, "_original": kept, "_shared": set()}  # ids mean nothing elsewhere

    def _repr_html_(self) -> str | None:
        """Return the graph with its inspector for notebooks, or None without a report package."""
        return notebook.view_of(self)

    def __repr__(self) -> str:
        return f"MaseGraph({type(self.model).__name__}, {len(self.nodes)} nodes)"


def check_custom_ops(given: Mapping[str, Any]) -> None:
    """Refuse what says nothing about modules or functions of the user's own."""
    for kind, listed in given.items():
        if kind not in ("modules", "functions"):
            raise TraceError(f"custom_ops: unknown key '{kind}'. Allowed: modules, functions.")
        check(f"custom_ops['{kind}']", MAPPING, listed, TraceError)


def check_leaves(model: nn.Module, leaves: Iterable[Any]) -> None:
    """Refuse the name of a module that is not there."""
    paths = [path for path, _ in model.named_modules() if path]
    for leaf in leaves:
        if isinstance(leaf, str) and leaf not in paths:
            raise TraceError(f"leaf_modules: no module '{leaf}'. {suggest(leaf, paths)}")


def _captured(model: nn.Module, inputs: Any, options: TraceOptions) -> TracedModule:
    try:
        return trace(model, inputs, options)
    except (TypeError, RuntimeError, ValueError, IndexError) as error:
        if inputs is None or isinstance(error, ChopError) or _runs(model, inputs):
            raise
        shown = ", ".join(f"{name} ({_shape(value)})" for name, value in inputs.items())
        raise TraceError(
            f"{type(model).__name__} does not run on the inputs {shown}: {error}. Give dummy_in "
            "that it takes: a mapping by name, a tensor or a tuple."
        ) from error


def _runs(model: nn.Module, inputs: Mapping[str, Any]) -> bool:
    """Whether the model itself runs: then it is the capture that failed."""
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
