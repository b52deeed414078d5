"""Llama of transformers with the weights of a graph, as a decode engine reads it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from chop.errors import ConfigError
from chop.hw.decode.llama_weights import read_shape
from chop.ir.graph import MaseGraph
from chop.ir.store.packed_tensors import HasFormats


def float_llama(graph: MaseGraph) -> PreTrainedModel:
    """Return a Llama whose weights are those that `graph` computes with.

    Quantised weights keep their rounded values. Formats of activations are dropped.
    """
    config: Any = getattr(graph.model, "config", None)
    read_shape(config)
    build: Any = AutoModelForCausalLM.from_config
    model: PreTrainedModel = build(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_values(graph.model, name))
    return model


def _values(model: nn.Module, name: str) -> Tensor:
    """Return the parameter `name` of a graph, rounded to its format."""
    path, _, attribute = name.rpartition(".")
    try:
        layer = model.get_submodule(path)
    except AttributeError as error:
        raise ConfigError(f"decode: the graph has no layer '{path}', as a Llama has.") from error
    stored = layer.stored_values() if isinstance(layer, HasFormats) else {}
    values: Tensor = stored[attribute].values if attribute in stored else getattr(layer, attribute)
    return values
