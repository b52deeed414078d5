"""A list of passes that runs as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from chop.arguments import FUNCTION, MANY, MAPPING, NONE, check
from chop.errors import ConfigError, PassError
from chop.ir.graph import MaseGraph
from chop.ir.meta import MaseMetadata
from chop.passes.base import NEEDS, PASSES, PassFunction
from chop.registry import suggest

When = Literal["given", "always", "missing"]


@dataclass(frozen=True)
class Step:
    """A pass and the condition under which it runs.

    `when`: "given" if the caller passes arguments, "always", or "missing" if a node lacks the
    metadata `gives` (or the caller passes arguments).
    """

    run: PassFunction
    when: When = "given"
    gives: str | None = None

    def __post_init__(self) -> None:
        check("Step.run", FUNCTION, self.run)
        if self.when not in get_args(When):
            raise ConfigError(
                f"step '{self.name}': runs when '{self.when}'. {suggest(self.when, get_args(When))}"
            )
        if self.when == "missing" and self.gives not in NEEDS:
            raise ConfigError(
                f"step '{self.name}': runs where metadata is missing, but gives {self.gives!r}. "
                f"{suggest(self.gives, NEEDS)}"
            )

    @property
    def name(self) -> str:
        """Name of the pass, the key of its arguments and its result."""
        spec = getattr(self.run, "spec", None)
        return str(getattr(self.run, "__name__", self.run)) if spec is None else str(spec.name)

    def is_due(self, graph: MaseGraph, arguments: Mapping[str, Any] | None) -> bool:
        """Return True if the pass must run on `graph`."""
        if arguments is not None or self.when == "always":
            return True
        return self.when == "missing" and not _has(graph, str(self.gives))


def _has(graph: MaseGraph, need: str) -> bool:
    _, is_there = NEEDS[need]
    metadata = (node.meta.get("mase") for node in graph.fx_graph.nodes)
    return all(isinstance(meta, MaseMetadata) and is_there(meta) for meta in metadata)


class AutoPipeline:
    """Passes in order: `graph, info = pipeline(graph, pass_args={pass name: arguments})`.

    `steps`: `Step`s, passes, or names of passes; a pass alone runs if the caller passes its
    arguments. A subclass lists its steps in `STEPS`. Users may extend the list:

        pipeline = CompressionPipeline()
        pipeline.steps.append(Step(report_graph_analysis_pass, "always"))
    """

    STEPS: ClassVar[tuple[Step | PassFunction | str, ...]] = ()

    def __init__(self, steps: Iterable[Step | PassFunction | str] | None = None) -> None:
        chosen = self.STEPS if steps is None else steps
        check(f"{type(self).__name__}: steps", MANY, chosen)
        self.steps = [_step(each) for each in chosen]

    def __call__(
        self, graph: MaseGraph, pass_args: Mapping[str, Mapping[str, Any] | None] | None = None
    ) -> tuple[MaseGraph, dict[str, dict[str, Any]]]:
        """Run every step that is due; return the graph and the info of each pass by name."""
        if not isinstance(graph, MaseGraph):
            raise PassError(
                f"{type(self).__name__}: expected a MaseGraph, got {type(graph).__name__}. "
                f"Wrap it: MaseGraph(model)."
            )
        check(f"{type(self).__name__}: pass_args", MAPPING | NONE, pass_args)
        arguments_by_name = pass_args or {}
        self._check(arguments_by_name)
        info: dict[str, dict[str, Any]] = {}
        for step in self.steps:
            arguments = arguments_by_name.get(step.name)
            if step.is_due(graph, arguments):
                graph, info[step.name] = step.run(graph, arguments)
        return graph, info

    def _check(self, pass_args: Mapping[str, Any]) -> None:
        names = [step.name for step in self.steps]
        for name in pass_args:
            if name not in names:
                raise ConfigError(
                    f"{type(self).__name__}: pass_args has '{name}', which is no pass of this "
                    f"pipeline. {suggest(name, names)}"
                )
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(
                f"{type(self).__name__}: '{twice}' is listed twice, and arguments go by name."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(step.name for step in self.steps)})"


def _step(step: Step | PassFunction | str) -> Step:
    if isinstance(step, Step):
        return step
    return Step(PASSES[step] if isinstance(step, str) else step)
