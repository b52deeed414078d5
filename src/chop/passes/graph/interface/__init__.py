"""Passes that carry a graph, or part of it, to and from other programs."""

from chop.passes.base import check_exports
from chop.passes.graph.interface.adapter_files import (
    load_lora_adapter_interface_pass,
    save_lora_adapter_interface_pass,
)
from chop.passes.graph.interface.node_meta import (
    load_node_meta_param_interface_pass,
    save_node_meta_param_interface_pass,
)

__all__ = [
    "load_lora_adapter_interface_pass",
    "load_node_meta_param_interface_pass",
    "save_lora_adapter_interface_pass",
    "save_node_meta_param_interface_pass",
]

check_exports(globals())
