"""Layers beyond torch's, and `Identity` of torch."""

from torch.nn import Identity

from chop.nn.modules.activation_mask import ActivationMask
from chop.nn.modules.lora import LoRALinear
from chop.nn.modules.masked import Masked

__all__ = ["ActivationMask", "Identity", "LoRALinear", "Masked"]
