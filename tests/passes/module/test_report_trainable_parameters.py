import pytest
from torch import nn

from chop.errors import ConfigError, PassError
from chop.passes.module import report_trainable_parameters_analysis_pass


def model():
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8))
    net[0].weight.requires_grad = False
    net[1].weight = nn.Parameter(net[1].weight.detach())
    return net


def test_trainable_and_total_are_counted_per_module_and_in_all(capsys):
    net = model()
    same, info = report_trainable_parameters_analysis_pass(net)
    assert same is net
    assert info["table"] == [
        {"Submodule": "0", "Trainable Parameters": 8, "Total Parameters": 40},
        {"Submodule": "1", "Trainable Parameters": 72, "Total Parameters": 72},
    ]
    assert (info["trainable"], info["total"]) == (80, 112)
    assert "Trainable Parameters" in capsys.readouterr().out


def test_a_shared_parameter_counts_once():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    _, info = report_trainable_parameters_analysis_pass(net)
    assert info["total"] == sum(p.numel() for p in net.parameters())


def test_wrong_arguments_are_named():
    with pytest.raises(PassError, match=r"expected a module, got str. Give mg.model"):
        report_trainable_parameters_analysis_pass("bert")
    with pytest.raises(ConfigError, match="unknown key 'depth'"):
        report_trainable_parameters_analysis_pass(model(), {"depth": 1})
