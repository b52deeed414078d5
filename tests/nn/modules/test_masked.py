"""Masked layers are the layers they were made from, with zeros that stay."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.errors import CheckpointError
from chop.nn.modules import ActivationMask
from chop.nn.modules.masked import LAYERS, masked_class, with_mask, without_mask


class OwnLinear(nn.Linear):
    """A layer of the user's."""


def pruned(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return with_mask(layer, torch.rand(layer.weight.shape) > 0.5)


@pytest.mark.parametrize("cls", LAYERS)
def test_a_masked_layer_computes_as_the_layer_with_zeros(cls: type[nn.Module]) -> None:
    rank = 0 if cls is nn.Linear else int(cls.__name__[-2])
    plain = cls(4, 6, 3) if rank else cls(4, 6)
    layer, x = pruned(plain), torch.randn(2, 4, *[5] * rank)
    copied = cls(4, 6, 3) if rank else cls(4, 6)
    copied.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    assert torch.equal(layer(x), copied(x)) and isinstance(layer, cls)


@pytest.mark.parametrize("layer", [nn.Linear(4, 3), OwnLinear(4, 3)], ids=["torch", "own"])
def test_masked_layers_are_copied_and_pickled(layer: nn.Module) -> None:
    layer, x = pruned(layer), torch.randn(2, 4)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(other) is type(layer) and torch.equal(other(x), layer(x))


def test_a_mask_of_a_layer_of_ones_own_is_saved_and_needs_its_class_to_load(tmp_path) -> None:
    model, x = nn.Sequential(OwnLinear(4, 3)), {"input": torch.randn(2, 4)}
    graph = MaseGraph(model, dummy_in=x, leaf_modules=[OwnLinear])
    setattr(graph.model, "0", pruned(graph.model.get_submodule("0")))
    graph.export(tmp_path / "own")
    with pytest.raises(CheckpointError, match="OwnLinear' is not one of torch or MASE"):
        MaseGraph.from_checkpoint(tmp_path / "own")
    loaded = MaseGraph.from_checkpoint(tmp_path / "own", classes=[OwnLinear])
    assert type(loaded.model.get_submodule("0")) is masked_class(OwnLinear)


def test_a_weight_that_is_set_reads_with_the_zeros() -> None:
    layer = pruned(nn.Linear(4, 3))
    layer.weight = nn.Parameter(torch.ones(3, 4))
    assert torch.equal(layer.weight, layer.weight_mask.float())
    assert torch.equal(layer.state_dict()["weight"], layer.weight_mask.float())


def test_infinities_under_the_mask_do_not_leak() -> None:
    layer = pruned(nn.Linear(4, 3))
    with torch.no_grad():
        layer._parameters["weight"].masked_fill_(~layer.weight_mask, torch.inf)
    assert layer(torch.randn(2, 4)).isfinite().all()


def test_unmasking_gives_the_layer_back_with_its_zeros() -> None:
    plain = nn.Linear(4, 3)
    layer = pruned(plain)
    back = without_mask(layer)
    assert type(back) is nn.Linear and back.weight is plain.weight
    assert set(back.state_dict()) == {"weight", "bias"}
    assert (back.weight[~layer.weight_mask] == 0).all()


def test_a_layer_whose_weight_is_in_another_process_changes_its_mode() -> None:
    layer = pruned(nn.Linear(4, 3))
    layer._parameters["weight"] = layer._buffers["weight_mask"] = None
    assert not layer.eval().training


def test_an_activation_mask_says_what_it_does() -> None:
    assert repr(ActivationMask(0.5)) == "ActivationMask(sparsity=0.5, method=l1-norm, scope=local)"
