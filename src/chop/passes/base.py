"""The form of a pass: `(graph, pass_args=None) -> (graph, info)`, with checked arguments.

A pass is a typed function under `@graph_pass`. The decorator lists it in `PASSES`. It parses the
arguments into a frozen dataclass and checks that the metadata exists that the pass needs. It lints
and recompiles the graph after a rewrite, and adds the pass's name to any error.

    @dataclass(frozen=True)
    class CountArgs:
        op: str = "dropout"

    @graph_pass("count_ops_analysis_pass", CountArgs, needs=("common",))
    def count_ops_analysis_pass(graph, args):
        '''Count the nodes with the op `args.op`.'''
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
"""Metadata that a pass may need: the pass that adds it, and a test for it."""

KINDS = ("_analysis_pass", "_transform_pass", "_interface_pass")
"""Endings of pass names; the documentation and `chop.passes` list passes by them."""

OLD_KEYS = ("report", "dummy_in", "input_generator", "baseline_weight_path", "load_type")
"""Arguments that programs for DeepWok/mase pass to passes that do not use them here."""


@dataclass(frozen=True)
class NoArgs:
    """Settings of a pass without settings."""


@dataclass(frozen=True)
class PassSpec:
    """Declarations of a pass, stored as `pass_function.spec`."""

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

    `needs`: metadata that must exist. `rewrites`: the topology or the modules of the graph change.
    `preserves`: the output of the model does not change. `on_module`: the function for a plain
    module, if the pass accepts one.
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
    """Raise if a package of passes registers a pass without exporting it.

    `package` is its `globals()`, whose `__all__` has the exported names.
    """
    place, exported = package["__name__"], package["__all__"]
    for name, run in PASSES.items():
        if run.__module__.startswith(f"{place}.") and name not in exported:
            raise RegistryError(
                f"{place}: the pass '{name}' of {run.__module__} is not exported. Import it in "
                f"{place}/__init__.py and name it in __all__."
            )


def parse_args(cls: type[A], pass_args: Any, where: str) -> A:
    """Parse the arguments of a pass; warn of those that only older programs use, and drop them.

    A class of arguments may have `modern`, which converts older layouts.
    """
    modern = getattr(cls, "modern", None)
    args = pass_args if modern is None else modern(pass_args)
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
    """Return the graph and all its arguments, which may also be keywords.

    Older programs pass `original_graph` first and the graph second.
    """
    own = {field.name for field in dataclasses.fields(spec.args)}
    if isinstance(pass_args, MaseGraph) and "original_graph" in own:
        return pass_args, {"original_graph": graph, **more}
    if not more:
        return graph, pass_args
    return graph, {**(pass_args or {}), **more}


def short_name(name: str) -> str:
    """Return the name of a pass in configuration paths: `quantize_transform_pass` -> `quantize`."""
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
    """Raise if the pass `run` would reject its arguments or the graph before it starts."""
    _checked_args(graph, run.spec, pass_args)  # type: ignore[attr-defined]


def check_needs(graph: MaseGraph, spec: PassSpec) -> None:
    """Raise if a node lacks metadata that the pass needs, and name the pass that adds it."""
    for need in spec.needs:
        remedy, has = NEEDS[need]
        for node in graph.fx_graph.nodes:
            meta = node.meta.get("mase")
            if not isinstance(meta, MaseMetadata) or not has(meta):
                raise PassError(
                    f"{spec.name}: node '{node.name}' has no {need} metadata. Run {remedy} first."
                )
