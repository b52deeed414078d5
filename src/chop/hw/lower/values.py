"""Results of a lowering: tensors in streams, and a design with the ports of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, fx

from chop.errors import HardwareError
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.component import Component
from chop.hw.design.design import Design, Wire

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor in a stream: element i of the stream is element order[i] of the torch tensor."""

    wire: Wire
    shape: Shape
    order: Ints

    def encode(self, x: Tensor, number: Fixed) -> Ints:
        """Return the codes of a batch of torch tensors, in the order of the stream."""
        flat = x.detach().double().cpu().numpy().reshape(len(x), -1)
        return number.encode(flat[:, self.order])

    def decode(self, codes: Ints, number: Fixed) -> Tensor:
        """Return a batch of torch tensors from the codes of the stream."""
        flat = np.empty((len(codes), len(self.order)))
        flat[:, self.order] = number.decode(codes.reshape(len(codes), -1))
        return torch.from_numpy(flat).reshape(len(codes), *self.shape)


@dataclass(frozen=True, eq=False)
class Lowered:
    """A design, and the mapping of the tensors of its graph to its ports."""

    design: Design
    inputs: Mapping[str, Value]
    """Port -> value: `data_in_2` is the graph's third input. An unread input has no port."""
    outputs: Mapping[str, Value]
    components: Mapping[str, Component]
    """Node name -> component."""
    values: Mapping[str, Value] = field(default_factory=dict)
    """Node name -> result."""
    depths: Mapping[Wire, int] = field(default_factory=dict)
    """Depths of the FIFOs."""

    def encode(self, *tensors: Tensor) -> dict[str, Ints]:
        """Return input codes for batches of torch tensors, in the order of the design's inputs.

        Weights that come from outside are among them.
        """
        if len(tensors) != len(self.inputs):
            raise HardwareError(
                f"inputs: got {len(tensors)} tensors. The design has {len(self.inputs)} inputs: "
                f"{', '.join(self.inputs)}."
            )
        pairs = zip(self.inputs.items(), tensors, strict=True)
        data = {
            name: value.encode(x, self.design.inputs[name].format).reshape(
                len(x), *self.design.inputs[name].shape
            )
            for (name, value), x in pairs
        }
        return {**data, **self.design.weights(len(tensors[0]))}

    def lanes(self, node: fx.Node) -> list[int] | None:
        """Return the input and output lanes of `node`; None for wiring and unused inputs."""
        component = self.components.get(node.name)
        if component is not None:
            return [component.inputs[0].lanes, component.outputs[0].lanes]
        inputs = [n for n in node.graph.nodes if n.op == "placeholder"]
        name = f"data_in_{inputs.index(node)}" if node in inputs else ""
        stream = self.design.inputs.get(name)
        return None if stream is None else [stream.lanes, stream.lanes]

    def decode(self, codes: Mapping[str, Ints]) -> list[Tensor]:
        """Return torch tensors for output codes."""
        streams = self.design.output_streams()
        return [v.decode(codes[name], streams[name].format) for name, v in self.outputs.items()]
