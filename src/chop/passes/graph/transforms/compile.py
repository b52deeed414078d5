"""Run a graph's model through torch.compile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from chop.errors import ConfigError, PassError
from chop.files import cache_dir
from chop.ir.graph import MaseGraph
from chop.passes.base import PassResult, graph_pass
from chop.registry import suggest

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True)
class CompileArgs:
    """Compilation."""

    mode: Annotated[
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"],
        "Optimisation level of torch.compile",
    ] = "default"
    backend: Annotated[str, "Backend of torch.compile."] = "inductor"
    dynamic: Annotated[bool | None, "Expect other shapes. Default: torch decides."] = None
    fullgraph: Annotated[bool, "Raise an error for a graph break."] = False
    warm_up: Annotated[bool, "Make the first call at once, and time it."] = False
    report_breaks: Annotated[bool, "Look for graph breaks."] = True
    cache: Annotated[Path | None, "Folder of compiled code. Default: the user's cache."] = None
    dummy_in: Annotated[
        dict[str, Any] | None, "Inputs of the first call. Default: those of the graph."
    ] = field(default=None)


@graph_pass("compile_transform_pass", CompileArgs)
def compile_transform_pass(graph: MaseGraph, args: CompileArgs) -> PassResult:
    """Make `mg.model(...)` run compiled code; nodes, modules and checkpoints stay unchanged.

    Compiled code is stored between runs in `cache` (by default the user's cache folder, unless the
    environment names another). `info["breaks"]` lists graph breaks by node and reason,
    `info["first_call"]` is the seconds of the first call, if one was made. Undo it with
    `uncompile(mg)`.
    """
    check_backend(args.backend)
    if args.cache is not None or CACHE_VARIABLE not in os.environ:
        # by default Inductor stores code with the temporary files
        os.environ[CACHE_VARIABLE] = str(args.cache or cache_dir() / "inductor")
    inputs = args.dummy_in or graph.dummy_in
    breaks: list[dict[str, str]] = []
    uncompile(graph)
    if args.report_breaks and inputs is not None:
        breaks = find_breaks(graph, inputs)
    options: dict[str, Any] = {} if args.mode == "default" else {"mode": args.mode}
    graph.model.compile(
        backend=args.backend, dynamic=args.dynamic, fullgraph=args.fullgraph, **options
    )
    info: dict[str, Any] = {"breaks": breaks, "first_call": None}
    if args.warm_up:
        info["first_call"] = _first_call(graph, inputs)
    return graph, info


def check_backend(name: str) -> None:
    """Raise unless torch.compile has a backend of this name."""
    backends = torch.compiler.list_backends(exclude_tags=None)
    if name not in backends:
        raise ConfigError(f"no backend '{name}'. {suggest(name, backends)}")


def uncompile(graph: MaseGraph) -> None:
    """Make `mg.model` run as plain Python again."""
    graph.model._compiled_call_impl = None


def find_breaks(graph: MaseGraph, inputs: dict[str, Any]) -> list[dict[str, str]]:
    """Return the graph breaks of one run: the node of the code line, and torch's reason."""
    torch._dynamo.reset()
    explain: Callable[..., Any] = torch._dynamo.explain(graph.model.forward)
    with torch.no_grad():
        report = explain(**inputs)
    torch._dynamo.reset()
    return [
        {"node": _node_at(graph, reason.user_stack), "reason": str(reason.reason).split("\n")[0]}
        for reason in report.break_reasons
    ]


def _node_at(graph: MaseGraph, stack: Any) -> str:
    """Return the node whose line of generated code is innermost on a stack; '?' if none is."""
    by_name = {node.name: node for node in graph.fx_graph.nodes}
    for frame in reversed(list(stack)):
        assigned = (frame.line or "").split("=")[0].strip()
        if assigned in by_name:
            return assigned
    return "?"


def _first_call(graph: MaseGraph, inputs: dict[str, Any] | None) -> float:
    if inputs is None:
        raise PassError("compile: warm_up needs dummy_in; the graph has none of its own.")
    start = time.perf_counter()
    with torch.no_grad():
        graph.model(**inputs)
    return time.perf_counter() - start
