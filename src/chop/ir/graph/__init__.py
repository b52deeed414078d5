"""MaseGraph: a model captured as a torch.fx graph whose nodes carry MASE metadata."""

from chop.ir.graph.mase_graph import MaseGraph

__all__ = ["MaseGraph"]
