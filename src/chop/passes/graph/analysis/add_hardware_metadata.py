"""Annotate every node with how it is realised in hardware."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from torch import fx

from chop.errors import ConfigError
from chop.hw.design.clock import DEFAULT_MHZ, check_clock
from chop.hw.design.component import Component
from chop.hw.flow.explore import Folding, Wish, best, for_budget, for_target
from chop.hw.flow.explore.best import Tell, check_part, modelled_parts
from chop.hw.flow.predict import predict
from chop.hw.library.constant_product import ConstantProduct
from chop.hw.library.packed import PackedLinear
from chop.hw.lower import Lowered, Parallelism, lower
from chop.hw.lower.attached import attach_design
from chop.hw.lower.storage import MEMORY, Storage
from chop.hw.sim.emit import used_components
from chop.ir.graph import MaseGraph
from chop.ir.meta import HardwareMeta, mase_meta
from chop.passes.base import PassResult, graph_pass


@dataclass(frozen=True)
class AddHardwareMetadataArgs:
    """Parallelism of each node."""

    max_parallelism: Annotated[
        int | list[int],
        "Largest number of elements per beat in the last dimension. A list gives one number per "
        "dimension, DIM_0 first; streams are parallel in DIM_0.",
    ] = 4
    parallelism: Annotated[
        dict[str, tuple[int, int]], "Input and output lanes of single nodes, set by hand."
    ] = field(default_factory=dict)
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
    weights: Annotated[
        str,
        "Place of the weights: memory of the design, or external, which gives each linear layer "
        "and convolution a port that streams its weights.",
    ] = MEMORY
    node_weights: Annotated[
        dict[str, str], "Place of the weights of single nodes, set by hand."
    ] = field(default_factory=dict)
    share_layers: Annotated[
        int,
        "Build repeated layers as one block, through which this many tensors go together. 0: only "
        "if max_multipliers cannot be reached otherwise.",
    ] = 0
    multiplier: Annotated[
        dict[str, str],
        'Products of layers with their weights, by node ("*": all others): "array", a folded array '
        'of multipliers; "packed", two outputs per multiplier; or, for a whole vector or window in '
        'each cycle, "shift_add" (additions alone) or "tables" of input bits.',
    ] = field(default_factory=dict)
    adders_per_stage: Annotated[int, "Additions between two registers of shift_add and tables."] = 2
    clock_mhz: Annotated[
        float,
        "Clock for which registers are chosen, in MHz. A lower clock needs fewer flip-flops and "
        "cycles of latency.",
    ] = DEFAULT_MHZ

    def __post_init__(self) -> None:
        given = (self.target_interval, self.max_multipliers, self.fit)
        if sum(each is not None for each in given) > 1:
            raise ConfigError(
                "target_interval, max_multipliers and fit exclude each other; set one."
            )
        self._check_wish()
        if self.adders_per_stage < 1:
            raise ConfigError(f"adders_per_stage must be 1 or more, got {self.adders_per_stage}.")
        if not self.max_parallelism or self.most < 1:
            raise ConfigError(f"max_parallelism must be 1 or more, got {self.max_parallelism}.")
        if self.share_layers < 0:
            raise ConfigError(f"share_layers must be 0 or more, got {self.share_layers}.")
        check_clock(self.clock_mhz)
        Storage.of(self.places)

    def _check_wish(self) -> None:
        """Whether part and goal can be had together."""
        wish, default = Wish(self.goal, self.least_fps), Wish()
        if self.fit is not None:
            check_part(self.fit, "fit")
        elif (wish.goal, wish.least_fps) != (default.goal, default.least_fps):
            raise ConfigError(
                f"goal '{self.goal}' and least_fps {self.least_fps:g} are for a part. Give it: "
                f"fit is one of {', '.join(modelled_parts())}."
            )

    @property
    def places(self) -> dict[str, str]:
        """Of the weights, by node."""
        return {"default": self.weights, **self.node_weights}

    @property
    def most(self) -> int:
        """The most elements per beat."""
        given = self.max_parallelism
        return given if isinstance(given, int) else given[0]


@graph_pass("add_hardware_metadata_analysis_pass", AddHardwareMetadataArgs, needs=("common",))
def add_hardware_metadata_analysis_pass(
    graph: MaseGraph, args: AddHardwareMetadataArgs
) -> PassResult:
    """Write `hardware` of every node: module, parameters, interface, parallelism, files.

    Needs number formats in fixed point: those of the inputs and parameters, and of every result
    that is no binary fraction. Nodes that are wiring only are `is_implicit`. The design itself,
    with its FIFOs, stays with the graph for the emit passes. Says in `info` the folding bound in
    cycles and the multipliers, and with `fit` what is predicted of the part.
    """
    lanes, share_layers = _parallelism(graph, args)
    lowered = lower(graph, lanes, weights=args.places, share_layers=share_layers)
    for node in graph.fx_graph.nodes:
        mase_meta(node).hardware = _describe(lowered, node, args)
        _note_loop(lowered, node)
    attach_design(graph, lowered)
    design = lowered.design
    told: dict[str, Any] = {"cycles": design.cycles(), "multipliers": design.cost().multipliers}
    if args.fit is not None:
        told |= {"predicted": str(predict(design, args.fit))}
    return graph, told


def _parallelism(graph: MaseGraph, args: AddHardwareMetadataArgs) -> tuple[Parallelism, int]:
    """Lanes, and how many tensors go together through a block that layers share; 0: none does."""
    if args.fit is not None:
        return _fitted(graph, args, args.fit)
    shares = bool(args.share_layers)
    chosen: Folding | None = None
    if args.target_interval is not None:
        chosen = for_target(graph, args.target_interval, share_layers=shares)
    if args.max_multipliers is not None:
        chosen = for_budget(graph, args.max_multipliers, share_layers=shares)
    most = args.most if chosen is None else 1
    lanes = {**(chosen.lanes if chosen else {}), **args.parallelism}
    products = Parallelism(most, lanes, args.multiplier, args.adders_per_stage, args.clock_mhz)
    return products, args.share_layers or int(chosen.share_layers if chosen else 0)


def _fitted(graph: MaseGraph, args: AddHardwareMetadataArgs, part: str) -> tuple[Parallelism, int]:
    """What is best for a part; what is given by hand stays."""
    chosen = fitted_args(graph, args, part)
    products = Parallelism(
        1, chosen.parallelism, chosen.multiplier, args.adders_per_stage, args.clock_mhz
    )
    return products, chosen.share_layers


def fitted_args(
    graph: MaseGraph, args: AddHardwareMetadataArgs, part: str, tell: Tell | None = None
) -> AddHardwareMetadataArgs:
    """The same design by hand: what `best` finds for `part`. What is given by hand stays.

    `tell` hears how far the search is.
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
        parallelism={**(choice.parallelism.by_node or {}), **args.parallelism},
        multiplier={**choice.parallelism.multiplier, **args.multiplier},
        share_layers=args.share_layers or int(choice.share_layers),
    )


def _describe(lowered: Lowered, node: fx.Node, args: AddHardwareMetadataArgs) -> HardwareMeta:
    component = lowered.components.get(node.name)
    if component is None:
        return HardwareMeta(
            is_implicit=True,
            toolchain="INTERNAL",
            device_id=-1,
            interface={},
            parallelism=_input_lanes(lowered, node),
        )
    lanes = [component.inputs[0].lanes, component.outputs[0].lanes]
    return HardwareMeta(
        is_implicit=False,
        toolchain="INTERNAL",
        module=component.module,
        device_id=0,
        interface=_interface(component),
        dependence_files=_files(component.module),
        verilog_param=dict(component.parameters()),
        max_parallelism=args.max_parallelism,
        parallelism=lanes,
        cost=_cost(component, args.clock_mhz),
    )


def _note_loop(lowered: Lowered, node: fx.Node) -> None:
    """Say of a node in a block that layers share how many tensors go through it together."""
    component = lowered.components.get(node.name)
    if any(stage.component is component for stage in lowered.design.looped):
        found = mase_meta(node).hardware
        assert found.interface is not None, "every node with a component has an interface"
        found.interface["shared"] = {"in_flight": lowered.design.in_flight}


def _cost(component: Component, clock_mhz: float) -> dict[str, int]:
    told = {"cycles": component.cycles(), "multipliers": component.cost().multipliers}
    if isinstance(component, ConstantProduct):
        told |= {"adders_per_stage": component.adders_per_stage}
    if clock_mhz != DEFAULT_MHZ:
        told |= {"clock_khz": round(1000 * clock_mhz)}
    if isinstance(component, PackedLinear):
        told |= {"is_packed": True}
    return told


def _interface(component: Component) -> dict[str, Any]:
    """Where constants are stored and how: BRAM, element 0 of a word in the low bits.

    EXTERNAL: they come from outside, so many words for a tensor.
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


def _files(module: str) -> list[str]:
    used = used_components(f"{module} #(")
    return [f"{name}/{name}.sv" for name in used]


def _input_lanes(lowered: Lowered, node: fx.Node) -> list[int] | None:
    if node.op != "placeholder":
        return None
    number = [n for n in node.graph.nodes if n.op == "placeholder"].index(node)
    stream = lowered.design.inputs.get(f"data_in_{number}")  # none where nothing reads it
    return None if stream is None else [stream.lanes, stream.lanes]
