"""Formats of a layer: shared by equal layers, unchangeable in place, and kept by copies."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from chop.nn.quantized.layer import layer_class
from chop.nn.quantized.layer_formats import LayerFormats
from chop.nn.quantizers import FORMATS, Integer

CONFIG = {"name": "integer", "data_in_width": 8, "weight_width": 4}
CHANGES = (
    lambda formats: formats.__setitem__("weight", Integer(8, 4)),
    lambda formats: formats.__delitem__("weight"),
    lambda formats: formats.update(weight=Integer(8, 4)),
    lambda formats: formats.__ior__({"weight": Integer(8, 4)}),
    lambda formats: formats.pop("weight"),
    lambda formats: formats.popitem(),
    lambda formats: formats.setdefault("other", Integer(8, 4)),
    lambda formats: formats.clear(),
)


def layer() -> nn.Module:
    return layer_class(nn.Linear, FORMATS["integer"])(4, 4, config=CONFIG)


def test_equal_layers_share_one_mapping_also_after_copies():
    formats = layer().quantizers
    assert isinstance(formats, LayerFormats)
    for other in (layer(), copy.deepcopy(layer()), pickle.loads(pickle.dumps(layer()))):
        assert other.quantizers is formats


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_place_is_refused_and_changes_nothing(change):
    formats = layer().quantizers
    before = dict(formats)
    with pytest.raises(TypeError, match="other layers share them"):
        change(formats)
    assert formats == before


def test_a_new_mapping_changes_one_layer():
    first, second = layer(), layer()
    first.quantizers = {**first.quantizers, "weight": Integer(16, 12)}
    x = torch.randn(2, 4)
    second.load_state_dict(first.state_dict())
    assert not torch.equal(first(x), second(x))


@pytest.mark.slow
def test_the_number_of_checks_of_a_compiled_layer_is_bounded():
    """Each check of torch.compile costs time at every call of a model with many layers."""
    model = nn.Sequential(*(layer() for _ in range(6))).train()
    counts = {n: checks_of(nn.Sequential(*model[:n])) for n in (2, 6)}
    assert (counts[6] - counts[2]) / 4 <= 40  # 31; with a mapping for each layer 53


def checks_of(model: nn.Module) -> int:
    def call(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    torch._dynamo.reset()
    torch.compile(call, backend="eager")(torch.randn(2, 4))
    (entry,) = torch._dynamo.eval_frame._debug_get_cache_entry_list(call.__code__)
    return str(entry.guard_manager).count("+-")
