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


class PreNorm(nn.Module):
    """A residual stream, one branch of it with ReLU inside."""

    def __init__(self):
        super().__init__()
        self.start, self.norm, self.head = nn.Linear(16, 24), nn.RMSNorm(24), nn.Linear(24, 4)
        self.up, self.down, self.last = nn.Linear(24, 48), nn.Linear(48, 24), nn.RMSNorm(24)

    def forward(self, x):
        x = self.start(x)
        return self.head(self.last(x + self.down(torch.relu(self.up(self.norm(x))))))


def linear(**config):
    return {"linear": {"config": {"data_in_width": "NA", "bias_width": "NA", **config}}}


RULES = {  # where a method is for something else than weights in MXINT4
    "rotate": linear(name="mxint", weight_width="NA", data_in_width=4),
    "clip": linear(name="scale_integer", weight_width=3, weight_granularity="channel"),
}
SHARES = {  # of the error of plain rounding, at most
    "rotate": 0.95,
    "equalize": 1.0,
    "clip": 0.95,
    "correct_bias": 1.0,
    "learned_rounding": 0.7,
    "gptq": 0.5,
    "rotate,equalize,gptq": 0.5,
    "learned_rounding with gptq": 0.5,
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", SHARES)
def test_each_method_lowers_the_error_of_a_model_with_a_residual_stream(name):
    torch.manual_seed(5)
    model = PreNorm()
    with torch.no_grad():
        model.start.weight[3] *= 10  # a channel that stands out, and some weights
        model.down.weight *= 1 + 3 * (torch.rand_like(model.down.weight) > 0.98)
    data = [torch.randn(64, 16) for _ in range(8)]
    options = {"learned_rounding": {"steps": 40, "start": "gptq"}} if "with" in name else {}
    errors = []
    for method_name in ("nearest", name.split(" ")[0]):
        graph = MaseGraph(model, dummy_in=data[0])
        given = options if method_name in options else {}
        quantize_with_data(graph, RULES.get(name, MXINT4), data[:4], method_name, given)
        with torch.no_grad():
            wrong = [graph.model(x) - model(x) for x in data[4:]]
        errors.append(sum(float(w.square().sum()) for w in wrong))
    assert errors[1] < SHARES[name] * errors[0]
