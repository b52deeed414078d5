"""Methods that keep accuracy without training are rows of one table, and compose."""

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.actions.post_training import METHODS, method, methods_named, quantize_with_data
from chop.errors import ConfigError

MXINT4 = {
    "linear": {
        "config": {
            "name": "mxint",
            "weight_width": 4,
            "data_in_width": "NA",
            "bias_width": "NA",
        }
    }
}


def small_graph():
    model = nn.Sequential(nn.Linear(32, 24), nn.GELU(), nn.Linear(24, 8))
    return MaseGraph(model, dummy_in=torch.randn(4, 32)), [torch.randn(64, 32) for _ in range(2)]


def test_methods_run_before_and_after_layers_are_quantised_in_the_order_named():
    graph, batches = small_graph()
    seen = []
    with METHODS.restored():
        for name, when in (("late", "after"), ("early", "before")):

            @method(name, when=when)
            def run(graph, batches, settings, name=name):
                seen.append((name, type(graph.modules["0"]).__name__, dict(settings.options)))
                return {name: len(batches)}

        found = quantize_with_data(graph, MXINT4, batches, "late, gptq,early", {"late": {"x": 1}})
    assert seen == [("early", "Linear", {}), ("late", "LinearMXInt", {"x": 1})]
    assert found["early"] == found["late"] == 2
    assert [r["module"] for r in found["layers"]] == ["0", "2"]


def test_an_unknown_method_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match=r"quantize.method: .*'gtpq'.*Did you mean 'gptq'"):
        methods_named(["nearest", "gtpq"])
    assert all(each.label for each in METHODS.values())
