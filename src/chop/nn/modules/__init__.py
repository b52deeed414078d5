"""Layers that torch does not have, and those of torch that programs know under this path."""

from torch.nn import Identity

from chop.nn.modules.lora import LoRALinear

__all__ = ["Identity", "LoRALinear"]
