"""Annotate every node with how it is realised in hardware."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from torch import fx

from chop.errors import ConfigError
from chop.hw.design.component import Component
from chop.hw.flow.explore import Wish, best, for_budget, for_target
from chop.hw.flow.explore.best import Tell, check_part, modelled_parts
from chop.hw.flow.predict import predict
from chop.hw.lower import DesignSpec, Lowered, lower
from chop.hw.lower.design_cache import attach_design
from chop.hw.sim.emit import used_components
from chop.ir.graph import MaseGraph
from chop.ir.meta import HardwareMeta, mase_meta
from chop.passes.base import PassResult, graph_pass


@dataclass(frozen=True)
class AddHardwareMetadataArgs(DesignSpec):
    """Settings of the design, or goals to choose them by."""

    target_interval: Annotated[
        int | None, "Choose the cheapest design with this many cycles between tensors."
    ] = None
    max_multipliers: Annotated[
        int | None, "Choose the fastest design with this many multipliers."
    ] = None
    fit: Annotated[
        str | None,
        "Choose the best design for this part, by predicted LUTs, flip-flops, DSPs, memories and "
        "clock.",
    ] = None
    goal: Annotated[
        str,
        "Goal of fit: the most frames per second (fps), the fewest LUTs (lut), or the least energy "
        "per frame (energy).",
    ] = "fps"
    least_fps: Annotated[float, "Frames per second that every goal must reach."] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        goals = (self.target_interval, self.max_multipliers, self.fit)
        if sum(each is not None for each in goals) > 1:
            raise ConfigError(
                "target_interval, max_multipliers and fit exclude each other; set one."
            )
        wish, default = Wish(self.goal, self.least_fps), Wish()
        if self.fit is not None:
            check_part(self.fit, "fit")
        elif (wish.goal, wish.least_fps) != (default.goal, default.least_fps):
            raise ConfigError(
                f"goal '{self.goal}' and least_fps {self.least_fps:g} are for a part. Give it: "
                f"fit is one of {', '.join(modelled_parts())}."
            )

    @classmethod
    def modern(cls, args: Any) -> Any:
        """Return the arguments of a `DesignSpec`, which has settings and no goal."""
        is_spec = isinstance(args, DesignSpec) and not isinstance(args, cls)
        return cls(**vars(args)) if is_spec else args

    def spec(self) -> DesignSpec:
        """Return the settings without the goals."""
        return DesignSpec(**{each.name: getattr(self, each.name) for each in fields(DesignSpec)})


@graph_pass("add_hardware_metadata_analysis_pass", AddHardwareMetadataArgs, needs=("common",))
def add_hardware_metadata_analysis_pass(
    graph: MaseGraph, args: AddHardwareMetadataArgs
) -> PassResult:
    """Write `hardware` of every node: module, parameters, interface, parallelism, files.

    Needs number formats in fixed point: those of the inputs and parameters, and of every result
    that is no binary fraction. Nodes that are wiring only are `is_implicit`. The output node has
    the settings of the design, `hardware.design`; the design itself, with its FIFOs, is cached for
    the emit passes. `info` has the folding bound in cycles and the multipliers, and with `fit` the
    prediction for the part.
    """
    spec = choose_design(graph, args)
    lowered = lower(graph, spec)
    for node in graph.fx_graph.nodes:
        mase_meta(node).hardware = _describe(lowered, node, spec)
    attach_design(graph, spec, lowered)
    design = lowered.design
    info: dict[str, Any] = {"cycles": design.cycles(), "multipliers": design.cost().multipliers}
    if args.fit is not None:
        info["predicted"] = str(predict(design, args.fit))
    return graph, info


def choose_design(graph: MaseGraph, args: AddHardwareMetadataArgs) -> DesignSpec:
    """Return the settings that meet the goal of `args`; settings by hand stay."""
    if args.fit is not None:
        return fitted_args(graph, args, args.fit).spec()
    shares = bool(args.share_layers)
    if args.target_interval is not None:
        folding = for_target(graph, args.target_interval, share_layers=shares)
    elif args.max_multipliers is not None:
        folding = for_budget(graph, args.max_multipliers, share_layers=shares)
    else:
        return args.spec()
    return replace(
        args.spec(),
        max_parallelism=1,
        parallelism={**folding.lanes, **args.parallelism},
        share_layers=args.share_layers or int(folding.share_layers),
    )


def fitted_args(
    graph: MaseGraph, args: AddHardwareMetadataArgs, part: str, tell: Tell | None = None
) -> AddHardwareMetadataArgs:
    """Return the arguments of the best design for `part`, by hand; settings by hand stay.

    `tell` is called with the progress of the search.
    """
    default = Wish()
    ways = (args.multiplier["*"],) if "*" in args.multiplier else default.multipliers
    shares = True if args.share_layers else None
    wish = Wish(args.goal, args.least_fps, ways, shares, clock_mhz=args.clock_mhz)
    choice = best(graph, part, wish, tell=tell)
    return replace(
        args,
        fit=None,
        goal=default.goal,
        least_fps=default.least_fps,
        max_parallelism=1,
        parallelism={**choice.spec.parallelism, **args.parallelism},
        multiplier={**choice.spec.multiplier, **args.multiplier},
        share_layers=args.share_layers or choice.spec.share_layers,
    )


def _describe(lowered: Lowered, node: fx.Node, spec: DesignSpec) -> HardwareMeta:
    component, lanes = lowered.components.get(node.name), lowered.lanes(node)
    if component is None:
        return HardwareMeta(
            is_implicit=True, toolchain="INTERNAL", device_id=-1, interface={}, parallelism=lanes
        )
    most = spec.max_parallelism
    files = used_components(f"{component.module} #(")
    return HardwareMeta(
        is_implicit=False,
        toolchain="INTERNAL",
        module=component.module,
        device_id=0,
        interface=_interface(component),
        dependence_files=[f"{name}/{name}.sv" for name in files],
        verilog_param=dict(component.parameters()),
        max_parallelism=most if isinstance(most, int) else list(most),
        parallelism=lanes,
        cost={"cycles": component.cycles(), "multipliers": component.cost().multipliers},
    )


def _interface(component: Component) -> dict[str, Any]:
    """Return the storage of constants: BRAM, element 0 of a word in the low bits.

    EXTERNAL: they come from outside, `words` for each tensor.
    """
    outside = {
        component.pin(k): {"storage": "EXTERNAL", "words": stream.beats, "width": stream.beat_width}
        for k, stream in enumerate(component.inputs)
        if component.pin(k) == "weight"
    }
    return {
        memory.name: {
            "storage": "BRAM",
            "transpose": False,
            "words": len(memory.words),
            "width": memory.width,
        }
        for memory in component.memories()
    } | outside
