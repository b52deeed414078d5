"""What a pass is: `(graph, pass_args=None) -> (graph, info)`, checked at the door.

A pass is a typed function under `@graph_pass`. The decorator parses the arguments into a frozen
dataclass, checks that the metadata the pass needs is there, lints and recompiles the graph after
a rewrite, notes the pass's name on any error, and lists the pass in `PASSES`.

    @dataclass(frozen=True)
    class CountArgs:
        op: str = "dropout"

    @graph_pass("count_ops_analysis_pass", CountArgs, needs=("common",))
    def count_ops_analysis_pass(graph, args):
        '''How many nodes have the op `args.op`.'''
        ...
        return graph, {"count": count}
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from chop.config import parse
from chop.errors import PassError, RegistryError
from chop.ir.graph import MaseGraph
from chop.ir.meta import MaseMetadata
from chop.log import warn_once
from chop.passes.info import PassInfo
from chop.registry import Registry, suggest

PassResult = tuple[MaseGraph, dict[str, Any]]
PassFunction = Callable[..., PassResult]
ModuleFunction = Callable[[nn.Module, Any], tuple[nn.Module, dict[str, Any]]]
A = TypeVar("A")

PASSES: Registry[PassFunction] = Registry("pass")
"""Every pass of the project, by name."""

NEEDS: dict[str, tuple[str, Callable[[MaseMetadata], bool]]] = {
    "init": ("init_metadata_analysis_pass", lambda meta: True),
    "common": ("add_common_metadata_analysis_pass", lambda meta: meta.common.args is not None),
    "software": (
        "add_software_metadata_analysis_pass",
        lambda meta: meta.software.args is not None,
    ),
    "hardware": (
        "add_hardware_metadata_analysis_pass",
        lambda meta: meta.hardware.is_implicit is not None,
    ),
}
"""What a pass may need on every node, the pass that gives it, and how to see that it is there."""

KINDS = ("_analysis_pass", "_transform_pass", "_interface_pass")
"""How the name of a pass ends; the documentation and `chop.passes` list passes by it."""

OLD_KEYS = ("report", "dummy_in", "input_generator", "baseline_weight_path", "load_type")
"""Arguments that programs for DeepWok/mase give to passes that have no use for them here."""


@dataclass(frozen=True)
class NoArgs:
    """Arguments of a pass that takes none."""


@dataclass(frozen=True)
class PassSpec:
    """What a pass declares of itself; `pass_function.spec` holds it."""

    name: str
    args: type
    needs: tuple[str, ...]
    rewrites: bool
    preserves: bool
    on_module: ModuleFunction | None = None


def graph_pass(
    name: str,
    args: type[A] = NoArgs,  # type: ignore[assignment]
    *,
    needs: tuple[str, ...] = (),
    rewrites: bool = False,
    preserves: bool = True,
    on_module: ModuleFunction | None = None,
) -> Callable[[Callable[[MaseGraph, A], PassResult]], PassFunction]:
    """Register a typed function as the pass `name`.

    `needs` names metadata that must be there; `rewrites` says that the graph's topology or
    modules change; `preserves` claims that the output of the model does not. `on_module` is what
    the pass does to a plain module, where it takes one.
    """
    unknown = [need for need in needs if need not in NEEDS]
    if unknown:
        raise RegistryError(f"{name}.needs: unknown '{unknown[0]}'. {suggest(unknown[0], NEEDS)}")
    if not name.endswith(KINDS):
        raise RegistryError(f"pass '{name}': its name must end in {' or '.join(KINDS)}.")
    spec = PassSpec(name, args, needs, rewrites, preserves, on_module)

    def decorate(function: Callable[[MaseGraph, A], PassResult]) -> PassFunction:
        @functools.wraps(function)
        def run(graph: MaseGraph, pass_args: Mapping[str, Any] | None = None, **more: Any) -> Any:
            try:
                return _run(function, spec, *_as_one(spec, graph, pass_args, more))
            except Exception as error:
                error.add_note(f"in pass {name}")  # a note leaves type and message untouched
                raise

        run.spec = spec  # type: ignore[attr-defined]
        return PASSES.register(name, run)

    return decorate


def check_exports(package: Mapping[str, Any]) -> None:
    """Raise where a package of passes registers a pass in one of its files and hides it.

    `package` is its `globals()`, whose `__all__` names what it exports.
    """
    place, exported = package["__name__"], package["__all__"]
    for name, run in PASSES.items():
        if run.__module__.startswith(f"{place}.") and name not in exported:
            raise RegistryError(
                f"{place}: the pass '{name}' of {run.__module__} is not exported. Import it in "
                f"{place}/__init__.py and name it in __all__."
            )


def parse_args(cls: type[A], given: Any, where: str) -> A:
    """The arguments of a pass; those that only an older program needs are left out, and said so.

    A class of arguments may have `modern`, which gives older layouts in its own.
    """
    modern = getattr(cls, "modern", None)
    args = given if modern is None else modern(given)
    if isinstance(args, Mapping):
        own = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        idle = [key for key in OLD_KEYS if key in args and key not in own]
        for key in idle:
            warn_once(__name__, f"{where}.{key}: has no effect.")
        args = {key: value for key, value in args.items() if key not in idle}
    return parse(cls, args, where)


def _as_one(
    spec: PassSpec, graph: Any, pass_args: Any, more: Mapping[str, Any]
) -> tuple[MaseGraph, Any]:
    """The graph and all its arguments, which may also be given by name.

    Where a pass compares with `original_graph`, older programs give it first and the graph second.
    """
    own = {field.name for field in dataclasses.fields(spec.args)}
    if isinstance(pass_args, MaseGraph) and "original_graph" in own:
        return pass_args, {"original_graph": graph, **more}
    if not more:
        return graph, pass_args
    return graph, {**(pass_args or {}), **more}


def short_name(name: str) -> str:
    """The name a pass has in configuration paths: `quantize_transform_pass` -> `quantize`."""
    for ending in (*KINDS, "_pass"):
        name = name.removesuffix(ending)
    return name


def _run(
    function: Callable[[MaseGraph, Any], PassResult],
    spec: PassSpec,
    graph: MaseGraph,
    pass_args: Mapping[str, Any] | None,
) -> PassResult:
    if spec.on_module is not None and isinstance(graph, nn.Module):
        return spec.on_module(graph, parse_args(spec.args, pass_args, short_name(spec.name)))
    if not isinstance(graph, MaseGraph):
        kind = type(graph).__name__
        raise PassError(
            f"{spec.name}: expected a MaseGraph, got {kind}. Wrap it: MaseGraph(model)."
        )
    args = _checked_args(graph, spec, pass_args)
    result, info = function(graph, args)
    if spec.rewrites:
        result.recompile()
    return result, PassInfo(info) if type(info) is dict else info


def _checked_args(graph: MaseGraph, spec: PassSpec, pass_args: Mapping[str, Any] | None) -> Any:
    args: Any = parse_args(spec.args, pass_args, short_name(spec.name))
    check_needs(graph, spec)
    return args


def check_call(run: PassFunction, graph: MaseGraph, pass_args: Mapping[str, Any] | None) -> None:
    """Raise where the pass `run` would refuse its arguments or the graph before it starts."""
    _checked_args(graph, run.spec, pass_args)  # type: ignore[attr-defined]


def check_needs(graph: MaseGraph, spec: PassSpec) -> None:
    """Raise where a node lacks metadata the pass needs, naming the pass that gives it."""
    for need in spec.needs:
        remedy, has = NEEDS[need]
        for node in graph.fx_graph.nodes:
            meta = node.meta.get("mase")
            if not isinstance(meta, MaseMetadata) or not has(meta):
                raise PassError(
                    f"{spec.name}: node '{node.name}' has no {need} metadata. Run {remedy} first."
                )
