import copy
import pickle

import pytest
import torch
from quantized_cases import config_of, random
from torch import nn
from torch.nn.utils import parametrize, prune

from chop.errors import ConfigError
from chop.nn.quantized import QuantizedModule, from_float
from chop.nn.quantized.convert import to_format
from chop.nn.quantized.modules.linear import LinearInteger, LinearLog
from chop.nn.quantizers import Integer

INTEGER = config_of("integer")
X = random(3, 6)


class Scaled(nn.Linear):
    """A subclass with something of its own, and torch's forward."""

    def scale(self):
        return 2.0


class Own(nn.Linear):
    def forward(self, input):
        return super().forward(input) + 1


class Half(nn.Module):
    def forward(self, weight):
        return weight / 2


def test_the_twin_shares_parameters_and_keeps_the_bias():
    layer = nn.Linear(6, 5)
    twin = from_float(layer, INTEGER)
    assert isinstance(twin, LinearInteger)
    assert twin.weight is layer.weight
    assert twin.bias is layer.bias


def test_the_original_is_left_as_it_was():
    layer = nn.Linear(6, 5)
    before = dict(vars(layer))
    twin = from_float(layer, INTEGER)
    twin.weight = nn.Parameter(torch.zeros(5, 6))
    assert vars(layer) == before
    assert type(layer) is nn.Linear
    assert layer.weight.abs().sum() > 0


def test_conv_bias_is_kept():
    layer = nn.Conv2d(3, 4, 3)
    assert from_float(layer, INTEGER).bias is layer.bias


def test_norm_weights_and_running_statistics_are_kept():
    layer = nn.BatchNorm2d(3)
    layer(random(4, 3, 2, 2))
    nn.init.normal_(layer.weight)
    twin = from_float(layer, INTEGER)
    assert twin.running_mean is layer.running_mean
    assert twin.weight is layer.weight
    twin(random(4, 3, 2, 2))
    assert twin.num_batches_tracked == 2


@pytest.mark.parametrize("training", [True, False])
def test_mode_device_and_dtype_are_kept(training):
    layer = nn.Linear(6, 5, device="meta", dtype=torch.float64).train(training)
    twin = from_float(layer, INTEGER)
    assert twin.training is training
    assert (twin.weight.device.type, twin.weight.dtype) == ("meta", torch.float64)


def test_hooks_are_kept_and_their_handles_work():
    layer, seen = nn.Linear(6, 5), []
    handle = layer.register_forward_hook(lambda *a: seen.append(1))
    twin = from_float(layer, INTEGER)
    twin(X)
    handle.remove()
    twin(X)
    assert seen == [1]


def test_a_pruning_mask_is_kept():
    layer = nn.Linear(6, 5)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    twin = from_float(layer, INTEGER)
    twin(X).sum().backward()
    assert (twin.quantized_parameters()[0] == 0).sum() >= 15
    assert (twin.weight_orig.grad[twin.weight_mask == 0] == 0).all()


def test_a_parametrisation_is_kept_and_can_be_removed():
    layer = nn.Linear(6, 5)
    parametrize.register_parametrization(layer, "weight", Half())
    twin = from_float(layer, INTEGER)
    expected = from_float(nn.Linear(6, 5), INTEGER)
    expected.weight, expected.bias = nn.Parameter(layer.weight.detach()), layer.bias
    assert torch.equal(twin(X), expected(X))
    parametrize.remove_parametrizations(twin, "weight")
    assert type(twin) is LinearInteger
    assert torch.equal(twin(X), expected(X))


def test_a_quantised_layer_can_be_parametrised():
    layer = LinearInteger(6, 5, config=INTEGER)
    parametrize.register_parametrization(layer, "weight", Half())
    again = from_float(layer, config_of("log"))
    assert isinstance(again, QuantizedModule)
    assert parametrize.is_parametrized(again)
    assert copy.deepcopy(again)(X).shape == (3, 5)


def test_a_subclass_keeps_its_methods_and_pickles():
    twin = from_float(Scaled(6, 5), INTEGER)
    assert isinstance(twin, LinearInteger) and isinstance(twin, Scaled)
    assert type(twin).__name__ == "ScaledInteger"
    for again in (copy.deepcopy(twin), pickle.loads(pickle.dumps(twin))):
        assert type(again) is type(twin)
        assert again.scale() == 2.0
        assert torch.equal(again(X), twin(X))


def test_a_subclass_changes_its_format_and_stays_a_subclass():
    twin = from_float(from_float(Scaled(6, 5), INTEGER), config_of("log"))
    assert isinstance(twin, LinearLog) and isinstance(twin, Scaled)
    assert not isinstance(twin, LinearInteger)


def test_a_quantised_layer_changes_its_format():
    layer = nn.Linear(6, 5)
    twin = from_float(from_float(layer, INTEGER), config_of("log"))
    assert type(twin) is LinearLog
    assert torch.equal(twin(X), from_float(layer, config_of("log"))(X))


def test_a_layer_with_a_forward_of_its_own_is_refused():
    with pytest.raises(ConfigError, match=r"config: Own has no quantised layer\. .*linear"):
        from_float(Own(6, 5), INTEGER)


def test_a_layer_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="here: Dropout has no quantised layer"):
        from_float(nn.Dropout(), INTEGER, where="here")


def test_a_layer_that_waits_for_its_first_call_is_refused_until_then():
    layer = nn.LazyLinear(5)
    with pytest.raises(ConfigError, match="LazyLinear has no quantised layer"):
        from_float(layer, INTEGER)
    layer(X)
    assert type(from_float(layer, INTEGER)) is LinearInteger


def test_a_format_must_be_named():
    with pytest.raises(ConfigError, match="config: key 'name' is missing"):
        from_float(nn.Linear(6, 5), {"name": None})


def test_an_unknown_format_is_refused():
    with pytest.raises(ConfigError, match=r"config.name: Unknown format 'intger'. Did you mean"):
        from_float(nn.Linear(6, 5), {"name": "intger"})


def test_a_layer_whose_formats_were_set_by_hand_is_not_taken_for_its_config():
    config = {"name": "integer", "weight_width": 8, "data_in_width": 8}
    layer = from_float(nn.Linear(3, 2), config)
    assert to_format(layer, config, where="here") is layer
    layer.quantizers = layer.quantizers | {"weight": Integer(4, 1)}
    again = to_format(layer, config, where="here")
    assert again is not layer and again.quantizers["weight"] == Integer(8, 0)
